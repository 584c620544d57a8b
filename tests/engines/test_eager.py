"""The reference engine against arithmetic, and against a plain PyTorch loop."""

from functools import partial

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from flfast.algorithms.contract.algorithm import Algorithm
from flfast.algorithms.contract.uploads import Uploads
from flfast.algorithms.fedavg import fedavg
from flfast.algorithms.fedprox import fedprox
from flfast.algorithms.local import local
from flfast.federation.loop import DivergedError
from flfast.state.plan import Batching
from flfast.state.randomness import generator
from flfast.state.tree import squared_norm, sub

# The fixtures are factories without state of their own.
fresh = settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])


def net(*layers, seed=1):
    torch.manual_seed(seed)  # noqa: TID251 - a test's own model
    return nn.Sequential(*(make() for make in layers))


def mlp():
    return net(lambda: nn.Linear(5, 8), nn.Tanh, lambda: nn.Linear(8, 3))


def with_batchnorm():
    return net(
        lambda: nn.Linear(5, 8), lambda: nn.BatchNorm1d(8), nn.ReLU, lambda: nn.Linear(8, 3)
    )


def alone(initial):
    return local(initial=initial)


def assert_same(left, right, tol=1e-5):
    torch.testing.assert_close(left.weights(), right.weights(), rtol=tol, atol=tol)


def ran(federation):
    federation.run()
    return federation


@fresh
@given(
    st.lists(st.integers(1, 9), min_size=1, max_size=5), st.one_of(st.none(), st.integers(1, 4))
)
def test_full_batches_are_one_step_of_centralised_gradient_descent(
    make_data, make_federation, sizes, micro_batch
):
    data, model = make_data(sizes), mlp()
    federation = make_federation(data, model, batching=Batching(-1, micro_batch=micro_batch))
    reference = mlp()
    loss = F.cross_entropy(reference(data.examples.inputs), data.examples.targets)
    loss.backward()
    torch.optim.SGD(reference.parameters(), lr=0.1).step()
    federation.run()
    torch.testing.assert_close(
        federation.weights(), dict(reference.state_dict()), rtol=1e-5, atol=1e-5
    )


@pytest.mark.slow
@fresh
@given(st.integers(1, 23), st.integers(1, 4), st.integers(1, 3))
def test_accumulated_batches_equal_one_large_batch(make_data, make_federation, size, batch, times):
    data = make_data([size, 7])
    large = make_federation(data, mlp(), batching=Batching(batch * times), rounds=2)
    small = make_federation(data, mlp(), batching=Batching(batch, accumulate=times), rounds=2)
    assert_same(ran(large), ran(small))


def plain_loop(data, model, *, rounds, epochs, batch, lr):
    """FedAvg as one would write it by hand."""
    for round_idx in range(1, rounds + 1):
        start = {k: v.clone() for k, v in model.state_dict().items()}
        total = {k: torch.zeros_like(v, dtype=torch.float64) for k, v in start.items()}
        weight = 0
        for client in range(data.num_clients):
            model.load_state_dict(start)
            optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
            indices = data.train_clients.indices_of(client)
            for epoch in range(epochs):
                rng = generator(data.seed, "shuffle", round_idx, client, epoch)
                order = torch.from_numpy(indices[rng.permutation(len(indices))])
                for chunk in order.split(batch):
                    optimizer.zero_grad()
                    loss = F.cross_entropy(
                        model(data.examples.inputs[chunk]), data.examples.targets[chunk]
                    )
                    loss.backward()
                    optimizer.step()
            for name, value in model.state_dict().items():
                total[name] += len(indices) * value.double()
            weight += len(indices)
        model.load_state_dict({k: v / weight for k, v in total.items()})
    return model


