"""Going on from a checkpoint: the server, the rows, the client states of this rank."""

import logging
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flfast.checkpoints.contents import check_history, check_server, check_states
from flfast.checkpoints.files import read_tensors
from flfast.checkpoints.folders import (
    SERVER,
    BrokenCheckpointError,
    Checkpoint,
    clients_file,
)
from flfast.datamodules.federated import FederatedDataModule
from flfast.distributed.client_state_placement import owner
from flfast.distributed.world import World, gather
from flfast.federation.loop import Federation, Row
from flfast.loggers.columns import CLIENT_COLUMNS, COLUMNS
from flfast.loggers.table import RoundTable, read_rows
from flfast.state.store import ClientStates
from flfast.state.tree import Tree, leaves, tree_map

log = logging.getLogger(__name__)

AT_ONCE = 2**26
"""Bytes of client states that are copied at a time where ranks are others than they were."""


def fingerprint(data: FederatedDataModule) -> str:
    """Of who has which labels, by which a checkpoint knows its data."""
    parts = (data.train_clients.sizes(), data.examples.targets.numpy())
    return f"{zlib.crc32(b''.join(np.ascontiguousarray(part).tobytes() for part in parts)):08x}"


def restore(
    federation: Federation, states: ClientStates, candidates: Sequence[Checkpoint], world: World
) -> Checkpoint:
    """Bring a federation to where the first of the checkpoints that can be loaded left it.

    Args:
        federation: as it was built for round 1.
        states: this rank's, which the federation's engine uses.
        candidates: newest first, the same on every rank; collective.
        world: the ranks of the run.

    Raises:
        ValueError: if none can be loaded, or its data were others.
    """
    check = partial(
        check_states,
        algorithm=federation.algorithm,
        initial=federation.initial,
        candidates=frozenset(federation.data.candidates.tolist()),
    )
    reasons: list[str] = []
    for checkpoint in candidates:
        failure: tuple[str, bool] | None = None
        try:
            server, history = _server(checkpoint, federation)
            own = _own_states(checkpoint, world, check)
        except Exception as error:  # noqa: BLE001 - all ranks must hear of it
            failure = str(error), isinstance(error, BrokenCheckpointError)
        failures = [said for said in gather(world, failure) if said is not None]
        if failures:
            # One that cannot be read now is no reason to fall back, and to remove it.
            for reason, broken in failures:
                if not broken:
                    raise ValueError(f"{checkpoint.path} cannot be read: {reason}")
            reasons.append(failures[0][0])
            log.warning("a broken checkpoint is passed over: %s", reasons[-1])
            continue
        if checkpoint.about["data"] != fingerprint(federation.data):
            raise ValueError(
                f"{checkpoint.path}: its data were others: clients or labels differ from those "
                f"that are loaded now"
            )
        states.load_state_dict(own)
        federation.server, federation.history = server, history
        if world.rank == 0:
            _cut_tables(checkpoint, federation)
        return checkpoint
    raise ValueError(f"no checkpoint can be read: {'; '.join(reasons)}")


def _server(checkpoint: Checkpoint, federation: Federation) -> tuple[Tree, list[Row]]:
    path = checkpoint.path / SERVER
    saved = read_tensors(path)
    with _named(path):
        check_server(saved.get("server"), federation.algorithm, federation.initial)
        check_history(saved.get("history"), last=checkpoint.round_idx)
    return saved["server"], saved["history"]


@contextmanager
def _named(path: Path) -> Iterator[None]:
    try:
        yield
    except BrokenCheckpointError as error:
        raise BrokenCheckpointError(f"{path}: {error}") from None


def _own_states(
    checkpoint: Checkpoint, world: World, check: Callable[[Any], None]
) -> dict[str, Any]:
    size = int(checkpoint.about["world_size"])
    ranks = [world.rank] if size == world.size else range(size)
    names = [clients_file(rank, size) for rank in ranks]
    parts: list[dict[str, Any]] = []
    for name in names:
        path = checkpoint.path / name
        saved = read_tensors(path, mapped=True).get("stacks")
        with _named(path):
            check(saved)
        parts += saved or []
    if size == world.size:
        return {"stacks": parts}
    return {"stacks": chain.from_iterable(_owned(part, world) for part in parts)}


def _owned(part: dict[str, Any], world: World) -> Iterator[dict[str, Any]]:
    """What this rank owns of a part, some rows at a time."""
    clients: list[int] = part["clients"].tolist()
    mine = [row for row, k in enumerate(clients) if owner(world, k) == world.rank]
    per_row = sum(leaf.nbytes for leaf in leaves(part["states"])) // max(len(clients), 1)
    for rows in torch.tensor(mine, dtype=torch.int64).split(max(AT_ONCE // max(per_row, 1), 1)):

        def taken(leaf: Tensor, rows: Tensor = rows) -> Tensor:
            return leaf.index_select(0, rows)

        yield {"clients": taken(part["clients"]), "states": tree_map(taken, part["states"])}


def _cut_tables(checkpoint: Checkpoint, federation: Federation) -> None:
    """Let the run folder's tables hold the rounds of the checkpoint and no others."""
    before, now = checkpoint.run_dir, federation.run_dir
    if (before / "metrics.csv").exists():
        RoundTable(now / "metrics.csv", COLUMNS).replace(federation.history)
    _cut(before / "clients.csv", now / "clients.csv", last=checkpoint.round_idx)


def _cut(source: Path, target: Path, *, last: int) -> None:
    if source.exists():
        rows = [row for row in read_rows(source) if int(row["round"]) <= last]
        RoundTable(target, CLIENT_COLUMNS).replace(rows)
