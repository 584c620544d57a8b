"""keep_local, keep_optimizer and average_optimizer: what they send, keep and average."""

from functools import partial
from itertools import product

import numpy as np
import pytest
import torch
from adversaries import ROBUST
from algorithms_by_name import federation_of
from engine_runs import engine_of, mlp, ran
from sampling import others_slow
from torch import nn

from flfast.algorithms.contract.algorithm import Algorithm
from flfast.algorithms.fedavg import fedavg
from flfast.algorithms.kit.keep_local import keep_local
from flfast.algorithms.kit.local_optimizer import average_optimizer, keep_optimizer
from flfast.algorithms.local import local
from flfast.channel.aggregations.aggregation import MEAN
from flfast.channel.attacks.gaussian import gaussian
from flfast.channel.channel import Channel
from flfast.engines.auto import AutoTraining
from flfast.engines.eager import EagerTraining
from flfast.federation.samplers.cohort import Cohort
from flfast.lit.batchnorm import batchnorm_weights
from flfast.state.optimizer_state import LOCAL_MESSAGE, state_tensors, trial_step
from flfast.state.tree import leaves, num_bytes, squared_norm
from flfast.state.weights import read_weights

momentum = partial(torch.optim.SGD, momentum=0.9)
STATE_OF_ADAM = frozenset({"step", "exp_avg", "exp_avg_sq"})


def model():
    torch.manual_seed(2)  # noqa: TID251 - a test's own model
    return nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))


@pytest.fixture
def run(make_data, make_federation):
    def run(algorithm, *, sizes=(6, 8), rounds=2, **options):
        federation = make_federation(
            make_data(sizes, split=(0.0, 0.25)),
            model(),
            algorithm=algorithm,
            rounds=rounds,
            **options,
        )
        federation.run()
        return federation

    return run


def fedbn():
    net = model()
    return keep_local(fedavg(weighting="samples"), batchnorm_weights(net, read_weights(net)))


def keep_nothing(algorithm):
    return keep_local(algorithm, {"params": {}, "buffers": {}})


def test_fedbn_neither_sends_nor_receives_batchnorm(run):
    federation = run(fedbn())
    own = batchnorm_weights(model(), federation.initial)
    sent = num_bytes(federation.initial) - num_bytes(own)
    assert federation.history[-1]["comm/up_bytes"] == 2 * sent
    assert federation.history[-1]["comm/down_bytes"] == 2 * sent


def test_with_fedbn_the_servers_batchnorm_is_unchanged_and_clients_have_their_own(run):
    federation = run(fedbn())
    before = model().state_dict()
    for name, value in federation.weights().items():
        assert torch.equal(value, before[name]) == name.startswith("1."), name
    means = [
        federation.engine.site.states.get(k)["own"]["buffers"]["1.running_mean"] for k in (0, 1)
    ]
    assert not torch.equal(*means)
    assert "personal/accuracy" in federation.history[0], "also before the first round"


def test_fedbn_without_batchnorm_is_fedavg(run):
    kept = run(keep_nothing(fedavg(weighting="samples")))
    torch.testing.assert_close(kept.weights(), run(fedavg(weighting="samples")).weights())


def test_a_kept_optimizer_state_continues_in_the_next_round(make_data, make_federation):
    """With one client and one full batch per round, rounds are steps of a single optimizer."""
    from flfast.state.plan import Batching

    def final(algorithm, *, rounds, epochs):
        torch.manual_seed(0)  # noqa: TID251 - a test's own model
        federation = make_federation(
            make_data([8]),
            nn.Linear(5, 3),
            algorithm=algorithm,
            optimizer=momentum,
            rounds=rounds,
            local_epochs=epochs,
            batching=Batching(-1),
        )
        federation.run()
        return federation.weights()

    plain = fedavg(weighting="samples")
    one_run = final(plain, rounds=1, epochs=4)
    for wrapper in (keep_optimizer, average_optimizer):
        torch.testing.assert_close(final(wrapper(plain), rounds=4, epochs=1), one_run)
    reset = final(plain, rounds=4, epochs=1)
    assert not torch.allclose(reset["weight"], one_run["weight"], atol=1e-4)