def test_engine_equals_a_plain_loop(make_data, make_federation):
    data = make_data([5, 11, 2])
    federation = make_federation(
        data,
        mlp(),
        rounds=3,
        local_epochs=2,
        batching=Batching(4),
        optimizer=partial(torch.optim.SGD, momentum=0.9),
    )
    reference = plain_loop(data, mlp(), rounds=3, epochs=2, batch=4, lr=0.1)
    federation.run()
    torch.testing.assert_close(
        federation.weights(), dict(reference.state_dict()), rtol=1e-5, atol=1e-6
    )


def test_same_run_twice_is_identical_even_with_dropout(make_data, make_federation):
    def model():
        return net(lambda: nn.Linear(5, 8), nn.Dropout, lambda: nn.Linear(8, 3))

    data = make_data([6, 9], split=(0.2, 0.2))
    first = ran(make_federation(data, model(), rounds=2))
    torch.rand(7)  # global randomness must not matter
    second = ran(make_federation(data, model(), rounds=2))
    assert_same(first, second, tol=0.0)
    timeless = [
        {k: v for k, v in row.items() if not k.startswith("time") and "per_s" not in k}
        for row in first.history + second.history
    ]
    assert timeless[:3] == timeless[3:]


def test_local_steps_are_counted_exactly(make_data, make_federation):
    data = make_data([5, 20])
    federation = make_federation(data, local_epochs=None, local_steps=4, batching=Batching(2))
    reports = []
    federation.engine.train(
        federation.initial, [0, 1], federation.plans(1, []), on_client=reports.append
    )
    assert [report.num_steps for report in reports] == [4, 4]
    # Client 0 needs a second pass: 3 steps see its 5 examples, the fourth 2 again.
    assert [report.num_seen for report in reports] == [7, 8]
    assert [report.num_examples for report in reports] == [5, 8]


def test_batchnorm_statistics_are_federated(make_data, make_federation):
    data = make_data([4, 12])
    federation = make_federation(data, with_batchnorm(), batching=Batching(-1))
    expected = torch.zeros(8)
    for client, share in ((0, 4 / 16), (1, 12 / 16)):
        model = with_batchnorm().train()
        model(data.examples.inputs[data.train_clients.indices_of(client)])
        expected += share * model[1].running_mean
    federation.run()
    torch.testing.assert_close(federation.weights()["1.running_mean"], expected.detach())
    assert federation.weights()["1.num_batches_tracked"] == 1


def test_frozen_batchnorm_changes_nothing_of_its_own(make_data, make_federation):
    federation = make_federation(make_data([6, 6]), with_batchnorm(), freeze_batchnorm=True)
    before = with_batchnorm().state_dict()
    federation.run()
    for name, value in federation.weights().items():
        assert torch.equal(value, before[name]) == name.startswith("1."), name


def test_recalibrated_statistics_are_those_of_the_server_model(make_data, make_federation):
    data = make_data([3, 4])
    batching = Batching(2, drop_single=True)
    federation = make_federation(data, with_batchnorm(), recalibrate=True, batching=batching)
    federation.run()
    model = with_batchnorm()
    model.load_state_dict(federation.weights())
    hidden = model[0](data.examples.inputs)
    found = federation.weights()
    torch.testing.assert_close(found["1.running_mean"], hidden.mean(0).detach())
    torch.testing.assert_close(found["1.running_var"], hidden.var(0).detach())


def test_a_diverged_client_is_left_out_and_all_of_them_stop_the_run(make_data, make_federation):
    data = make_data([6, 6])
    data.examples.inputs[data.train_clients.indices_of(1)] = float("nan")
    federation = ran(make_federation(data))
    assert federation.history[-1]["cohort/rejected"] == 1
    assert all(value.isfinite().all() for value in federation.weights().values())
    data.examples.inputs[:] = float("nan")
    with pytest.raises(
        DivergedError, match=r"round 1: all 2 clients diverged.*lower optimizer.lr"
    ):
        make_federation(data).run()


