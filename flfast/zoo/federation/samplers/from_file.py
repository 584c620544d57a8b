"""Cohorts from a CSV file, such as the `clients.csv` of another run, which is replayed.

The file has a header, and a row for each client of a round, in any order:

    round,client_id
    1,0
    1,4
    2,             no client in round 2

A column `status` says who takes part: a `dropped` client drops out, a client without a status was
evaluated only, and all others receive the model and train. Whether their uploads then arrive, and
in time, is up to `faults`. Other columns are ignored.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from flfast.federation.samplers.cohort import Cohort, drop_out
from flfast.state.options import BelowOne
from flfast.zoo.state.csv_file import CsvFile, parse_integer, shortened

_TAKES_PART = ("trained", "lost", "rejected", "late")


class _Entry(NamedTuple):
    line: int
    dropped: bool


_Cohorts = dict[int, dict[int, _Entry]]
"""Round -> client -> its entry."""


def from_file(*, path: str, dropout: BelowOne) -> Callable[..., Cohort]:
    """Sampler that draws the cohorts in a file; the file is read once.

    The first cohort is drawn before training starts. That checks all rounds of the run.

    Raises:
        ValueError: with file, line and what is allowed, if the file cannot be read.
    """
    file = CsvFile("sampler.path", path)
    cohorts = _read(file)

    def draw(
        _num_clients: int,
        *,
        rng: np.random.Generator,
        round_idx: int,
        rounds: int,
        candidates: np.ndarray,
        held_out: np.ndarray,
    ) -> Cohort:
        if round_idx == 1:
            _check(file, cohorts, rounds, set(candidates.tolist()), set(held_out.tolist()))
        answers = [k for k, entry in cohorts[round_idx].items() if not entry.dropped]
        silent = [k for k, entry in cohorts[round_idx].items() if entry.dropped]
        drawn = drop_out(_places(answers, candidates), dropout, rng)
        dropped = np.concatenate([drawn.dropped, _places(silent, candidates)])
        return Cohort(drawn.clients, np.sort(dropped))

    return draw


def _places(clients: list[int], candidates: np.ndarray) -> np.ndarray:
    """Places of clients among the candidates, which are ascending."""
    return np.searchsorted(candidates, np.array(clients, dtype=np.int64))


def _check(
    file: CsvFile, cohorts: _Cohorts, rounds: int, candidates: set[int], held_out: set[int]
) -> None:
    """Refuse a file that lacks a round, or has clients that cannot be drawn."""
    for round_idx in range(1, rounds + 1):
        if round_idx not in cohorts:
            raise ValueError(
                f"sampler.path={file.path}: has no row of round {round_idx}; allowed: a row or "
                f"more for each round from 1 to rounds={rounds}, such as `{round_idx},` for no "
                f"client"
            )
        for client_id, entry in cohorts[round_idx].items():
            if client_id in held_out:
                raise ValueError(
                    f"{file.where(entry.line)}: client_id={client_id} is held out by "
                    f"sampler.holdout_clients; allowed: the other {len(candidates)} clients"
                )
            if client_id not in candidates:
                last = len(candidates) + len(held_out) - 1
                raise ValueError(
                    f"{file.where(entry.line)}: client_id={client_id} does not exist; allowed: "
                    f"0 to {last}"
                )


def _read(file: CsvFile) -> _Cohorts:
    """Cohorts by round; rounds without clients are empty."""
    cohorts: _Cohorts = {}
    for line, row in _rows(file):
        where = file.where(line)
        status, client = row.get("status"), row["client_id"]
        round_idx = parse_integer(where, "round", row["round"])
        takes_part = bool(client) if status is None else bool(status)
        if takes_part and round_idx == 0:
            raise ValueError(f"{where}: round=0 is before training; allowed: rounds from 1 on")
        clients = cohorts.setdefault(round_idx, {})
        if not takes_part:
            continue
        if status not in {None, "dropped", *_TAKES_PART}:
            raise ValueError(
                f"{where}: status={status}; allowed: dropped, {', '.join(_TAKES_PART)}, or none"
            )
        client_id = parse_integer(where, "client_id", client)
        if client_id in clients:
            raise ValueError(
                f"{where}: client_id={client_id} is already in round {round_idx}, in line "
                f"{clients[client_id].line}; allowed: once a round"
            )
        clients[client_id] = _Entry(line, dropped=status == "dropped")
    return cohorts


def _rows(file: CsvFile) -> Iterator[tuple[int, dict[str, str]]]:
    """(line, values by column) of every row."""
    lines = file.lines()
    line, header = next(lines)
    if not {"round", "client_id"} <= set(header):
        raise ValueError(
            f"{file.where(line)}: is {shortened(','.join(header))}; allowed: a header with the "
            f"columns round and client_id"
        )
    for line, values in lines:
        yield line, dict(zip(header, values, strict=True))
