"""The section about models of their own, of runs with and without a family."""

from composing import FILES

import flfast
from flfast.output.report.content import Content
from flfast.output.report.model_sections import models
from flfast.output.results.formats import value
from flfast.output.results.runs import read_run
from flfast.output.results.table import read_history, read_rounds

SMALL = (
    *(*FILES, "partition.num_clients=4", "partition.alpha=5", "rounds=2"),
    *("local_epochs=1", "strategy=single", "algorithm=local", "engine=eager", "batch_size=50"),
)
FAMILY = ("model=family", "model.of=[logistic, {mlp: {hidden: [8]}}]", "model.feature_dim=null")


def test_clients_are_told_apart_by_their_model(tmp_path):
    flfast.run(*SMALL, *FAMILY, folder=tmp_path)
    section = models(Content([read_run(tmp_path)]))
    assert [row[1] for row in section.tables[0].rows] == ["logistic", "mlp"]
    assert len(section.charts) == 1
    row = read_history(tmp_path / "metrics.csv")[-1]
    own = [r for r in read_rounds(tmp_path / "clients.csv", 2) if int(r["round"]) == 2]
    accuracy = {int(r["client_id"]): float(r["personal/accuracy"]) for r in own}
    for place, name in enumerate(("logistic", "mlp")):
        clients = [accuracy[place], accuracy[place + 2]]
        found = float(row[f"personal/accuracy_{name}"])
        assert min(clients) - 1e-9 <= found <= max(clients) + 1e-9
    whole = float(row["personal/accuracy"])
    parts = [float(row[f"personal/accuracy_{name}"]) for name in ("logistic", "mlp")]
    assert min(parts) <= whole <= max(parts)


def test_costs_are_those_of_a_client_and_a_round(tmp_path):
    """Of 64 inputs, h units, and a head of 8 features and 10 classes, which is uploaded."""
    of = "model.of=[{mlp: {hidden: [16]}}, {mlp: {hidden: [4]}}]"
    words = ("model=family", of, "algorithm=lg_fedavg", "model.feature_dim=8")
    flfast.run(*SMALL, *words, folder=tmp_path)
    history = read_history(tmp_path / "metrics.csv")
    table = models(Content([read_run(tmp_path)])).tables[1]
    cells = [dict(zip(table.headings, row, strict=True)) for row in table.rows]
    head = 8 * 10 + 10
    for row, name, num in zip(cells, ("mlp", "mlp-2"), (16, 4), strict=True):
        assert (row["model"], row["clients"]) == (name, "2")
        assert row["parameters"] == f"{65 * num + head:,}"
        assert row["uploaded"] == value("bytes", 4 * head), "float32"
        seconds = [float(h[f"time/train_s_{name}"]) for h in history[1:]]
        assert row["seconds"] == value("s", sum(seconds) / 4)
    for row in history[1:]:
        parts = [float(row[f"comm/up_bytes_{name}"]) for name in ("mlp", "mlp-2")]
        assert sum(parts) == float(row["comm/up_bytes"])
        times = [float(row[f"time/train_s_{name}"]) for name in ("mlp", "mlp-2")]
        assert min(times) > 0
        assert sum(times) < float(row["time/train_s"])


def test_one_architecture_has_no_section(tmp_path):
    flfast.run(*SMALL, "model=logistic", folder=tmp_path)
    section = models(Content([read_run(tmp_path)]))
    assert not section.charts and not any(table.rows for table in section.tables)