def test_a_loss_that_is_no_number_counts_as_divergence(make_data, make_federation):
    """Though its gradient is one, and so are the weights."""

    def far(task, params, batch, _ctx):
        return task(params, batch) + float("inf")

    with pytest.raises(DivergedError, match=r"all 1 clients diverged"):
        make_federation(make_data([6]), algorithm=Algorithm(name="far", loss=far)).run()


def test_fedprox_pulls_towards_the_server_and_is_fedavg_at_zero(make_data, make_federation):
    data = make_data([8, 8])

    def distance(algorithm):
        federation = ran(make_federation(data, mlp(), algorithm=algorithm, local_epochs=5))
        return float(squared_norm(sub(federation.server["params"], federation.initial["params"])))

    plain = distance(fedavg(weighting="samples"))
    assert distance(fedprox(mu=0.0, weighting="samples")) == plain
    assert distance(fedprox(mu=5.0, weighting="samples")) < plain


def test_gradient_correction_reaches_the_optimizer(make_data, make_federation):
    still = Algorithm(
        name="still",
        correct=lambda grads, params, ctx: {n: torch.zeros_like(g) for n, g in grads.items()},
    )
    federation = ran(make_federation(make_data([4]), mlp(), algorithm=still))
    torch.testing.assert_close(federation.weights(), mlp().state_dict())


def test_a_correction_may_be_more_precise_than_the_weights(make_data, make_federation):
    """As control variates of the server's are, with trainer.precision=bf16-true."""
    algorithm = Algorithm(
        name="precise",
        correct=lambda grads, params, ctx: {n: g.float() for n, g in grads.items()},
    )
    half = {"precision": "bf16-true"}
    federation = make_federation(make_data([4]), mlp(), algorithm=algorithm, trainer=half)
    assert squared_norm(sub(ran(federation).weights(), mlp().state_dict())) > 0


def test_local_models_stay_with_their_clients(make_data, make_federation):
    data = make_data([8, 8], split=(0.25, 0.25))
    federation = ran(make_federation(data, mlp(), algorithm=alone, rounds=3, local_epochs=3))
    assert not federation.weights(), "nothing is shared"
    states = [federation.engine.site.states.get(k)["own"] for k in (0, 1)]
    assert squared_norm(sub(states[0]["params"], states[1]["params"])) > 0
    last = federation.history[-1]
    assert last["personal/loss"] < federation.history[0]["personal/loss"]
    assert last["comm/up_bytes"] == last["comm/down_bytes"] == 0
    assert "local/loss" not in last, "a server model that nobody trains is not evaluated"
    assert "val/loss" not in last
    assert last["personal_val/loss"] < federation.history[0]["personal_val/loss"]


def test_personal_evaluation_uses_each_clients_own_model(make_data, make_federation):
    data = make_data([8, 12], split=(0.0, 0.5))
    federation = ran(make_federation(data, mlp(), algorithm=alone, local_epochs=2))
    found = federation.engine.evaluate(federation.server, federation.plans(1, []))["personal"]
    for client in (0, 1):
        model = mlp()
        model.load_state_dict(federation.engine.site.states.get(client)["own"]["params"])
        indices = data.splits["test"].indices_of(client)
        expected = F.cross_entropy(
            model(data.examples.inputs[indices]), data.examples.targets[indices]
        )
        assert found.values["loss"][client] == pytest.approx(expected.item(), rel=1e-5)


def test_dropped_clients_do_not_train_and_an_empty_cohort_changes_nothing(
    make_data, make_federation
):
    data = make_data([4] * 10)
    half = ran(make_federation(data, sampling={"dropout": 0.5}))
    row = half.history[-1]
    assert row["cohort/clients"] + row["cohort/dropped"] == 10
    assert 0 < row["cohort/dropped"] < 10
    nobody = ran(make_federation(data, mlp(), sampling={"dropout": 1.0}))
    torch.testing.assert_close(nobody.weights(), mlp().state_dict())


