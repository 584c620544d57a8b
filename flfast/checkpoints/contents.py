"""Checks that the contents of a checkpoint's files fit this run.

Each of them raises a `BrokenCheckpointError` that names what is missing or does not fit.
"""

from collections.abc import Callable, Collection
from typing import Any

import torch
from torch import Tensor

from flfast.algorithms.contract.algorithm import Algorithm
from flfast.algorithms.contract.downloads import first_downloads, first_record
from flfast.checkpoints.folders import BrokenCheckpointError
from flfast.state.tree import Tree, all_finite, leaves


def check_server(saved: Any, algorithm: Algorithm, initial: Tree) -> None:
    """Compare a server state with that of round 0; dicts that are empty there may have grown."""
    _check_tree(saved, algorithm.server_state(initial), "server")


def check_states(
    saved: Any,
    expected: Callable[[int], Tree],
    candidates: Collection[int],
    *,
    name: str = "states",
) -> None:
    """Compare client states or records with those before a client's first round, `expected`.

    They are a list of stacks, as in `ClientStates.state_dict`; messages call them `name`.
    """
    _require(isinstance(saved, list), "stacks: not a list")
    for number, stack in enumerate(saved):
        where = f"stacks.{number}"
        has_keys = isinstance(stack, dict) and stack.keys() == {"clients", "states"}
        _require(has_keys, f"{where}: keys are not clients and states")
        clients = stack["clients"]
        valid = isinstance(clients, Tensor) and clients.dtype == torch.int64 and clients.ndim == 1
        ids = clients.tolist() if valid else [-1]
        possible = len(set(ids)) == len(ids) and all(k in candidates for k in ids)
        _require(possible, f"{where}.clients: not distinct clients of this run")
        like = expected(ids[0] if ids else 0)
        _check_tree(stack["states"], like, f"{where}.{name}", rows=[len(ids)])


def check_dropped(saved: Any) -> None:
    """Check that the clients whose states were removed are a list of numbers."""
    valid = isinstance(saved, Tensor) and saved.dtype == torch.int64 and saved.ndim == 1
    _require(valid, "dropped: not numbers of clients")


def first_states(algorithm: Algorithm, initial: Tree) -> tuple[Tree, Tree]:
    """A client's state and its record before its first round."""
    client = algorithm.client_state(first_downloads(algorithm, initial)(0))
    return client, first_record(algorithm, initial)


def check_history(saved: Any, *, last: int) -> None:
    """Check that there is a row for every round from 0 to `last`, of numbers and text."""
    complete = isinstance(saved, list) and len(saved) == last + 1
    _require(complete, f"history: not the rows of rounds 0 to {last}")
    for number, row in enumerate(saved):
        matches = isinstance(row, dict) and type(row.get("round")) is int
        _require(matches and row["round"] == number, f"history.{number}: not of round {number}")
        for name, cell in row.items():
            valid = cell is None or isinstance(cell, int | float | str)
            _require(valid, f"history.{number}.{name}: neither number nor text")


def check_pace(saved: Any, algorithm: Algorithm, initial: Tree, *, last: int) -> None:
    """Check the state of a pace: the clock, the busy clients, and the versions they train from."""
    clock = saved.get("clock") if isinstance(saved, dict) else None
    clocks = clock if isinstance(clock, list) and clock else [clock]  # of each node, or one
    valid = all(isinstance(one, float) and one >= 0 for one in clocks)
    _require(valid, "pace.clock: not a time")
    flights, versions = saved.get("flights", []), saved.get("versions")
    _require(isinstance(versions, dict), "pace.versions: not a dict")
    expected = algorithm.broadcast(algorithm.server_state(initial))
    for number, broadcast in versions.items():
        valid = isinstance(number, int) and 1 <= number <= last
        _require(valid, f"pace.versions.{number}: not of a round up to {last}")
        _check_tree(broadcast, expected, f"pace.versions.{number}")
    for number, flight in enumerate(flights):
        types = [type(value) for value in flight] if isinstance(flight, list) else []
        fits = types == [float, int, int, int, float, bool] and flight[3] in versions
        _require(fits, f"pace.flights.{number}: not a client at work")


def check_memory(saved: Any) -> None:
    """Check that the memory of the channel is a tree of finite tensors."""
    _require(isinstance(saved, dict), "channel: not a dict")
    _check_tree(saved, {}, "channel")


def _check_tree(saved: Any, expected: Any, name: str, rows: list[int] | None = None) -> None:
    """Compare a tree with the expected one; `rows` is [K], the leading axis of stacked leaves."""
    if isinstance(expected, dict) and expected:
        # States of later rounds may lack leaves, such as those that the client does not share,
        # and may have additional keys.
        required = {key for key, child in expected.items() if isinstance(child, dict) or not rows}
        has_keys = isinstance(saved, dict) and required <= saved.keys()
        _require(has_keys, f"{name}: does not have the keys {', '.join(expected)}")
        for key in saved:
            _check_tree(saved[key], expected.get(key, {}), f"{name}.{key}", rows)
    elif isinstance(expected, dict):  # such as the state of an optimizer before its first step
        for leaf in leaves({name: saved}):
            _check_tensor(leaf, name, rows)
    else:
        _check_tensor(saved, name, rows)
        shape, is_float = [*(rows or []), *expected.shape], expected.is_floating_point()
        fits = list(saved.shape) == shape and saved.is_floating_point() == is_float
        _require(fits, f"{name}: {saved.dtype} {list(saved.shape)}, not {expected.dtype} {shape}")


def _check_tensor(leaf: Any, name: str, rows: list[int] | None) -> None:
    plain = isinstance(leaf, Tensor) and leaf.layout is torch.strided and not leaf.is_complex()
    _require(plain, f"{name}: not a tensor of numbers")
    _require(not rows or list(leaf.shape[:1]) == rows, f"{name}: not of {rows} clients")
    # During a run, only the parameters of the server's state are checked to be finite.
    must_be_finite = not name.startswith("server.") or name.startswith("server.params.")
    _require(not must_be_finite or all_finite({name: leaf}), f"{name}: NaN or infinity")


def _require(condition: bool, problem: str) -> None:  # noqa: FBT001 - reads like assert
    if not condition:
        raise BrokenCheckpointError(problem)
