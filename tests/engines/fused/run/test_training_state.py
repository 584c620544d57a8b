"""What clients share travels to a device once; `meta` stands for one that is not the CPU."""

import torch
from engine_runs import mlp, ran
from torch.utils._python_dispatch import TorchDispatchMode

from flfast.algorithms.contract.client import Context
from flfast.engines.fused.run.training_state import ContextCache
from flfast.engines.fused.training import FusedTraining
from flfast.state.tree import leaves

META = torch.device("meta")


def context(server, client=None):
    own = {} if client is None else {"w": client}
    return Context({"w": server}, own, {"w": server}, torch.tensor(0.1), torch.Generator)


def test_what_clients_share_is_copied_once_a_round():
    contexts, server = ContextCache(META), torch.ones(3)
    first, second = contexts.on_device([context(server), context(server, torch.zeros(2))], 1)
    (third,) = contexts.on_device([context(server)], 1)
    copy = first.server["w"]
    assert copy.device == META and copy.shape == (3,)
    assert all(own.server["w"] is own.start["w"] is copy for own in (first, second, third))
    assert second.client["w"].shape == (2,)


def test_the_next_round_copies_anew():
    contexts, server = ContextCache(META), torch.ones(3)
    (before,) = contexts.on_device([context(server)], 1)
    (after,) = contexts.on_device([context(server)], 2)
    assert before.server["w"] is not after.server["w"]


def test_what_is_there_already_stays():
    contexts, server = ContextCache(torch.device("cpu")), torch.ones(3)
    (found,) = contexts.on_device([context(server, torch.zeros(2))], 1)
    assert next(leaves(found.server)) is server


class Copies(TorchDispatchMode):
    """Counts copies into tensors that exist."""

    num = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.num += func.name().startswith(("aten::copy_", "aten::_foreach_copy_"))
        return func(*args, **(kwargs or {}))


def test_a_wide_stack_is_loaded_with_as_many_copies_as_a_narrow_one(make_data, make_federation):
    def num_copies(width):
        federation = make_federation(make_data([6] * width), mlp(), eval_every=9)
        with Copies() as copies:
            ran(federation, FusedTraining, stack=width)
        return copies.num

    assert num_copies(8) == num_copies(3)