def test_bytes_are_what_is_sent(make_data, make_federation):
    federation = ran(make_federation(make_data([4, 4, 4]), mlp()))
    model_bytes = 4 * (5 * 8 + 8 + 8 * 3 + 3)
    assert federation.history[-1]["comm/up_bytes"] == 3 * model_bytes
    assert federation.history[-1]["comm/down_bytes"] == 3 * model_bytes


def test_evaluation_follows_its_schedule_and_always_ends_the_run(make_data, make_federation):
    data = make_data([6, 6], split=(0.0, 0.4))
    federation = ran(make_federation(data, rounds=5, eval_every=2))
    evaluated = [row["round"] for row in federation.history if "global/loss" in row]
    assert evaluated == [0, 2, 4, 5]


def test_uniform_weighting_ignores_sizes(make_data, make_federation):
    data = make_data([2, 14])
    engine = make_federation(
        data, mlp(), algorithm=fedavg(weighting="uniform"), batching=Batching(-1)
    )
    parts = []
    for client in (0, 1):
        model = mlp()
        indices = data.train_clients.indices_of(client)
        F.cross_entropy(
            model(data.examples.inputs[indices]), data.examples.targets[indices]
        ).backward()
        parts.append({n: p.detach() - 0.1 * p.grad for n, p in model.named_parameters()})
    mean = {name: (parts[0][name] + parts[1][name]) / 2 for name in parts[0]}
    torch.testing.assert_close(ran(engine).weights(), mean)


def test_the_order_of_a_cohort_does_not_matter(make_data, make_federation):
    """Whatever local training changes in place must not reach the next client."""
    from flfast.algorithms.kit.local_optimizer import average_optimizer, keep_optimizer

    momentum = partial(torch.optim.SGD, momentum=0.9)
    for wrapper in (keep_optimizer, average_optimizer):
        found = []
        for order in (1, -1):
            federation = make_federation(
                make_data([6, 5, 9]),
                mlp(),
                algorithm=wrapper(fedavg(weighting="samples")),
                optimizer=momentum,
            )
            server = federation.algorithm.server_state(federation.initial)
            for round_idx in (1, 2, 3):
                trained = federation.engine.train(
                    server,
                    [0, 1, 2][::order],
                    federation.plans(round_idx, []),
                    on_client=lambda report: None,
                )
                uploads = Uploads(trained.uploads.mean, num_clients=3, population=3)
                server = federation.algorithm.server_step(server, uploads)
            found.append(server["params"])
        torch.testing.assert_close(*found, rtol=1e-5, atol=1e-6)


def test_a_rejected_client_keeps_the_state_it_had(make_data, make_federation):
    from flfast.algorithms.kit.local_optimizer import keep_optimizer

    data = make_data([6, 6])
    federation = make_federation(
        data,
        mlp(),
        algorithm=keep_optimizer(fedavg(weighting="samples")),
        optimizer=partial(torch.optim.SGD, momentum=0.9),
    )
    train = partial(federation.engine.train, federation.initial, [0, 1])
    train(federation.plans(1, []), on_client=lambda report: None)
    clean = data.examples.inputs.clone()
    data.examples.inputs[data.train_clients.indices_of(1)] = float("nan")
    reports = train(federation.plans(2, []), on_client=lambda report: None).reports
    assert [report.rejected for report in reports] == [False, True]
    data.examples.inputs[:] = clean
    reports = train(federation.plans(3, []), on_client=lambda report: None).reports
    assert not any(report.rejected for report in reports)


def test_a_stopped_run_leaves_what_it_has(make_data, make_federation):
    from lightning.pytorch.callbacks import Callback

    class Stop(Callback):
        ended = False

        def on_round_end(self, federation, row, clients):
            if row["round"] == 2:
                raise KeyboardInterrupt

        def on_run_end(self, federation):
            self.ended = len(federation.history) == 3

    stop = Stop()
    federation = make_federation(make_data([4, 4]), rounds=9, callbacks=[stop])
    with pytest.raises(KeyboardInterrupt):
        federation.run()
    assert stop.ended
