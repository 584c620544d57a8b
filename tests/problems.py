"""Small random federations as plain values, which any process can build and run."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from flfast.algorithms.contract.algorithm import Algorithm
from flfast.algorithms.ditto import ditto
from flfast.algorithms.fedavg import fedavg
from flfast.algorithms.fedprox import fedprox
from flfast.algorithms.kit.keep_local import keep_local
from flfast.algorithms.kit.local_optimizer import average_optimizer, keep_optimizer
from flfast.algorithms.local import local
from flfast.algorithms.scaffold import scaffold
from flfast.datamodules.examples import Examples
from flfast.datamodules.federated import FederatedDataModule, Split
from flfast.datamodules.fetching import Loading
from flfast.datamodules.transforms import BatchTransform
from flfast.lit.batchnorm import batchnorm_weights
from flfast.models.adapters.lora import lora
from flfast.state.plan import Batching
from flfast.state.tree import Tree, scaled
from flfast.state.weights import read_weights
from flfast.tasks.task_type import IGNORED

OPTIMIZERS = {
    "sgd": torch.optim.SGD,
    "momentum": partial(torch.optim.SGD, momentum=0.9),
    "nesterov": partial(torch.optim.SGD, momentum=0.9, nesterov=True, weight_decay=0.01),
    "adam": torch.optim.Adam,
    "adamw": partial(torch.optim.AdamW, weight_decay=0.1),
}
SGD = ("sgd", "momentum", "nesterov")
TOKENS = 3
"""Positions of an example of `language`."""
STATISTICS = ("aggregate", "local", "recalibrate")  # policies that use batch statistics


@dataclass(frozen=True)
class Problem:
    """Everything that determines the numbers of a run, and nothing of how it is executed.

    Attributes:
        sizes: examples of each client before val and test are held out.
        num_test: examples of the central test set; with 0 it is the union of the clients'.
        split: shares held out for (val, test).
        model: key of `MODELS`, or `lora`: an `mlp` with an adapter.
        num_features: features of an input, or channels of an image.
        num_classes: C.
        batchnorm: the policy `bn`; None for a model without BatchNorm.
        algorithm: key of `ALGORITHMS` or `OTHERS`.
        weighting: of uploads.
        optimizer: key of `OPTIMIZERS`.
        optimizer_state: `local_optimizer_state`.
        lr: local learning rate.
        batching: how examples become local steps.
        local_epochs: None if local_steps is set.
        local_steps: None if local_epochs is set.
        fraction: share of the population in a cohort.
        count: number of clients in a cohort, instead of a fraction.
        dropout: probability that a chosen client drops out.
        clip: (value, algorithm) of gradient clipping, or None.
        limit: `limit_train_batches`.
        rounds: how many.
        precision: `trainer.precision`.
        seed: of data, weights and run.
        adversary: key of `ADVERSARIES`, or None.
        compression: key of `COMPRESSIONS`, or None.
        pace: key of `PACES` in `solving.py`.
        task: of the data; the model gets random inputs for any task.
        server_examples: examples of the server's own.
    """

    sizes: tuple[int, ...]
    num_test: int
    split: tuple[float, float]
    model: str
    num_features: int
    num_classes: int
    batchnorm: str | None
    algorithm: str
    weighting: str
    optimizer: str
    optimizer_state: str
    lr: float
    batching: Batching
    local_epochs: int | None
    local_steps: int | None
    fraction: float
    count: int | None
    dropout: float
    clip: tuple[float, str] | None
    limit: float | int
    rounds: int
    precision: str
    seed: int
    adversary: str | None = None
    compression: str | None = None
    pace: str = "rounds"
    task: str = "classification"
    server_examples: int = 0

    def with_batching(self, **changes: object) -> "Problem":
        """A copy with other batching options."""
        return replace(self, batching=self.batching._replace(**changes))

    def without_batch_statistics(self) -> "Problem":
        """A copy with frozen BatchNorm, if any, so that batches may be split."""
        if self.batchnorm not in STATISTICS:
            return self
        return replace(self.with_batching(drop_single=False), batchnorm="frozen")


def problem_of(seed: int) -> Problem:
    """A random problem that tolerates 1e-9 in double precision, or 1e-5 in single precision.

    Single precision is drawn only for smooth models with SGD, because others amplify rounding: so
    do ReLU and BatchNorm, and Adam makes a full step of random sign from a gradient that is zero
    up to rounding. With batch statistics no batch has a single example, which BatchNorm refuses.
    """
    rng = np.random.default_rng(seed)

    def pick(options: Iterable[Any]) -> Any:
        options = list(options)
        return options[rng.integers(len(options))]

    single = pick([False, False, False, True])
    optimizer = pick(SGD if single else OPTIMIZERS)
    algorithm = pick(ALGORITHMS)
    batchnorm = pick([None] if single else [None, None, None, *STATISTICS, "frozen"])
    statistics = batchnorm in STATISTICS
    full_batch = pick([False, False, False, True])
    steps = pick([None, None, 1, 2, 5])
    low, high = (0.01, 0.1) if optimizer in SGD else (0.001, 0.01)
    held_out = [0.0, 0.2, 0.3]
    return Problem(
        sizes=tuple(rng.integers(6 if statistics else 1, 14, size=rng.integers(1, 6)).tolist()),
        num_test=pick([0, 9]),
        split=(pick(held_out), pick(held_out)),
        model=pick(["linear", "mlp"] if single else MODELS),
        num_features=pick(range(1, 6)),
        num_classes=pick(range(2, 5)),
        batchnorm=batchnorm,
        algorithm=algorithm,
        weighting=pick(["samples", "uniform"]),
        optimizer=optimizer,
        optimizer_state=pick(["reset", "keep", *["average"] * (algorithm != "local")]),
        lr=float(rng.uniform(low, high)),
        batching=Batching(
            batch_size=-1 if full_batch else pick(range(2 if statistics else 1, 7)),
            accumulate=1 if full_batch else pick([1, 2, 3]),
            micro_batch=None if statistics else pick([None, None, 1, 2, 4]),
            last_batch=pick(["keep", "drop", "pad"]),
            drop_single=statistics,
        ),
        local_epochs=pick([1, 2, 3]) if steps is None else None,
        local_steps=steps,
        fraction=pick([0.3, 0.6, 1.0]),
        count=None,
        dropout=pick([0.0, 0.0, 0.3]),
        clip=pick([None, None, (0.1, "norm"), (1.0, "norm"), (0.05, "value")]),
        limit=pick([1.0, 1.0, 1.0, 0.5, 2]),
        rounds=pick([1, 2, 3]),
        precision="32-true" if single else "64-true",
        seed=seed,
        pace=pick(["rounds", "rounds", "rounds", "deadline", "buffered", "async"]),
        task=pick(["classification", "classification", "language", "regression", "multilabel"]),
    )


def linear(problem: Problem) -> list[nn.Module]:
    width = problem.num_features
    return [*_norm(problem, nn.BatchNorm1d, width), _head_of(problem, width)]


def mlp(problem: Problem) -> list[nn.Module]:
    layers = [nn.Linear(problem.num_features, 6), *_norm(problem, nn.BatchNorm1d, 6)]
    return [*layers, nn.Tanh(), _head_of(problem, 6)]


def conv(problem: Problem) -> list[nn.Module]:
    layers = [
        nn.Conv2d(problem.num_features, 3, 3, padding=1),
        *_norm(problem, nn.BatchNorm2d, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
    ]
    return [*layers, nn.Flatten(), _head_of(problem, 12)]


class TokenHead(nn.Linear):
    """Logits of `TOKENS` positions."""

    def forward(self, x):
        return super().forward(x).unflatten(-1, (TOKENS, -1))


def _head_of(problem: Problem, width: int) -> nn.Linear:
    if problem.task == "language":
        return TokenHead(width, TOKENS * problem.num_classes)
    return nn.Linear(width, problem.num_classes)


def _norm(problem: Problem, layer: type[nn.Module], width: int) -> list[nn.Module]:
    return [] if problem.batchnorm is None else [layer(width)]


MODELS: dict[str, Callable[[Problem], list[nn.Module]]] = {
    "linear": linear,
    "mlp": mlp,
    "conv": conv,
}


def make_model(problem: Problem) -> nn.Sequential:
    """The problem's model with its initial weights."""
    torch.manual_seed(problem.seed)  # noqa: TID251 - a test's own model
    if problem.model != "lora":
        return nn.Sequential(*MODELS[problem.model](problem))
    model = nn.Sequential(*mlp(problem))
    options = {"alpha": 2.0, "dropout": 0.0, "target_modules": None, "train_bias": True}
    lora(model, rank=2, freeze_a=False, base_bits=None, **options)
    return model


