"""Columns of `metrics.csv` and `clients.csv`, in their order. Torch-free.

A metric is `view/name`. Views: `global` is the server model on the central test set; `local` is
the server model, `personal` the client's own, and `finetuned` either after `finetune_epochs`, on
every client's own test data; `new` and `new_finetuned` are the server model on clients held out;
`val` is validation data.
"""

VIEWS = ("global", "local", "personal", "finetuned", "new", "new_finetuned", "val")
_OVER_CLIENTS = ("loss", "accuracy", "auc", "accuracy_std", "accuracy_worst10")

COLUMNS: tuple[str, ...] = (
    "round",
    "train/loss",
    *(f"global/{name}" for name in _OVER_CLIENTS[:3]),
    *(f"{view}/{name}" for view in VIEWS[1:] for name in _OVER_CLIENTS),
    "time/train_s",
    "time/eval_s",
    "train/samples_per_s",
    "comm/up_bytes",
    "comm/down_bytes",
    "cohort/clients",
    "cohort/dropped",
    "cohort/rejected",
    "plan/strategy",
    "plan/devices",
    "plan/precision",
    "plan/batch_size",
    "plan/accumulate",
    "plan/lr",
)

CLIENT_EVALUATION: tuple[str, ...] = tuple(
    f"{view}/{name}" for view in VIEWS[1:] for name in _OVER_CLIENTS[:3]
)

CLIENT_COLUMNS: tuple[str, ...] = (
    "round",
    "client_id",
    "status",
    "reason",
    "num_examples",
    "num_steps",
    "train/loss",
    *CLIENT_EVALUATION,
)
