"""Rows of `metrics.csv` and `clients.csv`."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from flfast.channel.channel import Channel
from flfast.channel.sent import ClientReport
from flfast.datamodules.evaluation_sets import ATTACK
from flfast.datamodules.population import Kinds
from flfast.engines.delivery import Trained
from flfast.engines.evaluation.metrics import GroupMetrics, part_of_groups, summary
from flfast.federation.samplers.cohort import Cohort
from flfast.state.plan import RoundPlan

Columns = dict[str, Any]
"""A row as a round makes it, or a part of one: column -> number or text."""

IDLE = "idle"
"""Status of clients of the cohort that were not selected to train."""


def idle_rows(
    trained: Trained, cohort: Cohort, answers: Mapping[int, ClientReport]
) -> dict[int, Columns]:
    """Status of each client of the cohort that was not called to train, by client.

    `answers` are the reports of other calls; what these uploaded may be lost or rejected.
    """
    called = {report.client_id for report in trained.reports}
    rows: dict[int, Columns] = {}
    for client_id in cohort.clients.tolist():
        answer = answers.get(client_id)
        if client_id in called:
            continue
        if answer is None or answer.status == "trained":
            rows[client_id] = {"status": IDLE}
        else:
            rows[client_id] = {"status": answer.status, "reason": answer.reason}
    return rows


def training_columns(
    trained: Trained, cohort: Cohort, idle: Mapping[int, Columns], *, seconds: float
) -> Columns:
    """Columns of a round's training.

    `train/loss` is the mean over the examples that accepted clients trained on. `cohort/clients`
    counts clients that were called to train, `cohort/idle` those that were not selected.
    `cohort/dropped` counts clients whose upload did not arrive in time, `cohort/rejected` uploads
    that arrived and were left out of the aggregate.
    """
    status = [row["status"] for row in idle.values()]
    accepted = [report for report in trained.reports if report.accepted]
    everybody = [*status, *(report.status for report in trained.reports)]
    missing = len(cohort.dropped) + len(cohort.late)
    missing += everybody.count("lost") + everybody.count("late")
    num_seen = sum(report.num_seen for report in trained.reports)
    num_accepted = sum(report.num_seen for report in accepted)
    row: Columns = {
        "time/train_s": seconds,
        "train/samples_per_s": num_seen / seconds,
        "cohort/clients": len(cohort.clients) - len(idle),
        "cohort/idle": status.count(IDLE),
        "cohort/dropped": missing,
        "cohort/rejected": everybody.count("rejected"),
    }
    if num_accepted:
        total = sum(report.loss * report.num_seen for report in accepted)
        row["train/loss"] = total / num_accepted
    row |= {f"train/{name}": mean for name, mean in _logged_means(accepted)}
    return row


def _logged_means(reports: Sequence[ClientReport]) -> Iterator[tuple[str, float]]:
    """What users' modules logged in training, over the examples of clients that logged it."""
    for name in dict.fromkeys(name for report in reports for name in report.logged):
        own = [(one.logged[name], one.num_examples) for one in reports if name in one.logged]
        yield name, sum(value * num for value, num in own) / max(sum(num for _, num in own), 1)


def plan_columns(plan: RoundPlan) -> Columns:
    """Columns of the round's plan."""
    by = f"/{plan.shard}" if plan.strategy == "ddp" else ""
    return {
        "plan/strategy": f"{plan.strategy}{by}",
        "plan/devices": plan.devices,
        "plan/precision": plan.arithmetic,
        "plan/batch_size": plan.batching.batch_size,
        "plan/accumulate": plan.batching.accumulate,
        "plan/lr": plan.lr,
    }


def channel_columns(channel: Channel, round_idx: int) -> Columns:
    """Columns with the privacy spent so far, and with the clipping norm if it adapts."""
    row: Columns = {}
    if channel.privacy.epsilon is not None:
        row["privacy/epsilon"] = channel.privacy.epsilon(round_idx)
    if channel.privacy.adaptive is not None:
        row["privacy/clip_norm"] = channel.clip_limit
    return row


def member_columns(reports: Sequence[ClientReport], kinds: Kinds | None) -> Columns:
    """Columns by member of a family; seconds of ranks are added, unless they divide batches."""
    row: Columns = {}
    for place, name in enumerate(kinds.names if kinds else ()):
        own = [report for report in reports if kinds and kinds.of[report.client_id] == place]
        if own:
            row[f"time/train_s_{name}"] = sum(report.seconds for report in own)
            row[f"comm/up_bytes_{name}"] = sum(report.up_bytes for report in own)
            row[f"cohort/clients_{name}"] = len({report.client_id for report in own})
    return row


def add_evaluation(
    row: Columns,
    clients: dict[int, Columns],
    results: Mapping[str, GroupMetrics],
    kinds: Kinds | None,
) -> None:
    """Add the columns of all evaluation sets to a round's row, and to rows of clients."""
    for name, metrics in results.items():
        row.update(evaluation_columns(name, metrics, kinds))
        for client_id, numbers in client_columns(name, metrics):
            clients.setdefault(client_id, {}).update(numbers)


def evaluation_columns(name: str, metrics: GroupMetrics, kinds: Kinds | None = None) -> Columns:
    """Columns of an evaluation set; a central set has no spread over clients.

    Of the central test set with an attack's trigger, the share that gets the attackers' class.
    Of clients with models of different architectures, also the headline's mean for each.
    """
    if name == ATTACK:
        return {"attack/success": summary(metrics)["accuracy"]}
    found = summary(metrics)
    if kinds is not None and metrics.of_clients:
        of = kinds.of[metrics.groups.numpy()]
        for place, kind in enumerate(kinds.names):
            part = part_of_groups(metrics, torch.from_numpy(np.flatnonzero(of == place)))
            if len(part.groups):
                key = metrics.headline
                found[f"{key}_{kind}"] = summary(part)[key]
    return {f"{name}/{key}": value for key, value in found.items()}


def client_columns(name: str, metrics: GroupMetrics) -> Iterator[tuple[int, Columns]]:
    """(client, columns) for every client with examples in the evaluation set."""
    if not metrics.of_clients:
        return
    values = {f"{name}/{key}": value.tolist() for key, value in metrics.values.items()}
    for place, client_id in enumerate(metrics.groups.tolist()):
        yield client_id, {column: value[place] for column, value in values.items()}


def client_rows(trained: Trained, cohort: Cohort) -> dict[int, Columns]:
    """Status and training columns of each client of the cohort, by client."""
    rows: dict[int, Columns] = {int(client): {"status": "dropped"} for client in cohort.dropped}
    rows |= {int(client): {"status": "late"} for client in cohort.late}
    for report in trained.reports:
        rows[report.client_id] = {
            "status": report.status,
            "reason": report.reason,
            "num_examples": report.num_examples,
            "num_steps": report.num_steps,
            "train/loss": report.loss,
            **{f"train/{name}": value for name, value in report.logged.items()},
        }
    return rows