def _head(model: nn.Sequential, initial: Tree) -> Tree:
    last = f"{len(model) - 1}."
    params = {name: leaf for name, leaf in initial["params"].items() if name.startswith(last)}
    return {"params": params, "buffers": {}}


def _averaged_steps(weighting: str) -> Algorithm:
    """All features of the contract at once: gradient correction, step counts, client states."""

    def correct(grads, params, ctx):
        drift = {name: (params[name] - ctx.start["params"][name]).detach() for name in grads}
        return {name: grads[name] + ctx.lr * drift[name] + ctx.client["last"] for name in grads}

    def finish(done, ctx):
        change = ctx.change(done.weights)
        params = scaled(change["params"], 1 / done.num_steps)
        last = ctx.client["last"] / 2 + done.num_examples / 1000
        return {**change, "params": params}, {"last": last}

    return Algorithm(
        name="averaged steps",
        weighting=weighting,
        client_state=lambda broadcast: {"last": torch.zeros((), dtype=torch.float64)},
        correct=correct,
        finish=finish,
    )


ALGORITHMS: dict[str, Callable[[Problem, nn.Sequential, Tree], Algorithm]] = {
    "fedavg": lambda p, model, initial: fedavg(weighting=p.weighting),
    "fedprox": lambda p, model, initial: fedprox(mu=0.5, weighting=p.weighting),
    "local": lambda p, model, initial: local(initial=initial),
    "keep_local": lambda p, model, initial: keep_local(
        fedavg(weighting=p.weighting), _head(model, initial)
    ),
    "averaged_steps": lambda p, model, initial: _averaged_steps(p.weighting),
}

