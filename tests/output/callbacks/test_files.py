import json
import time

import numpy as np
import pytest
from sampling import others_slow

from flfast.datamodules.shifts.rotation import rotation
from flfast.output.callbacks.clients_table import ClientsTable
from flfast.output.callbacks.curves import Curves
from flfast.output.callbacks.partition_report import PartitionReport, label_counts
from flfast.output.results.columns import CLIENT_COLUMNS
from flfast.output.results.table import read_rows

VIEWS = ("global", "local", "personal", "val", "personal_val")
PNG = b"\x89PNG"


def trained(loss):
    return {"status": "trained", "num_examples": 50, "num_steps": 5, "train/loss": loss}


def test_the_clients_table_has_a_row_for_every_round_and_client(federation):
    run = federation()
    table = ClientsTable(every_round=True)
    table.on_round_end(run, {"round": 0}, {2: {"local/accuracy": 0.1}})
    table.on_round_end(run, {"round": 1}, {7: {"status": "dropped"}, 3: trained(0.5)})
    path = run.run_dir / "clients.csv"
    rows = read_rows(path)
    assert tuple(path.read_text().splitlines()[0].split(",")) == CLIENT_COLUMNS
    assert [(row["round"], row["client_id"]) for row in rows] == [
        ("0", "2"),
        ("1", "3"),
        ("1", "7"),
    ]
    assert rows[1]["train/loss"] == "0.5"
    assert rows[2]["status"] == "dropped"
    assert rows[2]["num_steps"] == ""


def test_the_clients_table_can_keep_the_last_evaluated_round_alone(federation):
    run = federation()
    table = ClientsTable(every_round=False)
    for round_idx, clients in enumerate(
        [{0: {"local/loss": 2.0}}, {0: {**trained(1.0), "val/auc": 0.5}, 1: {}}, {0: trained(0.5)}]
    ):
        table.on_round_end(run, {"round": round_idx}, clients)
    rows = read_rows(run.run_dir / "clients.csv")
    assert [(row["round"], row["client_id"]) for row in rows] == [("1", "0"), ("1", "1")]


def test_a_resumed_run_repeats_no_client(federation):
    run = federation()
    for first in (1, 2):
        table = ClientsTable(every_round=True)
        for round_idx in range(first, 4):
            table.on_round_end(run, {"round": round_idx}, {0: trained(round_idx / 2)})
    assert [row["round"] for row in read_rows(run.run_dir / "clients.csv")] == ["1", "2", "3"]


@pytest.mark.parametrize("views", [pytest.param(("global",), marks=pytest.mark.slow), VIEWS])
def test_curves_are_drawn_for_whatever_was_measured(federation, history, views):
    run = federation()
    run.history = history(rounds=20, views=views)
    Curves(dpi=60, formats=["png"]).on_run_end(run)
    assert (run.run_dir / "curves.png").read_bytes().startswith(PNG)


def test_a_picture_is_written_in_every_format_and_equal_runs_write_equal_files(
    federation, history
):
    run, heads = federation(), {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}
    run.history = history(rounds=3)
    written = []
    for _ in range(2):
        Curves(dpi=60, formats=[*heads]).on_run_end(run)
        written.append({form: (run.run_dir / f"curves.{form}").read_bytes() for form in heads})
    assert all(written[0][form].startswith(head) for form, head in heads.items())
    assert written[0] == written[1]
    assert len([*run.run_dir.iterdir()]) == len(heads)


@pytest.mark.parametrize("rounds", [1, pytest.param(20, marks=pytest.mark.slow)])
def test_curves_over_virtual_time_are_a_second_row(federation, history, rounds):
    run = federation()
    heights = []
    for clock in (False, True):
        run.history = history(rounds=rounds, clock=clock)
        Curves(dpi=60, formats=["png"]).on_run_end(run)
        picture = (run.run_dir / "curves.png").read_bytes()
        assert picture.startswith(PNG)
        heights.append(int.from_bytes(picture[20:24], "big"))
    assert heights == [60 * 4.8, 60 * 8.8]


