"""Stages with objectives, gradients, rates and beginnings of their own, and measures."""

import pytest
import torch
from engine_runs import flat, ran
from sampling import others_slow
from torch import nn
from torch.nn import functional as F

from flfast.algorithms.contract.algorithm import Algorithm
from flfast.algorithms.contract.client import LocalStage, Measure
from flfast.algorithms.kit.gradient import gradient
from flfast.algorithms.kit.keep_local import keep_local
from flfast.algorithms.kit.local_optimizer import keep_optimizer
from flfast.engines.auto import AutoTraining
from flfast.engines.eager import EagerTraining
from flfast.engines.fused.training import FusedTraining
from flfast.state.plan import Batching
from flfast.state.tree import add
from flfast.state.weights import model_weights

LR, ROUNDS, SIZES = 0.1, 2, (9, 4, 6)
DOUBLE = {"precision": "64-true"}
ENGINES = [(EagerTraining, 1), (FusedTraining, 1), (FusedTraining, 3), (AutoTraining, "auto")]


def class_sums(task, weights, batch, _):
    """Sums of the inputs by class, their number, and the sum of the losses."""
    shares = F.one_hot(batch.targets, 3).to(batch.inputs.dtype)
    loss = task(weights, batch) * len(batch.targets)
    return {"sums": shares.T @ batch.inputs, "counts": shares.sum(0), "loss": loss}


def move_to_means(weights, ctx):
    """A step towards the classes' means; the bias gets the shares of the labels."""
    found = ctx.measured["classes"]
    means = found["sums"] / found["counts"].clamp(min=1).unsqueeze(1)
    labels = ctx.facts["labels"] / ctx.facts["examples"] * ctx.facts["round"]
    params = weights["params"]
    return {
        "params": {
            **params,
            "weight": params["weight"] + 0.1 * means,
            "bias": params["bias"] + 0.1 * labels,
        },
        "buffers": weights["buffers"],
    }


def doubled(task, params, batch, _):
    return 2 * task(params, batch)


def pulled(task, params, batch, ctx):
    """The gradient, and a pull to zero as strong as the loss that was measured."""
    value, grads = gradient(task, params, batch, trained=params)
    strength = 0.01 * ctx.measured["again"]["loss"] / ctx.measured["again"]["counts"].sum()
    return value, {name: grad + strength * params[name].detach() for name, grad in grads.items()}


def finish(done, ctx):
    return {**ctx.change(done.weights), "classes": ctx.measured["classes"]}, ctx.client


STAGED = Algorithm(
    name="staged",
    facts=("examples", "labels", "round"),
    stages=(
        Measure("classes", class_sums),
        LocalStage(loss=doubled, lr=0.5, begin=move_to_means),
        Measure("again", class_sums),
        LocalStage(gradient=pulled, trains={"weight"}),
    ),
    finish=finish,
    server_step=lambda server, uploads: {
        **add(server, model_weights(uploads.mean)),
        "classes": uploads.mean["classes"],
    },
)


def expected(data, weights):
    """The same in plain torch: weights and class sums after each round."""
    sums = None
    for round_idx in range(1, ROUNDS + 1):
        ends, found = [], []
        for client in range(len(SIZES)):
            indices = data.train_clients.indices_of(client)
            x, y = data.examples.inputs[indices].double(), data.examples.targets[indices]
            weight, bias = weights["weight"].clone(), weights["bias"].clone()
            shares = F.one_hot(y, 3).double()
            found.append(shares.T @ x)
            weight += 0.1 * found[-1] / shares.sum(0).clamp(min=1).unsqueeze(1)
            bias += 0.1 * shares.sum(0) / len(y) * round_idx
            grads = grad(weight, bias, x, y)
            weight, bias = weight - LR * grads[1], bias - LR * grads[2]
            loss, own, _ = grad(weight, bias, x, y)
            ends.append({"weight": weight - LR * (own + 0.01 * loss * weight), "bias": bias})
        shares = torch.tensor(SIZES).double() / sum(SIZES)
        weights = {
            name: sum(share * end[name] for share, end in zip(shares, ends, strict=True))
            for name in ends[0]
        }
        sums = sum(share * one for share, one in zip(shares, found, strict=True))
    return weights, sums


def grad(weight, bias, x, y):
    weight, bias = weight.clone().requires_grad_(), bias.clone().requires_grad_()
    loss = F.cross_entropy(x @ weight.T + bias, y)
    return (loss.detach(), *torch.autograd.grad(loss, [weight, bias]))


