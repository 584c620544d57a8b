"""Folders as runs leave them, without a run."""

from pathlib import Path

import yaml

from flfast.output.results.columns import CLIENT_COLUMNS, COLUMNS
from flfast.output.results.outcome import Result, write_result
from flfast.output.results.runs import RunRecord
from flfast.output.results.table import RoundTable


def write_run(folder, *, config=None, choices=None, num=None, rows=(), clients=()):
    """Write what Hydra and the tables of a run write; it has finished if it has rows.

    Args:
        folder: of the run.
        config: the composed config; `seed` is 0 unless it says otherwise.
        choices: option of each config group.
        num: job number in a sweep.
        rows: of `metrics.csv`.
        clients: rows of `clients.csv`.
    """
    hydra = folder / ".hydra"
    hydra.mkdir(parents=True)
    about = {"job": {"num": "???" if num is None else num}}
    about["runtime"] = {"choices": {"hydra/launcher": "basic", **(choices or {})}}
    (hydra / "hydra.yaml").write_text(yaml.safe_dump({"hydra": about}))
    (hydra / "config.yaml").write_text(yaml.safe_dump({"seed": 0, **(config or {})}))
    (hydra / "overrides.yaml").write_text("[]\n")
    for name, columns, contents in [
        ("metrics.csv", COLUMNS, rows),
        ("clients.csv", CLIENT_COLUMNS, clients),
    ]:
        table = RoundTable(folder / name, columns)
        for round_idx in sorted({row["round"] for row in contents}):
            own = [row for row in contents if row["round"] == round_idx]
            table.append(own, round_idx=round_idx)
    if rows:
        write_result(folder, Result("finished", {"seed": 0, **(config or {})}))
    return folder


def record(rows, choices, *, seed=0):
    """A finished run with these rows, as `read_run` reads it."""
    return RunRecord(
        folder=Path("/".join([*choices.values(), str(seed)])),
        num=seed,
        overrides={},
        choices=choices,
        config={"seed": seed},
        history=rows,
        outcome="finished",
        counts=True,
        error="",
        optimized="val/accuracy",
    )


def accuracies(*values, column="global/accuracy"):
    """Rows of `metrics.csv` with an accuracy in each round."""
    costs = {"time/train_s": 1.5, "time/eval_s": 0.5, "comm/up_bytes": 1e6, "comm/down_bytes": 1e6}
    return [{"round": n, column: value, **(costs if n else {})} for n, value in enumerate(values)]