def test_curves_survive_a_run_of_which_little_is_known(federation):
    run = federation()
    for rows in ([], [{"round": 0}], [{"round": 0, "global/loss": float("nan")}]):
        run.history = rows
        Curves(dpi=60, formats=["png"]).on_run_end(run)
        assert not list(run.run_dir.iterdir())
    run.history = [{"round": 1, "train/loss": 1.0, "local/accuracy_std": 0.1}]
    Curves(dpi=60, formats=["png"]).on_run_end(run)
    assert (run.run_dir / "curves.png").exists()


def test_label_counts_are_those_of_each_client(federation):
    data = federation(num_clients=7, num_classes=4).data
    chosen = np.array([5, 0, 3])
    targets = data.examples.targets.numpy()
    for client_id, row in zip(chosen, label_counts(data, chosen), strict=True):
        own = np.concatenate([split.indices_of(client_id) for split in data.splits.values()])
        assert np.array_equal(row, np.bincount(targets[own], minlength=4))


def test_the_partition_report_accounts_for_every_example(federation):
    run = federation()
    report = PartitionReport(max_clients=100, dpi=60, formats=["png"])
    report.on_run_start(run)
    report.on_run_end(run)
    found = json.loads((run.run_dir / "partition.json").read_text())
    assert found["num_clients"] == len(found["clients"]) == 10
    assert found["num_classes"] == 10
    total = len(run.data.examples.targets)
    assert found["num_examples"] + found["num_central_test"] == total
    for client in found["clients"]:
        assert sum(client["labels"]) == client["train"] + client["val"] + client["test"]
    assert sum(sum(client["labels"]) for client in found["clients"]) == found["num_examples"]
    sizes = [sum(client["labels"]) for client in found["clients"]]
    size = {"min": min(sizes), "median": np.median(sizes), "max": max(sizes)}
    assert found["client_size"] == size
    with np.load(run.run_dir / "partition.npz") as written:
        assert np.array_equal(np.bincount(written["owner"]), sizes)
        assert written["owner"].dtype == np.uint8
        assert str(written["digest"]) == run.data.digest
    assert (run.run_dir / "partition.png").read_bytes().startswith(PNG)


def test_the_partition_report_says_what_clients_got_from_a_shift(federation):
    run = federation()
    PartitionReport(max_clients=100, dpi=60, formats=["png"]).on_run_start(run)
    assert "shift" not in (run.run_dir / "partition.json").read_text()
    run.data.shift = rotation(angles=[0, 90], max_degrees=0.0, assignment="cyclic", at="always")
    run.data.drawn = {"cluster": np.arange(10) % 2, "degrees": np.arange(10) % 2 * 90.0}
    PartitionReport(max_clients=100, dpi=60, formats=["png"]).on_run_start(run)
    found = json.loads((run.run_dir / "partition.json").read_text())
    assert found["shift"] == "rotation"
    assert found["clients"][3]["shift"] == {"cluster": 1, "degrees": 90.0}


@pytest.mark.parametrize(
    ("num_clients", "num_classes"),
    others_slow([(1, 2), (21, 10), (150, 30)], [(1, 2)]),
)
def test_partitions_of_any_size_are_drawn(federation, num_clients, num_classes):
    run = federation(num_clients=num_clients, num_classes=num_classes)
    PartitionReport(max_clients=100, dpi=60, formats=["png"]).on_run_end(run)
    assert (run.run_dir / "partition.png").read_bytes().startswith(PNG)


@pytest.mark.slow
def test_a_million_clients_are_reported_in_seconds(federation):
    run = federation(num_clients=1_000_000, num_examples=1_500_000)
    report = PartitionReport(max_clients=100, dpi=60, formats=["png"])
    start = time.perf_counter()
    report.on_run_start(run)
    report.on_run_end(run)
    assert time.perf_counter() - start < 5
    found = json.loads((run.run_dir / "partition.json").read_text())
    assert found["num_clients"] == 1_000_000
    assert len(found["clients"]) == 1000
