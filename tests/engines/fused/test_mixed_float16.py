"""`16-mixed` in the fused engine: loss scales as tensors, against Lightning's with a `GradScaler`.

On a CPU, flfast's configs never compute in float16. Lightning's plugin does.
"""

from functools import partial

import pytest
import torch
from engine_runs import Replaying, engine_of, mlp, ran, with_batchnorm
from lightning.pytorch.plugins import MixedPrecision

from flfast.algorithms.contract.downloads import first_downloads
from flfast.algorithms.fedprox import fedprox
from flfast.algorithms.scaffold import scaffold
from flfast.engines.eager import EagerTraining
from flfast.engines.fused.training import FusedTraining
from flfast.state.plan import Batching

SIZES = [9, 14, 3, 26]
SCAFFOLD = scaffold(server_lr=1.0, momentum=0.0, nesterov=False, local_optimizer_state="reset")


def make_run(make_data, make_federation, *, start=2.0**21, interval=4, data=None, **options):
    scaler = torch.amp.GradScaler("cpu", init_scale=start, growth_interval=interval)
    options.setdefault("trainer", {})
    options["trainer"]["plugins"] = [MixedPrecision("16-mixed", "cpu", scaler)]
    given = {"rounds": 2, "batching": Batching(4, drop_single=True), "local_epochs": 3, **options}
    return make_federation(data or make_data(SIZES), given.pop("model", mlp)(), **given)


def assert_agree(make, engine=FusedTraining, *, stack):
    """The engine gives the numbers of Lightning's loops but for float16's; returns its run."""
    eager, fused = ran(make(), EagerTraining), ran(make(), engine, stack=stack)
    torch.testing.assert_close(fused.weights(), eager.weights(), rtol=2e-3, atol=2e-3)
    losses = [[row["train/loss"] for row in run.history[1:]] for run in (fused, eager)]
    assert losses[0] == pytest.approx(losses[1], rel=2e-3)
    return fused


def skipped(monkeypatch):
    """A list that grows with every step that torch's scaler leaves out."""
    found, step = [], torch.amp.GradScaler._maybe_opt_step

    def watched(self, optimizer, optimizer_state, *args, **kwargs):
        if any(bool(each) for each in optimizer_state["found_inf_per_device"].values()):
            found.append(float(self._scale))
        return step(self, optimizer, optimizer_state, *args, **kwargs)

    monkeypatch.setattr(torch.amp.GradScaler, "_maybe_opt_step", watched)
    return found


def test_batch_statistics_also_move_in_steps_that_are_left_out(make_data, make_federation):
    """A stack of clients would need kernels of batch norm that a CPU does not have."""
    assert_agree(partial(make_run, make_data, make_federation, model=with_batchnorm), stack=1)


@pytest.mark.parametrize("stack", [1, 4])
@pytest.mark.parametrize(
    "options",
    [
        {"optimizer": torch.optim.SGD, "algorithm": SCAFFOLD},
        {"optimizer": partial(torch.optim.SGD, momentum=0.9, weight_decay=0.1, nesterov=True)},
        {"optimizer": partial(torch.optim.AdamW, weight_decay=0.1), "lr": 0.01},
        {"trainer": {"gradient_clip_val": 0.1}, "algorithm": fedprox(mu=0.5, weighting="samples")},
    ],
    ids=["corrected", "nesterov", "adamw", "clipped"],
)
def test_steps_that_overflow_are_left_out_as_by_lightning(
    make_data, make_federation, monkeypatch, options, stack
):
    left_out = skipped(monkeypatch)
    make = partial(make_run, make_data, make_federation, **options)
    assert_agree(make, stack=stack)
    assert len(left_out) >= 2 * len(SIZES)  # in both rounds, by every client
    assert max(left_out) == 2.0**21  # each of which begins with the first scale


def test_micro_batches_have_one_scale(make_data, make_federation, monkeypatch):
    left_out = skipped(monkeypatch)
    batching = Batching(8, micro_batch=3)
    make = partial(make_run, make_data, make_federation, batching=batching)
    assert_agree(make, stack=1)
    assert left_out


def test_recorded_steps_change_the_scale(make_data, make_federation):
    make = partial(make_run, make_data, make_federation)
    fused = assert_agree(make, Replaying, stack=4)
    assert fused.engine.training.recordings() > 0


def test_one_example_that_overflows_costs_one_step_of_its_client(make_data, make_federation):
    """With the first scale of all, of 1; the example is read once in a round."""
    data = make_data([8, 8])
    planted = data.splits["train"].indices_of(1)[0]
    data.examples.inputs[planted] = 6e4
    plan = {"start": 1.0, "data": data, "local_epochs": 1, "rounds": 1}
    plan |= {"batching": Batching(2), "optimizer": partial(torch.optim.SGD, momentum=0.9)}
    make = partial(make_run, make_data, make_federation, **plan)
    fused = assert_agree(make, stack=2)
    assert all(torch.isfinite(leaf).all() for leaf in fused.weights().values())


@pytest.mark.parametrize("engine", [EagerTraining, FusedTraining])
def test_a_client_does_not_depend_on_who_trained_before_it(make_data, make_federation, engine):
    def update(clients):
        federation = make_run(make_data, make_federation)
        found, training = [], engine_of(federation, engine).training
        plan = federation.plans(1, [])
        weights = federation.engine.site.first_weights
        download = first_downloads(federation.algorithm, weights, clients[-1])
        for client in clients:
            training.train([client], download, plan, found.extend)
        return found[-1].done.weights["params"]

    alone, last = update([3]), update([0, 1, 3])
    torch.testing.assert_close(last, alone, rtol=0, atol=0)