def test_averaged_optimizer_states_are_sent_and_averaged(run):
    federation = run(average_optimizer(fedavg(weighting="samples")), optimizer=momentum)
    params = num_bytes(federation.initial["params"])
    assert federation.history[1]["comm/down_bytes"] == 2 * num_bytes(federation.initial)
    assert federation.history[2]["comm/down_bytes"] == 2 * (num_bytes(federation.initial) + params)
    assert len(list(leaves(federation.server["optimizer"]))) == 6


def flat(state):
    return {f"{name}/{slot}": leaf for name, own in state.items() for slot, leaf in own.items()}


PARAMS = frozenset(f"{layer}.{leaf}" for layer in (0, 1, 2) for leaf in ("weight", "bias"))


@pytest.mark.parametrize("optimizer", [momentum, torch.optim.Adam], ids=["momentum", "adam"])
@pytest.mark.parametrize(
    "kept", [{"0.bias"}, {"2.weight", "2.bias"}, PARAMS], ids=["bias", "head", "all"]
)
def test_optimizer_states_of_local_leaves_stay_on_the_client(run, optimizer, kept):
    initial = read_weights(model())
    own = {"params": {n: initial["params"][n] for n in kept}, "buffers": {}}

    def finals(wrapper):
        algorithm = wrapper(keep_local(fedavg(weighting="samples"), own))
        return run(algorithm, optimizer=optimizer, rounds=3, lr=0.01)

    federation = finals(average_optimizer)
    assert federation.server["optimizer"].keys() == PARAMS - kept
    shared = num_bytes(initial) - num_bytes(own)
    assert federation.history[1]["comm/down_bytes"] == 2 * shared
    shared += num_bytes(federation.server["optimizer"])
    for column in ("comm/down_bytes", "comm/up_bytes"):
        assert federation.history[3][column] == 2 * shared
    first, second = (flat(federation.engine.site.states.get(k)["optimizer"]) for k in (0, 1))
    assert {name.partition("/")[0] for name in first} == kept
    assert not any(torch.equal(first[n], second[n]) for n in first if not n.endswith("/step"))
    if kept == PARAMS:  # nothing is shared
        expected = finals(keep_optimizer).engine.site.states.get(0)["optimizer"]
        torch.testing.assert_close(first, flat(expected))


def test_averaging_alone_needs_no_client_states(run):
    federation = run(average_optimizer(fedavg(weighting="samples")), optimizer=momentum)
    assert not federation.algorithm.stateful


LATE = [
    *product(
        ("ditto", "fedper", "fedrep"),
        (keep_optimizer, average_optimizer),
        (momentum, torch.optim.Adam),
    )
]


# Each wrapper and each optimizer has some.
@pytest.mark.parametrize(
    ("name", "wrapper", "optimizer"), others_slow(LATE, [LATE[k] for k in (3, 8)])
)
def test_engines_agree_on_optimizer_states_of_late_clients(
    name, wrapper, optimizer, make_data, make_federation
):
    """Client 2 first trains in round 3, from averaged states and without local ones."""

    def trained(engine):
        federation = federation_of(
            make_data, make_federation, name, mlp(), rounds=3, optimizer=optimizer, lr=0.02
        )
        federation.algorithm = wrapper(federation.algorithm)
        federation.engine.site.module.algorithm = federation.algorithm
        federation.server = federation.algorithm.server_state(federation.initial)
        federation.sampling.cohort = lambda r: Cohort(
            np.arange(3 if r == 3 else 2), np.array([], int)
        )
        return ran(federation, engine, stack=1)

    # The fused engine has one step counter for all leaves; auto is eager if counters differ.
    eager, auto = (trained(engine) for engine in (EagerTraining, AutoTraining))
    torch.testing.assert_close(auto.server, eager.server, rtol=1e-6, atol=1e-6)
    for k in range(3):
        found, expected = (f.engine.site.states.get(k) for f in (auto, eager))
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)
    counts = optimizer is torch.optim.Adam and wrapper is average_optimizer
    engine = engine_of(auto, AutoTraining, stack=1)
    expected = "eager" if counts and name != "fedrep" else "fused"
    assert engine.choose(auto.plans(1, [])).startswith(expected)


