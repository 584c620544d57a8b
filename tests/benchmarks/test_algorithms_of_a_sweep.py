"""The table of a sweep over algorithms and seeds."""

from run_folders import record

from benchmarks.algorithms import megabytes_to_goal, table

ROWS = [
    {"round": "0", "personal/accuracy": "0.2", "local/accuracy": "0.1"},
    {"round": "1", "time/train_s": "0.5", "comm/up_bytes": "4e6", "comm/down_bytes": "1e6"},
    {
        "round": "2",
        "time/train_s": "0.3",
        "comm/up_bytes": "4e6",
        "comm/down_bytes": "1e6",
        "personal/accuracy": "0.92",
        "personal/accuracy_worst10": "0.7",
        "local/accuracy": "0.5",
        "local/accuracy_worst10": "0.1",
    },
]


def test_bytes_count_rounds_that_are_not_evaluated():
    assert megabytes_to_goal(ROWS, "personal/accuracy") == 10
    assert str(megabytes_to_goal(ROWS, "local/accuracy")) == "nan"


def test_seeds_are_averaged_and_the_best_models_come_first():
    worse = [{**row, "personal/accuracy": ""} for row in ROWS]
    jobs = [
        record(rows, {"algorithm": name}, seed=seed)
        for name, rows in {"fedavg": worse, "ditto": ROWS}.items()
        for seed in range(3)
    ]
    _, _, first, second = table(jobs).splitlines()
    assert first == "| `ditto` | 50.0 ± 0.0 | 92.0 ± 0.0 |  | 70.0 ± 0.0 | 400 | 10.0 |"
    assert second == "| `fedavg` | 50.0 ± 0.0 |  |  | 10.0 ± 0.0 | 400 |  |"
