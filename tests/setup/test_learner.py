"""The learner of a run: what is built before round 1."""

from contextlib import closing

import pytest
import torch
from hydra import compose, initialize_config_dir
from sampling import others_slow, rotating
from tables import rows
from torch import nn

from flfast.config.own import Own
from flfast.setup.learner import learner_of
from flfast.state.tree import leaves
from flfast.state.weights import read_weights
from flfast.train import CONF

PRECISIONS = ("32-true", "bf16-mixed", "bf16-true", "16-true", "64-true")
# A model that a program gives, and what reads or changes the initial weights.
WAYS = {
    "float32": (torch.float32, []),
    "float64": (torch.float64, []),
    "bfloat16": (torch.bfloat16, []),
    "adapter": (torch.float32, ["adapter=lora", "bn=frozen"]),
    "init_from": (torch.float32, ["init_from=weights.pt"]),
}


def net(dtype):
    torch.manual_seed(2)  # noqa: TID251 - a test's own model
    layers = (nn.Linear(64, 6), nn.BatchNorm1d(6), nn.Linear(6, 10))
    return nn.Sequential(nn.Flatten(), *layers).to(dtype)


@pytest.mark.parametrize(("precision", "way"), rotating(PRECISIONS, WAYS, every=3))
def test_initial_weights_have_the_data_type_of_means_of_uploads(
    precision, way, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    dtype, words = WAYS[way]
    saved = net(torch.float64).state_dict()
    saved["1.bias"] += 1e-12  # which single precision would lose
    torch.save(saved, "weights.pt")
    with initialize_config_dir(CONF, version_base="1.3"):
        config = compose("config", [f"trainer.precision={precision}", *words])
    model = net(dtype)
    learner = learner_of(config, Own(model=model))
    with closing(learner.data):
        found = read_weights(learner.module.model)
    wanted = torch.float64 if precision == "64-true" else torch.float32
    for tree in (learner.initial, found):
        assert {leaf.dtype for leaf in leaves(tree) if leaf.is_floating_point()} == {wanted}
    torch.testing.assert_close(learner.initial, found, rtol=0, atol=0)
    assert {p.dtype for p in model.parameters()} == {dtype}  # the program's own stays
    if way == "init_from":
        bias = learner.initial["params"]["1.bias"]
        assert torch.equal(bias, saved["1.bias"].to(wanted))


CUTS = ["trainer.accumulate_grad_batches=3", "micro_batch=2"]


@pytest.mark.parametrize("change", others_slow(CUTS, CUTS[1:]))
def test_a_later_phase_that_cuts_whole_batches_is_refused_before_round_1(
    flfast_run, capfd, tmp_path, change
):
    phases = f"schedule.phases=[{{from: 2, overrides: ['batch_size=4', '{change}']}}]"
    with pytest.raises(SystemExit):
        flfast_run("experiment=quick", "algorithm=pfedme", phases)
    assert f"algorithm=pfedme needs whole batches, which {change} cuts" in capfd.readouterr().err
    assert not (tmp_path / "run" / "metrics.csv").exists()


@pytest.mark.parametrize(
    "precision", others_slow(["32-true", "64-true", "bf16-true"], ["bf16-true"])
)
def test_round_1_sends_as_many_bytes_as_later_rounds(flfast_run, precision):
    small = ("experiment=quick", "callbacks=none", "model.hidden=[8]", "devices=ideal")
    small += ("rounds=2", "engine=eager")
    folder = flfast_run(*small, f"trainer.precision={precision}")
    first, *others = [row["comm/down_bytes"] for row in rows(folder)[1:]]
    assert {first} == {*others}


@pytest.mark.slow
def test_each_phase_has_its_own_precision(flfast_run):
    small = ("experiment=quick", "callbacks=none", "model.hidden=[8]", "rounds=3")
    phases = ((2, "64-true"), (3, "32-true"))
    given = ", ".join(f"{{from: {n}, overrides: ['trainer.precision={p}']}}" for n, p in phases)
    losses = []
    for engine in ("fused", "eager"):
        folder = flfast_run(
            *small, f"engine={engine}", f"schedule.phases=[{given}]", run_dir=engine
        )
        table = rows(folder)
        assert [row["plan/precision"] for row in table[1:]] == ["32-true", "64-true", "32-true"]
        losses.append([float(row["global/loss"]) for row in table])
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
