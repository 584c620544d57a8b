"""Columns of `metrics.csv` and `clients.csv`, in their order. Torch-free.

A metric is `view/name`. The views are:

- `global`: the server's model on the central test set.
- `local`, `personal`: the server's and the personal models on the clients' own test data.
- `finetuned`: the models of `personal` (else `local`) after `finetune_epochs`, on the same data.
- `new`, `new_finetuned`: the server's model on held-out clients, before and after fine-tuning.
- `val`: validation data.
"""

METRICS = ("loss", "accuracy", "auc")
VIEWS = ("global", "local", "personal", "finetuned", "new", "new_finetuned", "val")
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
    f"{view}/{name}" for view in _CLIENT_VIEWS for name in METRICS
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
