"""Chains of kills: runs with everything that a checkpoint must hold, killed again and again."""

import random
from collections.abc import Iterator
from pathlib import Path

from benchmarks.kills import PACES, Case, Outcome, tried

_SEVERAL = ("sampler.fraction=0.6",)
_NOISE = ("privacy.noise_multiplier=1", "privacy.epsilon=null")
CHAINS: dict[str, tuple[tuple[str, ...], str]] = {
    "asynchronous": (("algorithm=fedavg", *PACES["async"]), "single"),
    "buffered, quantised": (("compression=quantize", *PACES["buffered"]), "ddp"),
    "buffered, error feedback": (("compression=topk", *PACES["buffered"]), "single"),
    "masks": (("secure=masks", *_SEVERAL), "single"),
    "masks, SCAFFOLD": (
        ("secure=masks", "algorithm=scaffold", "faults=simulated", "faults.broken=0"),
        "ddp",
    ),
    "central noise": (("privacy=central", *_NOISE, *_SEVERAL), "single"),
    "tree of noise": (
        ("privacy=dp_ftrl", *_NOISE, "sampler=cyclic", "sampler.count=5", "sampler.fraction=1.0"),
        "ddp",
    ),
    "noise of examples": (("privacy=dp_sgd", *_NOISE), "single"),
    "error feedback, Ditto": (("compression=topk", "algorithm=ditto", *_SEVERAL), "single"),
    "low rank": (("compression=powersgd", *_SEVERAL), "ddp"),
    "records": (("algorithm=fedamp", *_SEVERAL), "single"),
    "records of two ranks": (("algorithm=apple", "engine=eager"), "ddp"),
    "selection": (("selection=oort", "selection.count=3"), "single"),
    "kept optimizer": (
        ("local_optimizer_state=keep", "optimizer=adam", "schedule=growing_batch"),
        "ddp",
    ),
    "packed sweep": (("algorithm=fedavg,ditto", "seed=0,1", "hydra/launcher=packed"), "sweep"),
}
"""Overrides, and who runs: a key of `kills.STRATEGIES`, or `sweep`."""


def cases(num: int, seed: int) -> Iterator[tuple[str, Case]]:
    """(name, case) of all chains; they have `num` kills together."""
    rng = random.Random(f"chains {seed}")
    kills = dict.fromkeys(CHAINS, num // len(CHAINS))
    for name in rng.sample([*CHAINS], num % len(CHAINS)):
        kills[name] += 1
    for name, (overrides, who) in CHAINS.items():
        sweep = who == "sweep"
        own = (*overrides, f"seed={rng.randrange(1000)}") if not sweep else overrides
        rounds = 8 * kills[name]
        yield name, Case(own, rounds, kills[name], "single" if sweep else who, sweep)


def judged(case: Case, folder: Path, *, seed: int) -> tuple[str, str]:
    """`identical`, or what is wrong; and what is known of it."""
    try:
        outcome: Outcome = tried(case, folder, seed=seed)
    except RuntimeError as error:
        return "failed", str(error)
    return ("identical" if outcome.clean else "different"), str(outcome)
