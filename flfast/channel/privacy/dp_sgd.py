"""DP-SGD within local training: every local step hides each single example.

Abadi, Chu, Goodfellow, McMahan, Mironov, Talwar, Zhang: Deep Learning with Differential Privacy.
CCS 2016, Algorithm 1. https://arxiv.org/abs/1607.00133

    g = (sum_i g_i * min(1, C / |g_i|) + N(0, (z C)^2)) / batch size

It protects a client's examples against everybody who sees what the client sends, the server
included. It does not hide that a client takes part, nor what its examples have in common.

Batches of a local epoch are disjoint parts of the client's examples in a random order, so an
example is in one step of each epoch. An epoch is therefore one Gaussian mechanism, without
amplification by sampling. Epochs and rounds compose, as often as a client can take part.
Neighbouring data sets differ in one example whose gradient is zero: an example less would move all
batches.

A partial last batch is divided by the same batch size. With less, its noise would be larger.
What would break these assumptions, such as `last_batch=pad`, is refused (`OF_STEPS`).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase

from flfast.algorithms.contract import (
    Algorithm,
    Context,
    Finished,
    Gradient,
    LocalStage,
    Objective,
    Task,
)
from flfast.algorithms.kit.wrapping import viewed
from flfast.channel.privacy.accountants import composed_gaussian
from flfast.channel.privacy.budget import Budget
from flfast.channel.privacy.participation import Participation
from flfast.channel.privacy.per_example import clipped_sum
from flfast.channel.privacy.privacy import Privacy, StepNoise
from flfast.datamodules.batches import Batch
from flfast.state.options import BatchSize, Count
from flfast.state.traced_noise import traced_normal
from flfast.state.tree import Tree, merge

KEY, STEP = "privacy/key", "privacy/step"
"""Buffers of local training beside the model's: of the client's noise, and steps taken."""


@dataclass(frozen=True, kw_only=True)
class DpSgd(Budget):
    """Local training with clipped gradients of single examples, and noise in every step.

    See `Budget`. At most `micro_batch` examples' gradients are in memory at once.
    """

    micro_batch: Count

    def __call__(
        self,
        *,
        participation: Participation,
        rounds: int,
        batch_size: BatchSize,
        local_epochs: int | None,
        local_steps: int | None,
    ) -> StepNoise:
        """The privacy of a run, in which sums are divided by `batch_size`; -1: all examples.

        Epsilon is that of a client which takes part as often as one can, and of an example that
        may be in each of the local steps, since its client may be small.

        Raises:
            ValueError: with key, value and what is allowed.
        """
        passes, most_rounds = local_epochs or local_steps or 1, participation.most_rounds
        spent = self.spending(
            lambda z: composed_gaussian(z, self.delta, lambda r: passes * most_rounds(r)), rounds
        )
        std = spent.multiplier * (self.clip_norm or 0.0)
        return Privacy(
            name="dp_sgd",
            wrap=partial(_with_gradient, noisy=partial(self._noisy, std, batch_size)),
            check_model=check_independent,
            epsilon=spent.epsilon,
            delta=self.delta,
            unit="example",
            adjacency="zero out",
            rounds=spent.rounds,
        )

    def _noisy(self, std: float, batch_size: int, objective: Objective) -> Gradient:
        """The gradient of an objective, with noise of this standard deviation."""

        def gradient(task: Task, params: Tree, batch: Batch, ctx: Context) -> tuple[Tensor, Tree]:
            given = {name: leaf for name, leaf in params.items() if name not in {KEY, STEP}}
            loss, sums, counted = clipped_sum(
                lambda weights, part: objective(task, weights, part, ctx),
                *(task, given, batch),
                clip_norm=self.clip_norm,
                micro_batch=self.micro_batch,
            )
            with torch.no_grad():
                if std:
                    noise = traced_normal(params[KEY], params[STEP], sums)
                    sums = {name: leaf + std * noise[name] for name, leaf in sums.items()}
                    params[STEP].add_(1)
                size = counted if batch_size == -1 else counted.new_tensor(float(batch_size))
                return loss, {name: leaf / size.to(leaf.dtype) for name, leaf in sums.items()}

        return gradient


def check_independent(model: nn.Module) -> None:
    """Refuse a model in which an example's gradient depends on other examples.

    Raises:
        ValueError: naming the layer, and what is allowed.
    """
    for name, layer in model.named_modules():
        if not isinstance(layer, _NormBase):
            continue
        frozen = layer.affine and not any(p.requires_grad for p in layer.parameters())
        if (isinstance(layer, _BatchNorm) or layer.track_running_stats) and not frozen:
            raise ValueError(
                f"privacy=dp_sgd: layer {name} of the model is a {type(layer).__name__}, whose "
                f"statistics mix examples; allowed: a model without it, such as model.norm=group, "
                f"or bn=frozen"
            )


def _with_gradient(algorithm: Algorithm, *, noisy: Callable[[Objective], Gradient]) -> Algorithm:
    """The algorithm, of one objective, with noisy gradients in local training."""
    views = {"context": lambda ctx: ctx._replace(start=_without_noise(ctx.start))}
    algorithm = viewed(algorithm, views)
    (stage,) = algorithm.training_stages
    objective, _ = algorithm.objective(stage)
    gradient, begin = noisy(objective), partial(_begin, stage)
    stage = stage._replace(loss=None, gradient=gradient, begin=begin)

    def start(broadcast: Tree, client: Tree) -> Tree:
        zero = torch.zeros((), dtype=torch.int64)
        return merge(algorithm.start(broadcast, client), {"buffers": {KEY: zero, STEP: zero}})

    def finish(done: Finished, ctx: Context) -> tuple[Tree, Tree]:
        return algorithm.finish(done._replace(weights=_without_noise(done.weights)), ctx)

    return replace(algorithm, start=start, stages=(stage,), finish=finish)


def _begin(stage: LocalStage, weights: Tree, ctx: Context) -> Tree:
    """Weights that the stage starts from, with a new key."""
    if stage.begin is not None:
        own = {name: weights["buffers"][name] for name in (KEY, STEP)}
        weights = merge(stage.begin(_without_noise(weights), ctx), {"buffers": own})
    key = torch.randint(2**62, (), generator=ctx.generator("dp_sgd noise"))
    return merge(weights, {"buffers": {KEY: key}})


def _without_noise(weights: Tree) -> Tree:
    buffers = {n: leaf for n, leaf in weights["buffers"].items() if n not in {KEY, STEP}}
    return {**weights, "buffers": buffers}
