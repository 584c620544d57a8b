"""Columns of `metrics.csv`, `clients.csv` and `events.csv`, in order. Torch-free.

A metric's column is `view/name`. A view is a model and the data that it is evaluated on:

    global          server model, central test set
    local           server model, clients' own test sets
    personal        clients' own models, clients' own test sets
    finetuned       either of the two after `finetune_epochs`, clients' own test sets
    new             server model, test sets of held-out clients
    new_finetuned   server model after `finetune_epochs`, test sets of held-out clients
    val             server model, clients' validation sets
    personal_val    clients' own models, clients' validation sets

`attack/success` is the share of test examples with an attack's trigger that the server's model
puts into the attackers' class.

With models of different architectures, `personal/accuracy_NAME` is the weighted mean over the
clients that have the model NAME, for each view of clients. `time/train_s_NAME`,
`comm/up_bytes_NAME` and `cohort/clients_NAME` are of the clients with this model that were called.
Row 0 has `model/clients_NAME`, `model/parameters_NAME`, `model/flop_NAME` (of a forward pass of an
example) and `model/kept_bytes_NAME` (weights, and what a client keeps between rounds).

With a topology, `topology/distance` is the root of the mean squared distance of the nodes' models
to their mean, and `topology/sent_bytes` are models that nodes sent to each other in the round.
`topology/node_seconds` and `topology/exchange_seconds` are virtual, means over nodes.

Columns of other tasks than classification are added behind these, where measured. Of a user's
module they are all that there is: one for each name that it logs, `train/NAME` in training.
`privacy/`, `attack/` and others are appended where measured.
"""

from collections.abc import Sequence

from flfast.tasks.names import METRICS as TASK_METRICS

METRICS = TASK_METRICS["classification"]
VIEWS = ("global", "local", "personal", "finetuned", "new", "new_finetuned", "val", "personal_val")
_CLIENT_VIEWS = VIEWS[1:]

COLUMNS: tuple[str, ...] = (
    "round",
    "train/loss",
    *(f"global/{name}" for name in METRICS),
    *(
        f"{view}/{name}"
        for view in _CLIENT_VIEWS
        for name in (*METRICS, "accuracy_std", "accuracy_worst10")
    ),
    "time/train_s",
    "time/eval_s",
    "train/samples_per_s",
    "clock/seconds",
    "clock/staleness",
    "clock/staleness_max",
    "clock/in_flight",
    "comm/up_bytes",
    "comm/down_bytes",
    "cohort/clients",
    "cohort/idle",
    "cohort/dropped",
    "cohort/rejected",
    "plan/strategy",
    "plan/devices",
    "plan/precision",
    "plan/batch_size",
    "plan/accumulate",
    "plan/lr",
)

CLIENT_COLUMNS: tuple[str, ...] = (
    "round",
    "client_id",
    "status",
    "reason",
    "num_examples",
    "num_steps",
    "train/loss",
    *(f"{view}/{name}" for view in _CLIENT_VIEWS for name in METRICS),
)

EVENT_COLUMNS: tuple[str, ...] = ("round", "seconds", "kind", "client_id", "version", "staleness")

CALLBACK_TABLES = {"clients.csv": CLIENT_COLUMNS, "events.csv": EVENT_COLUMNS}
"""Columns of the tables that callbacks write. Their rows are not in checkpoints."""


def is_metric(column: str) -> bool:
    """Whether a column is of an evaluation."""
    return column.partition("/")[0] in VIEWS


def columns_of(columns: Sequence[str], task: str) -> list[str]:
    """Columns of a table before its first row; metrics of a user's module come with the rows."""
    return [name for name in columns if task != "module" or not is_metric(name)]
