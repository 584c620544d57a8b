"""HeteroFL and FedRolex against their equations, in plain torch and double precision."""

from itertools import product

import pytest
import sliced_runs
import torch
from sampling import others_slow
from sliced_runs import EPOCHS, FAMILY, MLPS, ROUNDS, WAYS, last_row, mlp, population, rounds_of
from torch.nn import functional as F

import flfast

HETEROFL = (*FAMILY, MLPS, "algorithm=heterofl")
SIZES = [8 * (5 * width + width + 3 * width + 3) for width in sliced_runs.WIDTHS]


def expected(w, *, masked, **options):
    x, y, owner = population()

    def rows(k):
        return torch.isin(torch.arange(3), y[owner == k]).double()

    def local(_, k, own):
        mine, labels = x[owner == k], y[owner == k]
        factor = rows(k) if masked else 1
        for _ in range(EPOCHS):
            own = sliced_runs.stepped(
                own, lambda w: F.cross_entropy(mlp(w, mine) * factor, labels)
            )
        return own

    return rounds_of(w, local, rows=rows if masked else None, **options)


CASES = [*product((True, False), WAYS)]


@pytest.mark.parametrize(("masked", "way"), others_slow(CASES, [(True, "eager"), (True, "fused")]))
def test_rounds_follow_the_paper(tmp_path, masked, way):
    words = (*HETEROFL, f"algorithm.masked={masked}".lower())
    wanted = expected(sliced_runs.initial(tmp_path / "initial", *words), masked=masked)
    found = sliced_runs.run(tmp_path / "run", *words, f"rounds={ROUNDS}", *WAYS[way])
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-9)
    row = last_row(tmp_path / "run")
    # The server is told each client's classes.
    assert float(row["comm/up_bytes"]) == sum(SIZES) + masked * 4 * 3 * 8
    assert float(row["comm/down_bytes"]) == sum(SIZES)


@pytest.mark.parametrize("engine", others_slow(["eager", "fused"], ["fused"]))
def test_windows_of_fedrolex_roll(tmp_path, engine):
    words = (*FAMILY, MLPS, "algorithm=fedrolex")
    w = sliced_runs.initial(tmp_path / "initial", *words)
    found = sliced_runs.run(tmp_path / "run", *words, f"rounds={ROUNDS}", *WAYS[engine])

    def window(t, width):  # the widest ones have all units at their place
        return torch.arange(width) if width == 6 else (torch.arange(width) + t) % 6

    wanted = expected(w, masked=True, window=window)
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-9)


def test_a_client_does_not_predict_classes_that_it_has_no_examples_of(tmp_path, monkeypatch):
    """Each client has one example, several times."""
    rng = torch.Generator().manual_seed(1)
    x, y = torch.randn(4, 5, generator=rng), torch.tensor([0, 1, 2, 1])
    owner = torch.arange(4).repeat_interleave(6)
    monkeypatch.setattr(sliced_runs, "population", lambda shape: (x[owner], y[owner], owner))
    words = (*HETEROFL, "split.test=0.5", "eval_every=1")
    w = sliced_runs.initial(tmp_path / "run", *words)
    losses = []
    for k, width in enumerate(sliced_runs.WIDTHS):
        units = {"fc1.weight": w["fc1.weight"][:width], "fc1.bias": w["fc1.bias"][:width]}
        logits = mlp({**w, **units, "fc.weight": w["fc.weight"][:, :width]}, x[k : k + 1])
        losses.append(F.cross_entropy(logits * F.one_hot(y[k], 3), y[k : k + 1]))
    found = float(last_row(tmp_path / "run")["personal/loss"])
    assert found == pytest.approx(float(sum(losses)) / 4, rel=1e-6)


@pytest.mark.parametrize("engine", others_slow(["auto", "eager"], ["eager"]))
def test_a_selection_by_reports_sees_slices(tmp_path, engine):
    words = (*FAMILY, MLPS, "algorithm=fedrolex", "selection=oort", "selection.count=3")
    found = sliced_runs.run(tmp_path / "run", *words, "rounds=2", f"engine={engine}")
    assert all(leaf.isfinite().all() for leaf in found.values())


def test_statistics_of_a_slice_cannot_stay_on_a_client(tmp_path):
    of = "model.of=[{heterofl_cnn:{channels:[4]}},{heterofl_cnn:{channels:[2]}}]"
    words = (*FAMILY, of, "algorithm=heterofl", "bn=local", "rounds=1")
    with pytest.raises(flfast.ConfigError, match="whose clients have slices of the model"):
        sliced_runs.run(tmp_path / "run", *words, shape=(1, 4, 4))


@pytest.mark.slow
def test_layers_that_normalise_over_units_are_no_slices(tmp_path, caplog):
    net = "{_target_:sliced_runs.normalised,_partial_:true,units:%d}"
    of = f"model.of=[{net % 6},{net % 3}]"
    sliced_runs.run(tmp_path / "run", *FAMILY, of, "algorithm=heterofl", "rounds=1")
    assert "normalised-2 is not the first member without some of its units" in caplog.text
    caplog.clear()
    sliced_runs.run(tmp_path / "plain", *HETEROFL, "rounds=1")
    assert "without some of its units" not in caplog.text


def test_slices_of_the_whole_width_are_fedavg(tmp_path):
    twice = "model.of=[{mlp:{hidden:[6]}},{mlp:{hidden:[6]}}]"
    words = ("rounds=3", "engine=eager")
    slices = (*FAMILY, twice, "algorithm=heterofl", "algorithm.masked=false")
    plain = ("model=mlp", "model.hidden=[6]", "algorithm=fedavg", "algorithm.weighting=uniform")
    found, other = (
        sliced_runs.run(tmp_path / name, *words, *way)
        for name, way in (("slices", slices), ("plain", plain))
    )
    torch.testing.assert_close(found, other, rtol=1e-9, atol=1e-9)


REFUSED = [
    ([MLPS.replace("[6]", "[1]")], "the first member must be the largest"),
    (["selection=power_of_choice", "selection.count=2"], "of which they have a part"),
    (["attack=alie"], "its uploads are parts of the model of different sizes"),
    (["model.of=[{mlp:{hidden:[6]}},logistic]"], "the first member must be the largest"),
    (["aggregation=median"], "its uploads are parts of the model of different sizes"),
    (["secure=masks"], "its uploads are parts of the model of different sizes"),
    (["audit=gradient_inversion"], "its uploads are parts of the model of different sizes"),
]


@pytest.mark.parametrize(("words", "message"), others_slow(REFUSED, REFUSED[:3]))
def test_what_slices_cannot_do_is_refused(tmp_path, words, message):
    with pytest.raises(flfast.ConfigError, match=message):
        sliced_runs.run(tmp_path / "run", *HETEROFL, *words, "rounds=1")