@pytest.fixture
def make(make_data, make_federation):
    def make(algorithm=STAGED, **options):
        torch.manual_seed(1)  # noqa: TID251 - a test's own model
        return make_federation(
            make_data(SIZES),
            nn.Linear(5, 3).double(),
            algorithm=algorithm,
            trainer=DOUBLE,
            lr=LR,
            **{"batching": Batching(-1), "rounds": ROUNDS, **options},
        )

    return make


@pytest.mark.parametrize(
    ("engine", "stack"),
    others_slow(ENGINES, ENGINES[:2]),
)
def test_stages_and_measures_equal_plain_torch(make, engine, stack):
    federation = make(batching=Batching(16))  # larger than any client
    weights, sums = expected(federation.data, federation.initial["params"])
    ran(federation, engine, stack=stack)
    torch.testing.assert_close(federation.weights(), weights, rtol=1e-9, atol=1e-9)
    found = federation.server["classes"]["sums"]
    torch.testing.assert_close(found, sums, rtol=1e-6, atol=1e-6)


def keep_bias(algorithm):
    return keep_local(algorithm, {"params": {"bias": torch.zeros(3).double()}, "buffers": {}})


@pytest.mark.parametrize("wrap", others_slow([keep_optimizer, keep_bias], [keep_optimizer]))
def test_wrappers_keep_stages_and_measures(make, wrap):
    plain, wrapped = ran(make(), EagerTraining), ran(make(wrap(STAGED)), FusedTraining, stack=1)
    assert all(wrapped.engine.site.states.get(k) for k in range(3))
    if wrap is keep_optimizer:
        torch.testing.assert_close(wrapped.weights(), plain.weights())


SHARES = [((1.0, 0.3),), ((0.5,),), ((0.5, 1.0),)]


def test_batches_of_own_gradients_are_never_split(make):
    federation = make(batching=Batching(4, micro_batch=2))
    with pytest.raises(ValueError, match="algorithm=staged needs whole batches"):
        federation.engine.choose(federation.plans(1, []))


@pytest.mark.slow
def test_every_engine_agrees_with_small_batches(make):
    runs = [
        ran(make(batching=Batching(2), local_epochs=2), engine, stack=stack)
        for engine, stack in ((EagerTraining, 1), (FusedTraining, 1), (FusedTraining, 3))
    ]
    for run in runs[1:]:
        torch.testing.assert_close(flat(run.server), flat(runs[0].server), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("stages", others_slow(SHARES, SHARES[:1]))
def test_a_stage_with_a_share_sees_the_same_part_on_every_engine(make, stages):
    algorithm = Algorithm(name="parts", stages=tuple(LocalStage(share=share) for share in stages))

    class Counts:
        def on_client_end(self, federation, report):
            found.append((report.client_id, report.num_examples, report.num_seen))

    servers, counts = [], []
    for engine, stack in ((EagerTraining, 1), (FusedTraining, 1), (FusedTraining, 3)):
        found = []
        run = make(algorithm, batching=Batching(2), local_epochs=2, callbacks=[Counts()])
        servers.append(flat(ran(run, engine, stack=stack).server))
        counts.append(sorted(found))
    for server, count in zip(servers[1:], counts[1:], strict=True):
        torch.testing.assert_close(server, servers[0], rtol=1e-9, atol=1e-9)
        assert count == counts[0]
    sizes = [[max(1, round(share * size)) for share in stages] for size in SIZES]
    expected = [(k, max(parts), 2 * sum(parts)) for k, parts in enumerate(sizes)]
    assert counts[0] == sorted(ROUNDS * expected)


def grown(server, uploads):
    """Another row of what is broadcast, every round."""
    stepped = add(server, uploads.mean)
    row = stepped["params"]["bias"].unsqueeze(0)
    return {**stepped, "past": torch.cat([server["past"], row])}


def near_the_past(task, params, batch, ctx):
    return task(params, batch) + (params["bias"] - ctx.server["past"]).square().sum()


@pytest.mark.parametrize("stack", others_slow([1, 3], [1]))
def test_a_broadcast_may_grow_from_round_to_round(make, stack):
    algorithm = Algorithm(
        name="growing",
        server_state=lambda weights: {**weights, "past": weights["params"]["bias"].unsqueeze(0)},
        broadcast=lambda server: server,
        loss=near_the_past,
        server_step=grown,
    )
    options = {"batching": Batching(2), "rounds": 3}
    eager = ran(make(algorithm, **options), EagerTraining).server
    fused = ran(make(algorithm, **options), FusedTraining, stack=stack).server
    assert fused["past"].shape == (4, 3)
    torch.testing.assert_close(fused, eager, rtol=1e-9, atol=1e-9)
