"""Joint leaves and stages: with every wrapper and strategy, and where they are refused."""

from functools import partial
from itertools import product

import pytest
import torch
from algorithms_by_name import (
    algorithm_of,
    assert_leaves_close,
    federation_of,
    personal_of,
    run,
    server_of,
)
from engine_runs import engine_of, mlp, with_batchnorm
from sampling import others_slow
from torch import nn

from flfast.algorithms.kit.keep_local import keep_local
from flfast.algorithms.kit.local_optimizer import average_optimizer, keep_optimizer
from flfast.datamodules.batches import Batch
from flfast.engines.auto import AutoTraining
from flfast.engines.eager import EagerTraining
from flfast.engines.fused.training import FusedTraining
from flfast.lit.batchnorm import batchnorm_weights
from flfast.lit.task import LocalTask
from flfast.state.plan import Batching
from flfast.state.weights import read_weights

momentum = partial(torch.optim.SGD, momentum=0.9)


SHARDS = [*product(("ditto", "fedrep"), ("clients", "batch"))]
WRAPPED = [*product(("ditto", "fedrep"), (keep_optimizer, average_optimizer))]


@pytest.mark.parametrize(("name", "shard"), others_slow(SHARDS, SHARDS[:1]))
def test_two_ranks_give_the_numbers_of_one(name, shard, make_data, make_federation, in_world):
    def trained(**options):
        federation = federation_of(
            make_data,
            make_federation,
            name,
            mlp(),
            sizes=(6, 3, 8),
            rounds=2,
            batching=Batching(3),
            **options,
        )
        return server_of(run(federation))

    def work(world):
        weights = trained(world=world, strategy="ddp", shard=shard)
        return {n: w.tolist() for n, w in weights.items()}

    expected = trained()
    for found in in_world(2, work).values():
        assert_leaves_close(
            {n: torch.tensor(w).double() for n, w in found.items()}, expected, tol=1e-6
        )


def test_dp_trains_both_models(make_data, make_federation):
    def trained(strategy):
        federation = federation_of(
            make_data, make_federation, "ditto", mlp(), sizes=(6, 3), strategy=strategy
        )
        return run(federation)

    one, two = trained("single"), trained("dp")
    assert_leaves_close(server_of(two), server_of(one), tol=1e-9)
    assert_leaves_close(personal_of(two, 0), personal_of(one, 0), tol=1e-9)


@pytest.mark.slow  # `test_wrappers.py` has the same with clients that come late
@pytest.mark.parametrize(("name", "wrapper"), WRAPPED)
def test_optimizer_states_cover_every_leaf_and_stage(name, wrapper, make_data, make_federation):
    def trained(engine):
        federation = federation_of(
            make_data, make_federation, name, mlp(), rounds=3, optimizer=momentum
        )
        algorithm = wrapper(federation.algorithm)
        federation.algorithm = federation.engine.site.module.algorithm = algorithm
        federation.server = algorithm.server_state(federation.initial)
        return run(federation, engine, 1)

    eager, fused = trained(EagerTraining), trained(FusedTraining)
    assert_leaves_close(server_of(fused), server_of(eager), tol=1e-9)
    plain = federation_of(make_data, make_federation, name, mlp(), rounds=3, optimizer=momentum)
    first = next(iter(server_of(eager)))
    assert not torch.allclose(server_of(run(plain))[first], server_of(eager)[first], atol=1e-6)


@pytest.mark.parametrize("name", ["ditto", "apfl", "pfedme", "moon", "per_fedavg"])
def test_batchnorm_that_stays_on_the_client(name, make_data, make_federation):
    """`bn=local` with algorithms that read or train more than one model."""
    model = with_batchnorm()
    own = batchnorm_weights(model, read_weights(model))
    federation = make_federation(
        make_data((8, 12), split=(0.0, 0.25)),
        model,
        algorithm=keep_local(algorithm_of(name, model), own),
        rounds=2,
        batching=Batching(3),
    )
    federation.run()
    for leaf in own["params"]:
        assert torch.equal(server_of(federation)[leaf], own["params"][leaf])
        assert leaf not in federation.weights()
        assert not torch.equal(personal_of(federation, 0)[leaf], own["params"][leaf])
    assert "personal/accuracy" in federation.history[-1]


def test_frozen_batchnorm_is_frozen_in_both_models(make_data, make_federation):
    federation = make_federation(
        make_data((6, 8)),
        with_batchnorm(),
        algorithm=algorithm_of("ditto", with_batchnorm()),
        batching=Batching(3),
        freeze_batchnorm=True,
    )
    federation.run()
    start, personal = federation.initial["params"], personal_of(federation, 0)
    for name, leaf in start.items():
        assert torch.equal(personal[name], leaf) == name.startswith("2."), name


def test_the_model_is_trainable_after_a_stage(make_data, make_federation):
    federation = run(federation_of(make_data, make_federation, "fedbabu", mlp()))
    assert all(p.requires_grad for p in federation.engine.site.model.parameters())


@pytest.mark.parametrize("engine", [EagerTraining, FusedTraining, AutoTraining])
@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("pfedme", {"strategy": "dp"}, "strategy=dp divides"),
        ("pfedme", {"strategy": "ddp", "shard": "batch"}, "strategy.shard=batch divides"),
        ("per_fedavg", {"batching": Batching(8, micro_batch=2)}, "micro_batch=2 cuts"),
        (
            "per_fedavg",
            {"batching": Batching(4, accumulate=3)},
            "trainer.accumulate_grad_batches=3 cuts; use batch_size=12",
        ),
        ("ditto", {"strategy": "fsdp"}, "two models"),
        ("fedrep", {"strategy": "fsdp"}, "parts of a model"),
    ],
)
def test_plans_that_an_algorithm_does_not_allow_are_refused(
    engine, name, changes, message, make_data, make_federation
):
    federation = federation_of(make_data, make_federation, name, mlp())
    plan = federation.plans(1, [])._replace(**changes)
    with pytest.raises(ValueError, match=f"algorithm={name} .*{message}"):
        engine_of(federation, engine).choose(plan)


def test_features_are_the_inputs_of_the_head():
    model = with_batchnorm()
    batch = Batch(torch.randn(4, 5), torch.tensor([0, 1, 2, 0]))
    task, params = LocalTask(model), dict(model.named_parameters())
    before = model[2].running_mean.clone()
    weights = {**params, **dict(model.named_buffers())}
    fixed = task.fixed_features(weights, batch, layer="3")
    torch.testing.assert_close(fixed, model.eval()[:3](batch.inputs).detach())
    assert torch.equal(model[2].running_mean, before)
    assert not fixed.requires_grad
    model.train()
    features, loss = task.features(params, batch, layer="3")
    torch.testing.assert_close(model[3](features), model(batch.inputs))
    torch.testing.assert_close(
        loss, nn.functional.cross_entropy(model(batch.inputs), batch.targets)
    )
    assert all(layer.training for layer in model.modules())