OTHERS: dict[str, Callable[[Problem, nn.Sequential, Tree], Algorithm]] = {
    "scaffold": lambda p, model, initial: scaffold(
        server_lr=1.0, momentum=0.0, nesterov=False, local_optimizer_state="reset"
    ),
    "ditto": lambda p, model, initial: ditto(lam=0.5, weighting=p.weighting),
}
"""Algorithms that `problem_of` does not draw."""


def make_algorithm(problem: Problem, model: nn.Sequential) -> Algorithm:
    """The problem's algorithm in the wrappers of `setup.build_algorithm.build_algorithm`."""
    initial = read_weights(model)
    algorithm = {**ALGORITHMS, **OTHERS}[problem.algorithm](problem, model, initial)
    if problem.batchnorm == "local":
        algorithm = keep_local(algorithm, batchnorm_weights(model, initial))
    wrap = {"reset": lambda a: a, "keep": keep_optimizer, "average": average_optimizer}
    return wrap[problem.optimizer_state](algorithm)


def make_data(problem: Problem) -> FederatedDataModule:
    """The problem's data, set up. The first feature identifies an example."""
    rng = torch.Generator().manual_seed(problem.seed)
    num_train = sum(problem.sizes) + problem.server_examples
    num = num_train + problem.num_test
    shape = (problem.num_features, *((4, 4) if problem.model == "conv" else ()))
    targets = torch.randint(problem.num_classes, (num,), generator=rng)
    centres = torch.randn(problem.num_classes, *shape, generator=rng)
    inputs = centres[targets] + torch.randn(num, *shape, generator=rng)
    examples = Examples(
        inputs=inputs,
        targets=_targets(problem, targets, rng),
        num_classes=problem.num_classes,
        input_shape=shape,
        transform=BatchTransform(),
        is_test=np.arange(num) >= num_train if problem.num_test else None,
        task=problem.task,
    )
    owner = np.repeat(np.arange(len(problem.sizes)), problem.sizes)
    data = FederatedDataModule(
        lambda: examples,
        lambda num_examples: owner,
        seed=problem.seed,
        split=Split(*problem.split, server_examples=problem.server_examples),
        loading=Loading(eval_batch_size=7),
    )
    data.setup()
    return data


def _targets(problem: Problem, classes: torch.Tensor, rng: torch.Generator) -> torch.Tensor:
    """Targets of the problem's task; examples of `language` have one to three tokens."""
    num, width = len(classes), problem.num_classes
    if problem.task == "language":
        tokens = torch.randint(width, (num, TOKENS), generator=rng)
        tokens[:, 1:][torch.rand(num, TOKENS - 1, generator=rng) < 0.5] = IGNORED
        return tokens
    if problem.task == "regression":
        return torch.randn(num, width, generator=rng)
    if problem.task == "multilabel":
        return torch.randint(2, (num, width), generator=rng, dtype=torch.uint8)
    return classes
