"""FjORD against its equations, in plain torch and double precision."""

from itertools import product

import pytest
import sliced_runs
import torch
from sampling import others_slow
from sliced_runs import EPOCHS, FAMILY, MLPS, ROUNDS, WAYS, WIDTHS, mlp, population, rounds_of
from torch.nn import functional as F

from flfast.state.randomness import torch_generator
from flfast.state.traced_noise import traced_index


def expected(w, *, distill):
    """Local models of width p use the leading p units of a layer, and no others."""
    x, y, owner = population()

    def local(t, k, own):
        mine, labels = x[owner == k], y[owner == k]
        widths = [width for width in (6, 3, 2) if width <= WIDTHS[k]]
        rng = torch_generator(0, "algorithm: widths", t + 1, k)
        key = torch.randint(2**62, (), generator=rng)
        for step in range(EPOCHS):
            p = widths[int(traced_index(key, torch.tensor(step), len(widths)))]

            def loss(w, p=p):
                parts = {"fc1.weight": w["fc1.weight"][:p], "fc1.bias": w["fc1.bias"][:p]}
                narrow = mlp({**w, **parts, "fc.weight": w["fc.weight"][:, :p]}, mine)
                if not distill:
                    return F.cross_entropy(narrow, labels)
                wide = mlp(w, mine)
                taught = F.cross_entropy(narrow, wide.detach().softmax(1))
                return F.cross_entropy(wide, labels) + taught

            own = sliced_runs.stepped(own, loss)
        return own

    return rounds_of(w, local, weights=owner.bincount().tolist())


CASES = [*product((True, False), ("eager", "fused"))]


@pytest.mark.parametrize(("distill", "way"), others_slow(CASES, CASES[:1]))
def test_rounds_follow_the_paper(tmp_path, distill, way):
    words = (*FAMILY, MLPS, "algorithm=fjord", f"algorithm.distill={distill}".lower())
    wanted = expected(sliced_runs.initial(tmp_path / "initial", *words), distill=distill)
    found = sliced_runs.run(tmp_path / "run", *words, f"rounds={ROUNDS}", *WAYS[way])
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-9)
