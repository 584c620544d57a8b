"""What an algorithm hands over is never silently lost, and engines hand it the same."""

from dataclasses import replace

import pytest
import torch
from engine_runs import ran
from sampling import others_slow

from flfast.algorithms.fedavg import fedavg
from flfast.channel.aggregations.median import median
from flfast.channel.channel import Channel
from flfast.engines.delivery import Delivery
from flfast.engines.eager import EagerTraining
from flfast.engines.fused.training import FusedTraining
from flfast.state.tree import leaves, tree_map

ENGINES = [EagerTraining, FusedTraining]
FEDAVG = fedavg(weighting="samples")


@pytest.mark.parametrize("engine", ENGINES)
def test_a_state_that_no_client_begins_with_is_an_error(make_data, make_federation, engine):
    algorithm = replace(
        FEDAVG, finish=lambda done, ctx: (ctx.change(done.weights), {"rounds": torch.ones(())})
    )
    federation = make_federation(make_data([4, 6]), algorithm=algorithm)
    with pytest.raises(ValueError, match="algorithm=fedavg: finish returns a client state"):
        ran(federation, engine)


@pytest.mark.parametrize("aggregation", [None, median()])
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda upload: {**upload, "more": torch.ones(2)}, r"leaf more is float32 \[2\], else"),
        (lambda upload: {"params": upload["params"]}, "leaf buffers.calls is missing, elsewhere"),
        (
            lambda upload: {**upload, "buffers": {"calls": torch.zeros(1)}},
            r"leaf buffers.calls is float32 \[1\], elsewhere it is float32 \[\]",
        ),
    ],
)
def test_other_leaves_than_the_first_upload_has_are_an_error(
    make_data, make_federation, aggregation, change, said
):
    def uploaded(done, ctx):
        upload = {**ctx.change(done.weights), "buffers": {"calls": torch.zeros(())}}
        return upload if done.num_examples == 4 else change(upload)

    algorithm = replace(FEDAVG, finish=lambda done, ctx: (uploaded(done, ctx), {}))
    federation = make_federation(make_data([4, 6]), algorithm=algorithm)
    if aggregation is not None:
        federation.engine.channel = Channel(aggregation=aggregation)
    with pytest.raises(ValueError, match=f"client 1: {said}"):
        federation.run()


@pytest.mark.parametrize("diverges", others_slow([False, True], [True]))
def test_a_stack_is_delivered_at_once_as_client_by_client(
    make_data, make_federation, monkeypatch, diverges
):
    """Weights, losses and bytes to the last bit; a client that diverges is left out."""
    found = []
    for direct in (True, False):
        with monkeypatch.context() as patched:
            if not direct:
                patched.setattr(Channel, "only_clips", False)
            calls = []
            patched.setattr(Delivery, "_deliver", counted(Delivery._deliver, calls))
            data = make_data([4, 6, 1, 3, 7, 2])
            federation = make_federation(data, algorithm=FEDAVG)
            if diverges:
                data.examples.inputs[data.train_clients.indices_of(4)] = torch.inf
            plan = federation.plans(1, [])._replace(local_epochs=None, local_steps=3)
            federation.engine.training = FusedTraining(federation.engine.site, {}, stack=3)
            reports = []
            trained = federation.engine.train(
                federation.server, range(6), plan, on_client=reports.append
            )
        assert trained.reports == sorted(reports)
        assert len(calls) == (0 if direct else 6)
        found.append((trained.uploads, reports))
    (at_once, reports), (one_by_one, expected) = found
    assert [r.accepted for r in reports].count(True) == 6 - diverges
    assert repr(reports) == repr(expected)
    assert at_once.num_clients == one_by_one.num_clients
    for left, right in zip(leaves(at_once.mean), leaves(one_by_one.mean), strict=True):
        assert torch.equal(left, right)


def counted(method, calls):
    def called(*args):
        calls.append(args)
        return method(*args)

    return called


def test_what_a_context_offers_is_the_same_on_every_engine(make_data, make_federation):
    """The learning rate is a tensor in every function; noise in `finish` is drawn alike."""
    rates = []

    def loss(task, params, batch, ctx):
        rates.append((type(ctx.lr) is not float, ctx.lr.dtype, ctx.lr.shape))
        return task(params, batch) * ctx.lr

    def finish(done, ctx):
        def noisy(leaf):
            return leaf + ctx.lr * torch.randn(leaf.shape, generator=ctx.generator("noise"))

        change = ctx.change(done.weights)
        return {**change, "params": tree_map(noisy, change["params"])}, {}

    algorithm = replace(
        FEDAVG,
        loss=loss,
        correct=lambda grads, params, ctx: {name: g * ctx.lr for name, g in grads.items()},
        finish=finish,
    )
    eager, fused = (
        ran(make_federation(make_data([4, 6]), algorithm=algorithm, rounds=2), engine).weights()
        for engine in ENGINES
    )
    torch.testing.assert_close(fused, eager, rtol=1e-6, atol=1e-6)
    assert set(rates) == {(True, torch.float64, torch.Size([]))}
    plain = ran(make_federation(make_data([4, 6]), rounds=2), EagerTraining).weights()
    assert not torch.allclose(plain["weight"], eager["weight"], atol=1e-3), "no noise was drawn"


def test_a_finish_that_returns_the_weights_is_an_error(make_data, make_federation):
    algorithm = replace(FEDAVG, finish=lambda done, ctx: ({**done.weights}, ctx.client))
    federation = make_federation(make_data([4, 6]), algorithm=algorithm)
    with pytest.raises(ValueError, match=r"finish returns the weights, .* context.change"):
        federation.run()


@pytest.mark.parametrize("diverges", [False, True])
def test_a_large_upload_is_added_leaf_by_leaf_to_the_same_bits(
    make_data, make_federation, monkeypatch, diverges
):
    def run():
        data = make_data([4, 6, 9, 14])
        if diverges:
            data.examples.inputs[data.train_clients.indices_of(1)] = torch.inf
        return ran(make_federation(data, algorithm=FEDAVG, rounds=3), FusedTraining, stack=1)

    expected = run()
    monkeypatch.setattr("flfast.engines.delivery.LARGE_BYTES", 0)
    found = run()
    pairs = zip(leaves(found.server), leaves(expected.server), strict=True)
    assert all(torch.equal(left, right) for left, right in pairs)
    for rows in zip(found.history, expected.history, strict=True):
        left, right = (
            {k: repr(v) for k, v in row.items() if "time" not in k and not k.endswith("_s")}
            for row in rows
        )
        assert left == right
