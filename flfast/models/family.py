"""Models of their own: clients whose models have different architectures.

The models of a family are its members. `feature_dim` gives all members features of one size and a
head of one shape, so that clients can share prototypes or heads: Zhang, Liu, Hua, Wang, Song, Xue,
Ma, Cao: HtFLlib. KDD 2025, section 3.1. https://arxiv.org/abs/2506.03954
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor, nn
from torch.nn import functional as F

from flfast.models.adapters.layer_names import layer_of
from flfast.state.options import Count
from flfast.state.randomness import generator


class SameFeatures(nn.Module):
    """A model with a new head: its features are averaged to `feature_dim` numbers.

    Its parameters are `body.*`, and `head.weight` and `head.bias` at the end.
    """

    def __init__(self, body: nn.Module, feature_dim: int, num_outputs: int) -> None:
        super().__init__()
        self.body, self.head = body, nn.Linear(feature_dim, num_outputs)

    def forward(self, inputs: Tensor) -> Tensor:
        """Outputs [B, C] or [B, T, C] of inputs [B, ...]."""
        features = F.adaptive_avg_pool1d(self.body(inputs), self.head.in_features)
        outputs: Tensor = self.head(features)
        return outputs


def with_same_features(model: nn.Module, feature_dim: int) -> SameFeatures:
    """The model with a head that reads `feature_dim` averages of the last layer's inputs.

    Raises:
        ValueError: if the last layer with parameters is not a linear one inside of the model.
    """
    if isinstance(model, SameFeatures):
        return SameFeatures(model.body, feature_dim, model.head.out_features)
    path = layer_of(list(dict(model.named_parameters()))[-1])
    last = model.get_submodule(path)
    parent, _, name = path.rpartition(".")
    above = model.get_submodule(parent)
    several = isinstance(above, nn.ModuleList) and len(above) > 1
    if not path or several or not isinstance(last, nn.Linear):
        what = "one of several" if several else f"a {type(last).__name__}"
        raise ValueError(
            f"model.feature_dim={feature_dim}: the last layer, {path or 'the model'}, is {what}; "
            f"allowed: models that end with a linear layer, or feature_dim=null"
        )
    setattr(above, name, nn.Identity())
    return SameFeatures(model, feature_dim, last.out_features)


@dataclass(frozen=True)
class Family:
    """Models of a run, and which client has which.

    Attributes:
        builders: models, or functions that make them, by name of the member.
        assign: `round_robin`, `shares`, `by_device`, or names of members for all clients.
        shares: share of the clients for each member; None: equal ones.
        feature_dim: size of the features of all members; None leaves models as they are.
        common: a model, or a function that makes one; None: there is none.
    """

    builders: Mapping[str, Any]
    assign: str | Sequence[str]
    shares: Sequence[float] | None
    feature_dim: int | None
    common: Any = None

    def members(
        self, num_clients: int, seed: int, fastest_first: Callable[[], np.ndarray]
    ) -> np.ndarray:
        """Place of each client's model in `builders`, int64 [K].

        `fastest_first` gives all clients by the speed of their devices, int64 [K].

        Raises:
            ValueError: if members and clients do not fit together.
        """
        num = len(self.builders)
        if self.shares is not None and self.assign not in {"shares", "by_device"}:
            raise ValueError(f"model.shares={self.shares}: is for assign=shares or by_device")
        if self.assign == "round_robin":
            return np.arange(num_clients) % num
        if self.assign == "shares":
            return generator(seed, "family").permutation(self._in_parts(num_clients))
        if self.assign == "by_device":
            return self._in_parts(num_clients)[np.argsort(fastest_first())]
        named = self.assign
        if isinstance(named, str):
            raise ValueError(
                f"model.assign={named}: is no file; allowed: round_robin, shares, by_device, "
                f"a list, or a file, with a name for each client, one in a line"
            )
        if len(named) != num_clients:
            raise ValueError(
                f"model.assign: has {len(named)} names; allowed: one for each of "
                f"{num_clients} clients"
            )
        places = {name: place for place, name in enumerate(self.builders)}
        unknown = sorted({*named} - places.keys())
        if unknown:
            raise ValueError(
                f"model.assign: {unknown[0]} is no member; allowed: {', '.join(places)}"
            )
        return np.array([places[name] for name in named])

    def _in_parts(self, num_clients: int) -> np.ndarray:
        """Members in ascending order; numbers of clients are rounded so that they add up."""
        num = len(self.builders)
        shares = np.array([1 / num] * num if self.shares is None else self.shares)
        if len(shares) != num or (shares < 0).any() or not np.isclose(shares.sum(), 1):
            raise ValueError(
                f"model.shares={self.shares}: allowed with assign={self.assign}: {num} numbers >= "
                f"0 that add up to 1, one for each member"
            )
        bounds = np.rint(np.cumsum(shares) * num_clients).astype(np.int64)
        return np.repeat(np.arange(num), np.diff(bounds, prepend=0))


def family(
    *,
    of: list[Any] | dict[str, Any],
    assign: str | list[str],
    shares: list[float] | None,
    feature_dim: Count | None,
    common: dict[str, Any] | str | None,
) -> Family:
    """Clients' models of several architectures; options are as of `Family`.

    `of` are members by name, after names of options were replaced by these options; names of
    `assign` may be in a file. `common` is a small model that all clients share, for algorithms
    with two models.

    Raises:
        ValueError: if there is no member.
    """
    if not isinstance(of, dict) or not of:
        raise ValueError(f"model.of={of}: allowed: options of model=, at least one")
    return Family(of, assign, shares, feature_dim, common)
