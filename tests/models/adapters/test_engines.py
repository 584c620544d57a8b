"""A model with LoRA gives the same result on every engine, and on any number of ranks."""

from dataclasses import replace

import pytest
import torch
from engine_runs import net, ran
from problems import problem_of
from sampling import others_slow
from solving import BATCH, CLIENTS, PLAIN, Way, assert_same, solve
from torch import nn

from flfast.algorithms.scaffold import scaffold
from flfast.engines.fused.training import FusedTraining
from flfast.models.adapters.lora import lora
from flfast.state.plan import Batching
from flfast.state.tree import num_bytes
from flfast.state.weights import model_weights, read_weights

OPTIONS = {"rank": 1, "alpha": 2.0, "dropout": 0.0, "train_bias": False, "freeze_a": False}
OPTIONS |= {"base_bits": None}
WAYS = [
    Way("fused"),
    Way("stacked"),
    Way("fused", 2, (CLIENTS,)),
    Way("eager", 2, (BATCH,)),
]
PROBLEM = replace(
    problem_of(0),
    sizes=(7, 9, 6, 8),
    model="lora",
    task="classification",
    batchnorm=None,
    algorithm="averaged_steps",
    optimizer="momentum",
    optimizer_state="keep",
    precision="64-true",
    rounds=2,
    batching=Batching(batch_size=3),
    pace="rounds",
    fraction=1.0,
    limit=1.0,
)
expected = []


@pytest.mark.parametrize("way", others_slow(WAYS, WAYS[3:]))
def test_every_way_to_execute_a_run_with_an_adapter_gives_one_result(way, solve_in):
    if not expected:
        expected.append(solve(PROBLEM, PLAIN))
    assert_same(solve_in(PROBLEM, way), expected[0], PROBLEM)


def adapted():
    model = net(lambda: nn.Linear(5, 64), nn.Tanh, lambda: nn.Linear(64, 3))
    return lora(model, target_modules=["2"], **OPTIONS)


def test_messages_states_and_slots_hold_the_adapter_only(make_data, make_federation):
    """A client costs the adapter's bytes: on the wire, between rounds and in a stack's slot."""
    algorithm = scaffold(
        server_lr=1.0, momentum=0.0, nesterov=False, local_optimizer_state="reset"
    )
    wrapped = adapted()
    size = num_bytes(read_weights(wrapped.model))
    assert size == 4 * (64 + 3)
    base = {name: leaf.clone() for name, leaf in wrapped.base.leaves.items()}
    data = make_data([6, 5, 7])
    federation = ran(
        make_federation(data, wrapped.model, algorithm=algorithm, rounds=2, adapted=wrapped),
        FusedTraining,
        stack=3,
    )
    row, site = federation.history[-1], federation.engine.site
    assert row["comm/up_bytes"] == row["comm/down_bytes"] == 3 * 2 * size  # weights and control
    states = [site.states.get(client) for client in range(3)]
    assert [num_bytes(state or {}) for state in states] == [size] * 3
    programs = federation.engine.training.programs(federation.plans(1, []))
    slots = programs._state
    assert slots.width == 3
    assert num_bytes(slots.state) == 3 * (size + 4)  # and a sum of losses
    assert all(torch.equal(leaf, base[name]) for name, leaf in wrapped.base.leaves.items())
    complete = wrapped.complete(model_weights(federation.server))
    changed = {
        name for name, leaf in complete.items() if not torch.equal(leaf, base_of(name, base))
    }
    assert changed == {"2.weight"}


def base_of(name, base):
    return base.get(name, base.get(name.replace("2.", "2.base_layer.")))
