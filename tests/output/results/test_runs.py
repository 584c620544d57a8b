import pytest
from run_folders import accuracies, write_run

from flfast.output.report.content import Content
from flfast.output.results import table
from flfast.output.results.outcome import RESULT
from flfast.output.results.runs import find_runs, last_clients, read_run
from flfast.output.results.settings import differing_keys, group_runs


@pytest.fixture
def make(tmp_path):
    def make(name, algorithm="fedavg", seed=0, rows=None, **config):
        choices = {"algorithm": algorithm, "data": "digits"}
        settings = {"seed": seed, **config}
        rows = accuracies(0.1, 0.5) if rows is None else rows
        return read_run(write_run(tmp_path / name, config=settings, choices=choices, rows=rows))

    return make


def test_a_run_is_what_its_folder_says(tmp_path):
    rows = accuracies(0.1, 0.5, column="val/accuracy")
    folder = write_run(
        tmp_path / "7", config={"rounds": 1}, choices={"data": "x"}, num=7, rows=rows
    )
    run = read_run(folder)
    assert (run.num, run.counts, run.seed, run.optimized) == (7, True, "0", "val/accuracy")
    assert run.choices == {"data": "x"}
    assert run.config == {"seed": 0, "rounds": 1}
    assert [row["val/accuracy"] for row in run.history] == ["0.1", "0.5"]


def test_runs_are_found_once_and_in_the_order_of_their_numbers(tmp_path):
    for num in range(11):
        write_run(tmp_path / "sweep" / str(num), num=num, rows=accuracies(0.5))
    found = find_runs([tmp_path / "sweep" / "3", tmp_path / "sweep", tmp_path])
    assert [run.num for run in found] == [3, 0, 1, 2, *range(4, 11)]


def test_folders_without_runs_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere: no such folder"):
        find_runs([tmp_path / "nowhere"])
    with pytest.raises(FileNotFoundError, match="holds no run"):
        find_runs([tmp_path])


def test_runs_with_broken_files(tmp_path):
    run = write_run(tmp_path / "a", rows=accuracies(0.5))
    (run / "metrics.csv").write_text("round,time/train_s\n1,x\n")
    assert not read_run(run).counts
    (run / ".hydra" / "config.yaml").write_text("{")
    with pytest.raises(ValueError, match=r"config\.yaml is no YAML"):
        read_run(run)


def test_runs_that_differ_in_the_seed_alone_are_one_setting(make):
    assert differing_keys([make("a", seed=1), make("b", seed=2)]) == []
    assert differing_keys([make("c"), make("d", "fedprox", lr=0.1)]) == ["algorithm", "lr"]


def test_options_of_different_algorithms_are_not_compared_with_each_other(tmp_path):
    def run(name, algorithm, **options):
        config = {"algorithm": {"_target_": algorithm, **options}}
        choices = {"algorithm": algorithm}
        return read_run(write_run(tmp_path / name, config=config, choices=choices))

    avg, weak, strong = run("a", "fedavg"), run("b", "fedprox", mu=0.1), run("c", "fedprox", mu=1)
    assert differing_keys([avg, weak]) == ["algorithm"]
    assert differing_keys([avg, weak, strong]) == ["algorithm", "algorithm.mu"]
    groups, _ = group_runs([avg, weak, strong])
    assert [g.label for g in groups] == ["fedavg", "fedprox · mu=0.1", "fedprox · mu=1"]


def test_models_of_one_option_are_told_apart_by_their_target(tmp_path):
    def run(name, target):
        config = {"model": {"_target_": target}}
        return read_run(write_run(tmp_path / name, config=config, choices={"model": "custom"}))

    assert differing_keys([run("a", "my.net"), run("b", "my.other")]) == ["model._target_"]


@pytest.mark.parametrize("outcome", ["finished", "killed"])
def test_only_a_run_that_has_finished_counts(make, outcome):
    run, other = make("a"), make("b", seed=1)
    if outcome == "killed":
        (run.folder / RESULT).unlink()
    run = read_run(run.folder)
    assert run.outcome == outcome
    assert [found.counts for found in Content([run, other]).runs] == [outcome == "finished", True]
    assert Content([run]).runs[0].counts


def test_a_seed_counts_once(make):
    bad = make("bad", rows=[])
    groups, left_out = group_runs([make("a"), make("b", seed=1), make("c"), bad])
    (only,) = groups
    assert [run.folder.name for run in only.runs] == ["c", "b"]
    assert [run.folder.name for run in left_out] == ["a", "bad"]


def test_where_a_run_is_logged_is_no_setting(make):
    runs = [make("a", overwrite=True, logger={"x": 1}), make("b", logger={"x": 2})]
    assert differing_keys(runs) == []


def test_how_a_run_is_computed_is_a_setting_since_its_seconds_differ(make):
    assert differing_keys([make("a", threads=1), make("b", threads=2)]) == ["threads"]


def test_clients_of_the_last_evaluated_round(tmp_path, monkeypatch):
    clients = [
        {"round": n, "client_id": client, **({"local/accuracy": 0.5} if n != 3 else {})}
        for n in range(4)
        for client in range(5)
    ]
    run = read_run(write_run(tmp_path / "run", clients=clients))
    whole = last_clients(run)
    assert [(row["round"], row["client_id"]) for row in whole] == [("2", str(n)) for n in range(5)]
    path = run.folder / "clients.csv"
    assert last_clients(run._replace(folder=tmp_path)) == []
    # A large file is read from its end; its first line there may be torn.
    lines = path.read_text().splitlines(keepends=True)
    monkeypatch.setattr(table, "_TAIL_BYTES", sum(map(len, lines[-11:])) - 3)
    assert last_clients(run) == whole
