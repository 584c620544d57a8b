"""Restores a checkpoint: the server state, the rows, and this rank's client states."""

import logging
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from flfast.algorithms.contract.algorithm import Algorithm
from flfast.checkpoints import contents
from flfast.checkpoints.files import read_tensors
from flfast.checkpoints.folders import (
    RECORDS,
    SERVER,
    BrokenCheckpointError,
    Checkpoint,
    clients_file,
    parts_of,
)
from flfast.datamodules.federated import FederatedDataModule
from flfast.datamodules.samples import CollatedSamples, StackedSamples
from flfast.distributed.assignment import owner
from flfast.distributed.world import World, gather
from flfast.engines.site import Site
from flfast.federation.table_rows import Columns
from flfast.output.results.columns import CALLBACK_TABLES
from flfast.output.results.table import RoundTable, read_rounds
from flfast.state.store import ClientStates
from flfast.state.tree import Tree, leaves, tree_map

log = logging.getLogger(__name__)

CHUNK_BYTES = 2**26
"""Bytes of client states that are copied at a time if the number of ranks has changed."""

COMPARED_BYTES = 2**32
"""Inputs up to this size are compared as a whole; larger ones may be memory-mapped files."""


def fingerprint(data: FederatedDataModule) -> str:
    """Checksum of client sizes, labels and inputs, to detect a resume with other data.

    Inputs that are read from a disk, or are larger than `COMPARED_BYTES`, are represented by one
    in a hundred, at most 1,000.
    """
    sizes = torch.from_numpy(np.ascontiguousarray(data.train_clients.sizes()))
    checksum = 0
    for values in (sizes, data.examples.targets, *_parts(data.examples.inputs)):
        buffer: Any = values.contiguous().view(torch.uint8).numpy()
        checksum = zlib.crc32(buffer, checksum)
    return f"{checksum:08x}"