@pytest.mark.parametrize("wrapper", [keep_optimizer, average_optimizer])
@pytest.mark.parametrize("optimizer", [torch.optim.Adam, torch.optim.AdamW, torch.optim.Adagrad])
def test_adaptive_optimizers_can_be_kept_and_averaged(run, wrapper, optimizer):
    federation = run(wrapper(fedavg(weighting="samples")), optimizer=optimizer, rounds=3)
    assert federation.history[-1]["train/loss"] < federation.history[1]["train/loss"]


@pytest.mark.parametrize("name", others_slow([None, *ROBUST], [None, "krum"]))
def test_steps_of_averaged_optimizers_are_counted_not_learned(make_data, make_federation, name):
    federation = make_federation(
        make_data([6, 8, 7, 5, 9, 6, 7]),
        algorithm=average_optimizer(fedavg(weighting="uniform")),
        optimizer=torch.optim.Adam,
        local_epochs=None,
        local_steps=3,
    )
    federation.engine.channel = Channel(
        aggregation=ROBUST[name] if name else MEAN,
        attack=gaussian(fraction=0.5, std=100.0),
        attackers=frozenset({0, 1}),
        clip_norm=1e-3,
    )
    federation.run()
    states = federation.server["optimizer"].values()
    assert {float(state["step"]) for state in states} == {3.0}
    assert {frozenset(state) for state in states} == {STATE_OF_ADAM}
    assert "counts" not in federation.server


def test_wrappers_compose_with_personal_models(run):
    federation = run(lambda w: keep_optimizer(local(initial=w)), optimizer=momentum)
    assert "personal/accuracy" in federation.history[-1]


@pytest.mark.parametrize("wrapper", [keep_optimizer, keep_nothing])
def test_a_wrapped_algorithm_reads_its_own_state_in_loss_and_correction(run, wrapper):
    def loss(task, params, batch, ctx):
        return task(params, batch) + ctx.client["rounds"] * squared_norm(params)

    def correct(grads, params, ctx):
        return {name: grad + ctx.client["rounds"] * params[name] for name, grad in grads.items()}

    plain = Algorithm(
        name="counting",
        client_state=lambda broadcast: {"rounds": torch.zeros(())},
        loss=loss,
        correct=correct,
        finish=lambda done, ctx: (ctx.change(done.weights), {"rounds": ctx.client["rounds"] + 1}),
    )
    weights = run(wrapper(plain), lr=0.01).weights()
    torch.testing.assert_close(weights, run(plain, lr=0.01).weights())


def test_an_optimizer_whose_state_is_not_tensors_is_refused():
    def state(make):
        leaf = torch.zeros(2, requires_grad=True)
        optimizer = make([leaf], lr=0.1)
        trial_step(optimizer, [leaf])
        return state_tensors(optimizer.state[leaf], **LOCAL_MESSAGE)

    with pytest.raises(ValueError, match=r"whose state is tensors; .*local_optimizer_state=reset"):
        state(torch.optim.LBFGS)
    for optimizer in (torch.optim.Adam, torch.optim.NAdam, torch.optim.Rprop):
        assert state(optimizer)
    assert not state(torch.optim.SGD)


def test_dropped_clients_receive_but_do_not_send(run):
    federation = run(
        average_optimizer(fedavg(weighting="samples")),
        sizes=[6] * 12,
        optimizer=momentum,
        sampling={"dropout": 0.5},
    )
    row = federation.history[2]
    weights, state = num_bytes(federation.initial), num_bytes(federation.initial["params"])
    assert row["cohort/dropped"] and row["cohort/clients"]
    assert row["comm/down_bytes"] == 12 * (weights + state)
    assert row["comm/up_bytes"] == row["cohort/clients"] * (weights + state)
