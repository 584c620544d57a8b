"""Logits of a large vocabulary, as features and weights whose product is never whole in memory.

With 100,000 tokens, the logits of 32 texts of 64 tokens are 820 MB, and their gradient as much.
`losses` and `hits` compute them for a few positions at a time. In the backward pass they are
computed again (`torch.utils.checkpoint`).
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from flfast.state.injection import asks_for
from flfast.tasks.task_type import IGNORED

WHOLE_BYTES = 2**28
"""Logits up to this size are computed at once."""

CHUNK_BYTES = 2**25
"""Size of the logits that are computed at a time, where they are larger. Products of so many rows
use a core, and a GPU, fully."""


class FactoredLogits(NamedTuple):
    """Logits [B, T, C] = features [B, T, D] @ weight.T + bias, of the last layer."""

    features: Tensor
    weight: Tensor
    bias: Tensor | None

    def whole(self) -> Tensor:
        """All logits [B, T, C]."""
        return F.linear(*self)

    @property
    def is_large(self) -> bool:
        """Whether all logits together are larger than `WHOLE_BYTES`."""
        return self._bytes(self.features.shape[:-1].numel()) > WHOLE_BYTES

    def losses(self, targets: Tensor) -> Tensor:
        """Cross-entropy at every position [B, T], 0 where the target is `IGNORED`."""
        return self._by_chunk(_losses, targets)

    @torch.no_grad()
    def hits(self, targets: Tensor) -> Tensor:
        """Whether the largest logit is the target's, bool [B, T]; `IGNORED` is never hit."""
        return self._by_chunk(_hits, targets)

    def _by_chunk(self, fn: Callable[..., Tensor], targets: Tensor) -> Tensor:
        rows, flat = self.features.flatten(0, -2), targets.flatten()
        size = len(rows)
        if self.is_large:
            size = max(CHUNK_BYTES // self._bytes(1), 1)
            # Recomputed in the backward pass: autograd would otherwise keep every chunk's logits.
            fn = partial(checkpoint, fn, use_reentrant=False, preserve_rng_state=False)
        parts = zip(rows.split(size), flat.split(size), strict=True)
        found = [fn(part, self.weight, self.bias, wanted) for part, wanted in parts]
        return torch.cat(found).view_as(targets)

    def _bytes(self, positions: int) -> int:
        return positions * len(self.weight) * self.features.element_size()


def large_factored(
    model: nn.Module, call: Callable[..., Any], inputs: Tensor
) -> Tensor | FactoredLogits:
    """The outputs of a language model; large logits are factored, if its `forward` can do so.

    `call` is the model, or a call of it with other weights: (tokens [B, T], **options) -> outputs.
    """
    found: Tensor | FactoredLogits
    if not asks_for(type(model).forward, "factored"):
        found = call(inputs)
        return found
    found = call(inputs, factored=True)
    return found.whole() if isinstance(found, FactoredLogits) and not found.is_large else found


def factored_logits(features: Tensor, layer: nn.Module) -> Tensor | FactoredLogits:
    """Logits of features [B, T, D], as factors if the last layer is a plain linear one.

    A layer with an adapter is called: its weight alone is not all that it computes.
    """
    if isinstance(layer, nn.Linear):
        return FactoredLogits(features, layer.weight, layer.bias)
    logits: Tensor = layer(features)
    return logits


def token_losses(logits: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy at every position [M], 0 where the target, int64 [M], is `IGNORED`."""
    # A token in place of IGNORED: neither vmap's rule nor our kernels know an ignored class.
    losses = F.cross_entropy(logits, targets.clamp(min=0), reduction="none")
    return losses * (targets != IGNORED)


def _losses(rows: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor) -> Tensor:
    return token_losses(F.linear(rows, weight, bias), targets)


def _hits(rows: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor) -> Tensor:
    return F.linear(rows, weight, bias).argmax(dim=-1) == targets