def _parts(inputs: Tensor | Dataset[Tensor]) -> Iterator[Tensor]:
    """Inputs to compare, a few at a time. What users' Datasets read may differ every time."""
    if isinstance(inputs, CollatedSamples):
        return
    if isinstance(inputs, StackedSamples):
        for leaf in inputs.leaves:
            yield from _parts(leaf)
        return
    if isinstance(inputs, Tensor) and inputs.nbytes <= COMPARED_BYTES:
        yield from inputs.split(max(CHUNK_BYTES * len(inputs) // max(inputs.nbytes, 1), 1))
        return
    num: int = len(inputs)  # type: ignore[arg-type]
    chosen = np.linspace(0, num - 1, min(max(num // 100, 1), 1000)).astype(int)
    yield from (inputs[index] for index in chosen.tolist())


class Restored(NamedTuple):
    """The state from which a run resumes: the server's, rows, and those of pace and channel."""

    checkpoint: Checkpoint
    server: Tree
    history: list[Columns]
    pace: dict[str, Any]
    channel: Tree


def restore(
    candidates: Sequence[Checkpoint],
    site: Site,
    initial: Tree,
    *,
    any_data: bool = False,
    first_state: Callable[[int], Tree] | None = None,
) -> Restored:
    """Load the first checkpoint that can be loaded, client states included; collective.

    Replaces the client states and records of the site. The candidates are the same on every rank;
    `any_data` accepts checkpoints of other data. `first_state` gives a client's state before its
    first round; None: all clients have the same one.

    Raises:
        ValueError: if no checkpoint can be loaded, or it belongs to other data.
    """
    reasons: list[str] = []
    for checkpoint in candidates:
        try:
            found = _load_on_all_ranks(checkpoint, site, initial, first_state)
            loaded, own_states, records = found
        except BrokenCheckpointError as error:
            reasons.append(str(error))
            log.warning("skipping a broken checkpoint: %s", error)
            continue
        if not any_data and checkpoint.about["data"] != fingerprint(site.data):
            raise ValueError(
                f"{checkpoint.path} belongs to other data: clients, labels or inputs differ from "
                f"those that are loaded now"
            )
        _replace(site.states, own_states)
        _replace(site.records, records)
        return loaded
    raise ValueError(f"no checkpoint can be read: {'; '.join(reasons)}")


_States = list[dict[str, Any]]
"""A `state_dict` of `ClientStates`, and the changes since, in order."""


def _replace(states: ClientStates, loaded: _States) -> None:
    whole, *changes = loaded
    states.load_state_dict(whole)
    for part in changes:
        states.apply(part)


def _load_on_all_ranks(
    checkpoint: Checkpoint,
    site: Site,
    initial: Tree,
    first_state: Callable[[int], Tree] | None,
) -> tuple[Restored, _States, _States]:
    """Server state, own client states, and records; all ranks fail together; collective."""
    candidates = frozenset(site.data.candidates.tolist())
    state, record = contents.first_states(site.algorithm, initial)
    expected = first_state or (lambda _: state)
    check = partial(contents.check_states, expected=expected, candidates=candidates)
    failure: tuple[str, bool] | None = None
    try:
        loaded = load_server(checkpoint, site.algorithm, initial)
        own_states = _load_own_states(checkpoint, site.world, check)
        records: _States = [{"stacks": []}]
        if RECORDS in checkpoint.about["files"]:
            check = partial(check, expected=lambda _: record, name="records")
            records = _load_states(checkpoint, RECORDS, check)
    except Exception as error:  # noqa: BLE001 - all ranks must learn of it
        failure = str(error), isinstance(error, BrokenCheckpointError)
    failures = [f for f in gather(site.world, failure) if f is not None]
    # A temporary read error must not make us fall back to, and then delete, a newer checkpoint.
    for reason, broken in failures:
        if not broken:
            raise ValueError(f"{checkpoint.path} cannot be read: {reason}")
    if failures:
        raise BrokenCheckpointError(failures[0][0])
    return loaded, own_states, records


def load_server(checkpoint: Checkpoint, algorithm: Algorithm, initial: Tree) -> Restored:
    """Server state, rows and pace of a checkpoint, without client states.

    Raises:
        BrokenCheckpointError: if they are damaged, or those of another model.
    """
    path = checkpoint.path / SERVER
    saved = read_tensors(path, written=_written(checkpoint, SERVER))
    with _add_path_to_errors(path):
        contents.check_server(saved.get("server"), algorithm, initial)
        contents.check_history(saved.get("history"), last=checkpoint.round_idx)
        contents.check_pace(saved.get("pace"), algorithm, initial, last=checkpoint.round_idx)
        contents.check_memory(saved.get("channel"))
    kept = (saved[name] for name in ("server", "history", "pace", "channel"))
    return Restored(checkpoint, *kept)


def _written(checkpoint: Checkpoint, name: str) -> str:
    """Digest of a file as it was written."""
    return str(checkpoint.about["files"][name]["digest"])


@contextmanager
def _add_path_to_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except BrokenCheckpointError as error:
        raise BrokenCheckpointError(f"{path}: {error}") from None


def _load_own_states(
    checkpoint: Checkpoint, world: World, check: Callable[[Any], None]
) -> _States:
    """Client states that this rank owns, and their changes."""
    size = int(checkpoint.about["world_size"])
    if size == world.size:
        return _load_states(checkpoint, clients_file(world.rank, size), check)
    files = [_load_states(checkpoint, clients_file(rank, size), check) for rank in range(size)]
    whole = [stack for file in files for stack in file[0]["stacks"]]
    changes = [part for file in files for part in file[1:]]
    return [
        {
            "stacks": chain.from_iterable(_owned_rows(stack, world) for stack in stacks),
            "dropped": dropped,
        }
        for stacks, dropped in ((whole, None), *((p["stacks"], p["dropped"]) for p in changes))
    ]


def _load_states(checkpoint: Checkpoint, name: str, check: Callable[[Any], None]) -> _States:
    """Contents of a file of states, and of those of its changes."""
    found: _States = []
    for part in parts_of(name, checkpoint.about["files"]):
        path = checkpoint.path / part
        saved = read_tensors(path, written=_written(checkpoint, part), mapped=True)
        with _add_path_to_errors(path):
            check(saved.get("stacks"))
            if found:
                contents.check_dropped(saved.get("dropped"))
        found.append(saved)
    return found


def _owned_rows(stack: dict[str, Any], world: World) -> Iterator[dict[str, Any]]:
    """Chunks of the stack's rows that belong to this rank's clients."""
    clients: list[int] = stack["clients"].tolist()
    owned = [row for row, k in enumerate(clients) if owner(world, k) == world.rank]
    row_bytes = sum(leaf.nbytes for leaf in leaves(stack["states"])) // max(len(clients), 1)
    chunk_rows = max(CHUNK_BYTES // max(row_bytes, 1), 1)
    for rows in torch.tensor(owned, dtype=torch.int64).split(chunk_rows):

        def select(leaf: Tensor, rows: Tensor = rows) -> Tensor:
            return leaf.index_select(0, rows)

        yield {"clients": select(stack["clients"]), "states": tree_map(select, stack["states"])}


def write_table(restored: Restored, run_dir: Path, name: str) -> None:
    """Write a callback's table up to the checkpoint's round, from that of the resumed run.

    The checkpoint does not have its rows. If the table lacks some of them, a warning says so.
    """
    checkpoint = restored.checkpoint
    source, last = checkpoint.run_dir / name, checkpoint.round_idx
    written = checkpoint.about["tables"].get(name, 0)
    try:
        found = source.stat().st_size if source.exists() else 0
        rows = read_rounds(source, last)
        lost = None if found >= written else f"{source} has {found} of {written} bytes"
    except ValueError as error:
        rows, lost = [], str(error)
    if lost is not None:
        log.warning("%s: rows of rounds up to %d are lost", lost, last)
    if rows or written:
        RoundTable(run_dir / name, [*rows[0]] if rows else CALLBACK_TABLES[name]).replace(rows)
    else:  # the resumed run wrote no such table
        (run_dir / name).unlink(missing_ok=True)
