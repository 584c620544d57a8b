"""The table of docs/privacy.md: noise of `privacy=dp_ftrl` by mechanism.

`python -m docs.banded_noise` prints it. No run is needed: noise depends on rounds alone.
"""

from collections.abc import Iterator

import torch

from flfast.channel.privacy.participation import Participation
from flfast.channel.privacy.privacy import Privacy
from flfast.state.tree import Tree
from flfast.zoo.channel.privacy.dp_ftrl import DpFtrl

CASES = ((30, 10), (100, 10), (100, 50), (100, 100), (500, 50), (500, 500), (2000, 200))
"""Rounds, rounds of a pass over the clients."""
BANDS = (1, 4, 10, 32, 100)


def noise_of_sums(privacy: Privacy, rounds: int) -> float:
    """Root of the mean over rounds of the variance of the noise in the sum of changes, over C.

    Each round's independent noise is followed on its own: element k of a vector is the weight of
    the k-th noise that was drawn.
    """
    assert privacy.central_noise is not None
    drawn: dict[tuple[int, ...], int] = {}

    def unit(like: dict[str, torch.Tensor], *path: int) -> dict[str, torch.Tensor]:
        place = drawn.setdefault(path, len(drawn))
        basis = torch.zeros_like(like["w"])
        basis[place] = 1
        return {"w": basis}

    like: Tree = {"w": torch.zeros(3 * rounds, dtype=torch.float64)}
    memory: Tree = {}
    total, squares = torch.zeros_like(like["w"]), 0.0
    for round_idx in range(1, rounds + 1):
        noise = privacy.central_noise(like, privacy.central_multiplier, round_idx, unit)
        if privacy.correlate is not None:
            noise, memory = privacy.correlate(noise, round_idx, memory)
        total += noise["w"]
        squares += float(total @ total)
    return (squares / rounds) ** 0.5


def privacy_of(rounds: int, per_pass: int, bands: int | None) -> Privacy:
    """What `privacy=dp_ftrl` makes for epsilon 8; without bands, the tree."""
    make = DpFtrl(
        mechanism="tree" if bands is None else "banded",
        bands=bands,
        clip_norm=1.0,
        noise_multiplier=None,
        epsilon=8.0,
        delta=1e-5,
        max_epsilon=None,
        secure=False,
    )
    return make(participation=Participation("cyclic", per_pass, 1, 1), rounds=rounds)


def line(rounds: int, per_pass: int) -> str:
    """A line of the table."""
    tree = noise_of_sums(privacy_of(rounds, per_pass, None), rounds)
    found = {
        bands: noise_of_sums(privacy_of(rounds, per_pass, bands), rounds)
        for bands in (*(bands for bands in BANDS if bands < per_pass), per_pass)
    }
    cells = [f"{found[bands]:.2f}" if bands in found else "" for bands in BANDS]
    most = f"{found[per_pass]:.2f}", f"{found[per_pass] / tree:.2f}"
    found_cells = [str(rounds), str(per_pass), f"{tree:.2f}", *cells, *most]
    return "|" + "|".join(f" {cell} " if cell else " " for cell in found_cells) + "|"


def table() -> Iterator[str]:
    """Lines of the table."""
    names = [f"{bands} band{'s' * (bands > 1)}" for bands in BANDS]
    heads = ("rounds", "rounds of a pass", "tree", *names, "most bands", "most bands / tree")
    yield f"| {' | '.join(heads)} |"
    yield "|" + "---|" * len(heads)
    for rounds, per_pass in CASES:
        yield line(rounds, per_pass)


if __name__ == "__main__":
    print("\n".join(table()))  # noqa: T201 - the output of the command
