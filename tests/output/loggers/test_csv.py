import csv

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flfast.output.loggers.csv import RoundCSVLogger
from flfast.output.results.columns import COLUMNS
from flfast.output.results.table import RoundTable, read_rows


def read(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def header(path):
    return path.read_text().splitlines()[0].split(",")


def test_the_header_holds_every_column_in_the_documented_order():
    five = ["loss", "accuracy", "auc", "accuracy_std", "accuracy_worst10"]
    names = ("local", "personal", "finetuned", "new", "new_finetuned", "val", "personal_val")
    views = [f"{view}/{name}" for view in names for name in five]
    assert COLUMNS[:5] == ("round", "train/loss", "global/loss", "global/accuracy", "global/auc")
    assert list(COLUMNS[5:40]) == views
    assert COLUMNS[40] == "time/train_s"
    assert COLUMNS[-1] == "plan/lr"
    assert len(set(COLUMNS)) == len(COLUMNS) == 59


def test_every_row_is_on_the_disk_as_soon_as_it_is_logged(tmp_path):
    logger = RoundCSVLogger(save_dir=str(tmp_path / "new"))
    logger.log_metrics({"round": 0, "global/accuracy": 0.1}, step=0)
    logger.log_metrics({"round": 1, "train/loss": 0.25, "plan/strategy": "ddp"}, step=1)
    path = tmp_path / "new" / "metrics.csv"
    rows = read(path)
    assert header(path) == list(COLUMNS)
    assert rows[0]["global/accuracy"] == "0.1"
    assert rows[0]["train/loss"] == ""
    assert rows[1]["plan/strategy"] == "ddp"
    assert float(rows[1]["train/loss"]) == 0.25


def test_columns_that_nobody_foresaw_go_to_the_end_and_lose_nothing(tmp_path):
    logger = RoundCSVLogger(save_dir=str(tmp_path))
    logger.log_metrics({"global/loss": 2.0}, step=0)
    logger.log_metrics({"global/loss": 1.0, "dp/epsilon": 3.5}, step=1)
    logger.log_metrics({"server/norm": 7.0, "dp/epsilon": 4.5}, step=2)
    path = tmp_path / "metrics.csv"
    assert header(path) == [*COLUMNS, "dp/epsilon", "server/norm"]
    rows = read(path)
    assert [row["global/loss"] for row in rows] == ["2.0", "1.0", ""]
    assert [row["dp/epsilon"] for row in rows] == ["", "3.5", "4.5"]
    assert [row["round"] for row in rows] == ["0", "1", "2"]


def test_a_row_without_a_round_is_refused(tmp_path):
    with pytest.raises(ValueError, match="needs the round"):
        RoundCSVLogger(save_dir=str(tmp_path)).log_metrics({"train/loss": 1.0})


def test_lightning_finds_the_run_folder_and_may_hand_over_hyperparameters(tmp_path):
    logger = RoundCSVLogger(save_dir=str(tmp_path))
    logger.log_hyperparams({"lr": 0.1})
    logger.finalize("success")
    assert logger.save_dir == str(tmp_path)
    assert (logger.name, logger.version) == ("", "")
    assert list(tmp_path.iterdir()) == []


def test_half_a_line_of_a_killed_run_is_dropped(tmp_path):
    path = tmp_path / "metrics.csv"
    RoundTable(path, ("round", "x")).append([{"round": 1, "x": 5}], round_idx=1)
    with path.open("a") as file:
        file.write("2,0.")
    assert read_rows(path) == [{"round": "1", "x": "5"}]
    RoundTable(path, ("round", "x")).append([{"round": 2, "x": 6}], round_idx=2)
    assert path.read_text() == "round,x\n1,5\n2,6\n"


cells = st.dictionaries(
    st.sampled_from(["train/loss", "plan/strategy", "new/a", "new/b"]),
    st.one_of(st.floats(allow_nan=False), st.text(alphabet='ab,"; ', max_size=5)),
)


@given(rows=st.lists(cells, min_size=1, max_size=8), data=st.data())
def test_a_resumed_run_leaves_the_file_of_one_never_killed(tmp_path_factory, rows, data):
    folder = tmp_path_factory.mktemp("csv")
    killed = data.draw(st.integers(0, len(rows)))
    resumed = data.draw(st.integers(0, killed))
    whole, parts = folder / "whole.csv", folder / "parts.csv"
    table = RoundTable(whole, COLUMNS)
    first, second = RoundTable(parts, COLUMNS), RoundTable(parts, COLUMNS)
    for round_idx, row in enumerate(rows):
        table.append([{"round": round_idx, **row}], round_idx=round_idx)
        if round_idx < killed:
            first.append([{"round": round_idx, **row}], round_idx=round_idx)
    for round_idx, row in list(enumerate(rows))[resumed:]:
        second.append([{"round": round_idx, **row}], round_idx=round_idx)
    expected = [{key: v for key, v in row.items() if v} for row in read_rows(whole)]
    assert [{key: v for key, v in row.items() if v} for row in read_rows(parts)] == expected
    assert [float(row["round"]) for row in expected] == list(range(len(rows)))


def test_rows_that_the_disk_does_not_take_wait_for_the_next(tmp_path, caplog):
    table = RoundTable(tmp_path / "metrics.csv", ("round", "loss"))
    table.append([{"round": 0, "loss": 3}], round_idx=0)
    blocked = tmp_path / "metrics.csv.tmp"
    blocked.mkdir()
    for round_idx in (1, 2):  # a new column: the table is written anew, which fails
        table.append([{"round": round_idx, "loss": 1, f"c{round_idx}": 5}], round_idx=round_idx)
    assert caplog.text.count("training continues") == 1
    assert [row["round"] for row in read(tmp_path / "metrics.csv")] == ["0"]
    blocked.rmdir()
    table.append([{"round": 3, "loss": 0}], round_idx=3)
    rows = read(tmp_path / "metrics.csv")
    assert [row["round"] for row in rows] == ["0", "1", "2", "3"]
    assert [rows[1]["c1"], rows[2]["c2"], rows[3]["c1"]] == ["5", "5", ""]
