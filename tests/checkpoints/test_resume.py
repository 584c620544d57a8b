"""Runs that go on from a checkpoint, through the command, in this process."""

import json
import shutil

import pytest
import torch
from sampling import others_slow
from tables import assert_same_numbers, rows, timeless

from flfast.checkpoints import keeper, restore
from flfast.checkpoints.files import digest
from flfast.checkpoints.folders import (
    checkpoint_folders,
    clients_file,
    find_checkpoints,
    read_checkpoint,
)
from flfast.distributed.world import World
from flfast.state.store import ClientStates

TABLES = (
    "+callbacks.table={_target_: flfast.output.callbacks.clients_table.ClientsTable,"
    " every_round: true}",
    "+callbacks.events={_target_: flfast.output.callbacks.events_table.EventsTable}",
)
SMALL = ("experiment=quick", "callbacks=none", "model.hidden=[16]", "checkpoint.every=1")
SMALL = (*SMALL, "batch_size=50", *TABLES)


def log_of(folder):
    return (folder / "train.log").read_text()


def tensors(folder):
    """Every tensor of a run's last checkpoint, by name."""
    found = {}

    def walk(prefix, node):
        if isinstance(node, torch.Tensor):
            found[prefix] = node
        elif isinstance(node, dict | list):
            for name, child in node.items() if isinstance(node, dict) else enumerate(node):
                walk(f"{prefix}/{name}", child)

    latest = checkpoint_folders(folder)[0]
    for path in sorted(latest.glob("*.pt")):
        walk(path.name, torch.load(path, weights_only=True))
    return found


def assert_identical(found, expected):
    left, right = tensors(found), tensors(expected)
    assert left.keys() == right.keys()
    for name, value in right.items():
        assert torch.equal(left[name], value), name
    assert timeless(found) == timeless(expected)
    assert (found / "clients.csv").read_text() == (expected / "clients.csv").read_text()
    assert events(found) == events(expected)


def events(folder):
    """Text of `events.csv`; None if there is none."""
    path = folder / "events.csv"
    return path.read_text() if path.exists() else None


SCAFFOLD, EAGER = "algorithm=scaffold", "engine=eager"  # which starts sooner


RESUMED = [
    "engine=fused schedule=adaptive schedule.adapt.patience=1",
    "algorithm=scaffold engine=fused sampler=cyclic sampler.dropout=0.3 compression=topk",
    "selection=oort selection.count=2 sampler.fraction=0.7 algorithm=scaffold engine=eager",
    "selection=power_of_choice selection.count=2 algorithm=mime engine=eager",
    "algorithm=ditto engine=eager eval_every=2 compression=sign"
    " schedule.phases=[{from:1,overrides:['batch_size=20']}]",
    "algorithm=fedadam engine=eager lr_schedule=exponential sampler=poisson",
    "privacy=central privacy.adaptive_quantile=0.5 sampler=cyclic engine=eager",
    "privacy=dp_ftrl privacy.mechanism=banded sampler=cyclic sampler.fraction=0.2 engine=eager",
    "algorithm=feddf split.server_examples=50 algorithm.server_steps=5 engine=eager",
    "local_optimizer_state=keep optimizer.momentum=0.9 client_states=disk",
    "pace=buffered pace.buffer=2 devices=lognormal devices.hazard=0.01",
    "pace.keep_first=3 devices=tiers adapter=lora engine=eager",
    "aggregation=centered_clipping attack=alie engine=eager",
    "algorithm=fedavg secure=masks sampler.dropout=0.3 secure.threshold=0.3 engine=eager",
    "aggregation=fltrust split.server_examples=50 algorithm=scaffold engine=eager",
]


@pytest.mark.parametrize("overrides", others_slow(RESUMED, RESUMED[4:5]))
def test_a_resumed_run_is_one_that_never_stopped(flfast_run, overrides):
    words = (*SMALL, *overrides.split(), "rounds=4", "checkpoint.keep_last=4")
    whole = flfast_run(*words, run_dir="whole")
    (second,) = whole.glob("checkpoints/round-000002")
    parts = flfast_run(*words, f"resume={second}", run_dir="parts")
    assert_identical(parts, whole)


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """Where a run is kept that several tests begin with."""
    return tmp_path_factory.mktemp("kept") / "stopped"


@pytest.fixture
def stopped(flfast_run, kept, tmp_path):
    """Folder of a SCAFFOLD run that did 2 rounds."""
    if kept.exists():
        shutil.copytree(kept, tmp_path / "stopped")
    else:
        flfast_run(*SMALL, SCAFFOLD, EAGER, "rounds=2", run_dir="stopped")
        shutil.copytree(tmp_path / "stopped", kept)
    return tmp_path / "stopped"


def assert_same_weights(found, expected):
    """Of the server, and whatever else it keeps, after other sums in float32."""
    left, right = (
        {name: value for name, value in tensors(folder).items() if name.startswith("server.pt")}
        for folder in (found, expected)
    )
    assert any("params" in name for name in right)
    torch.testing.assert_close(left, right, rtol=1e-5, atol=1e-6)


def go_on(flfast_run, *overrides, run_dir="stopped"):
    engine = () if any(word.startswith("engine=") for word in overrides) else (EAGER,)
    words = (SCAFFOLD, *engine, "rounds=3", "resume=auto", *overrides)
    return flfast_run(*SMALL, *words, run_dir=run_dir)


@pytest.mark.slow
def test_another_folder_goes_on_from_a_path_and_has_all_rounds(flfast_run, stopped):
    before = (stopped / "metrics.csv").read_text()
    other = go_on(flfast_run, f"resume={stopped}", run_dir="other")
    same = go_on(flfast_run)
    assert_identical(other, same)
    assert (same / "metrics.csv").read_text().startswith(before)
    assert [row["round"] for row in rows(other)] == ["0", "1", "2", "3"]


def test_a_run_goes_on_from_what_changed_in_each_round(flfast_run, monkeypatch):
    monkeypatch.setattr(keeper, "SMALL_BYTES", 0)
    words = (*SMALL, SCAFFOLD, EAGER, "sampler.fraction=0.1", "rounds=6")
    whole = flfast_run(*words, "checkpoint.keep_last=9", run_dir="whole")
    earlier = checkpoint_folders(whole)[1:]
    changed = next(path for path in earlier if (path / "clients-0-of-1.1.pt").exists())
    again = flfast_run(*words, f"resume={changed}", run_dir="again")
    assert timeless(again) == timeless(whole)
    left, right = (tensors(folder) for folder in (again, whole))
    for name in (name for name in right if name.startswith("server.pt")):
        assert torch.equal(left[name], right[name]), name


def test_an_earlier_round_is_gone_back_to(flfast_run, stopped):
    whole = go_on(flfast_run, run_dir="stopped")
    earlier = checkpoint_folders(stopped)[1]
    assert read_checkpoint(earlier).round_idx == 2
    words = (*SMALL, SCAFFOLD, EAGER, "rounds=2", f"resume={earlier}")
    again = flfast_run(*words, run_dir="again")
    assert [row["round"] for row in rows(again)] == ["0", "1", "2"]
    assert timeless(again) == timeless(whole)[:3]


def test_what_was_written_of_a_round_without_checkpoint_is_written_anew(flfast_run, stopped):
    """A kill leaves rows after the checkpoint's, the last of them torn."""
    whole = go_on(flfast_run, f"resume={stopped}", run_dir="whole")
    for name in ("metrics.csv", "clients.csv"):
        with (stopped / name).open("a") as file:
            file.write((whole / name).read_text().splitlines()[-1] + "\n3,0.1")
    assert_identical(go_on(flfast_run), whole)


@pytest.mark.slow
def test_events_after_the_checkpoint_are_written_anew(flfast_run):
    """Another folder gets the events up to the checkpoint; lost ones are a warning."""
    words = (*SMALL, EAGER, "pace=async", "devices=tiers")
    whole = flfast_run(*words, "rounds=6", run_dir="whole")
    assert events(whole).count("step") == 6
    third = checkpoint_folders(flfast_run(*words, "rounds=3", run_dir="parts"))[0]
    with (third.parents[1] / "events.csv").open("a") as file:
        file.write(events(whole).splitlines()[-1] + "\n7,1.5,arr")
    for resume, run_dir in ((third, "other"), ("auto", "parts")):
        resumed = flfast_run(*words, "rounds=6", f"resume={resume}", run_dir=run_dir)
        assert events(resumed) == events(whole)
        assert "are lost" not in log_of(resumed)
    (whole / "events.csv").write_text(events(whole)[:300])
    flfast_run(*words, "rounds=7", "resume=auto", run_dir="whole")
    assert "events.csv has 300 of" in log_of(whole)
    assert "rows of rounds up to 6 are lost" in log_of(whole)


HARDWARE = [
    "strategy=dp trainer.devices=2 trainer.accelerator=cpu",
    "engine=eager client_states=disk loader.eval_batch_size=7",
]


@pytest.mark.slow
@pytest.mark.parametrize("overrides", HARDWARE)
def test_other_hardware_gives_the_same_numbers(flfast_run, stopped, overrides):
    same = go_on(flfast_run, f"resume={stopped}", "rounds=4", run_dir="same")
    go_on(flfast_run, *overrides.split())
    back = go_on(flfast_run, "engine=fused", "rounds=4")
    assert_same_numbers(rows(back), rows(same))
    assert_same_weights(back, same)


def test_a_run_goes_on_with_more_ranks_and_with_fewer(flfast_run, stopped):
    ranks = ("strategy=ddp", "trainer.devices=2")
    alone = go_on(flfast_run, f"resume={stopped}", "rounds=5", run_dir="alone")
    folder = go_on(flfast_run, *ranks, "rounds=4")
    about = read_checkpoint(checkpoint_folders(folder)[0]).about
    assert (about["round"], about["world_size"], len(about["files"])) == (4, 2, 3)
    assert len(about["decided"]) == 2
    back = go_on(flfast_run, "rounds=5")
    assert_same_numbers(rows(back), rows(alone))
    assert_same_weights(back, alone)


@pytest.mark.slow
@pytest.mark.parametrize("full", [[1], [0, 1]], ids=["one", "both"])
def test_a_disk_that_is_full_for_ranks_is_one_warning_and_training_goes_on(flfast_run, full):
    """A server state has 150 kB, the clients of a rank more."""
    large = (*SMALL, "model.hidden=[256]", "algorithm=scaffold", "engine=eager", "local_epochs=1")
    words = (*large, "strategy=ddp", "trainer.devices=2", "rounds=4")
    disk = f"+callbacks.disk={{_target_: ranks_that_fail.FullDisk, ranks: {full}}}"
    folder = flfast_run(*words, disk)
    assert log_of(folder).count("training continues") == 1
    assert not list((folder / "checkpoints").glob("*.part"))
    assert read_checkpoint(checkpoint_folders(folder)[0]).round_idx == 2
    before = timeless(folder)
    assert [row["round"] for row in before] == ["0", "1", "2", "3", "4"]
    if full == [1]:
        assert timeless(flfast_run(*words, "resume=auto")) == before
        assert read_checkpoint(checkpoint_folders(folder)[0]).round_idx == 4


def test_states_of_any_world_are_dealt_to_any_other(stopped, monkeypatch):
    """Every client's state is on its owner, once, whatever the number of ranks was."""
    monkeypatch.setattr(restore, "CHUNK_BYTES", 1)  # a row at a time

    def known(stacks):
        assert stacks

    (checkpoint, *_) = find_checkpoints("auto", stopped)

    def load(states, world):
        restore._replace(states, restore._load_own_states(checkpoint, world, known))

    whole = ClientStates()
    load(whole, World())
    assert len(whole) > 3
    for size in (2, 3):
        for rank in range(size):
            part = ClientStates()
            load(part, World(rank, size))
            assert len(part) == sum(
                k % size == rank and whole.get(k) is not None for k in range(10)
            )
            path = checkpoint.path / clients_file(rank, size)
            torch.save(part.state_dict(), path)
            checkpoint.about["files"][path.name] = {"digest": digest(path)}
        checkpoint.about["world_size"] = size
    again = ClientStates()
    load(again, World())
    for k in range(10):
        left, right = whole.get(k), again.get(k)
        assert (left is None) == (right is None)
        if left is not None:
            torch.testing.assert_close(left, right, rtol=0, atol=0)


def test_a_broken_checkpoint_is_passed_over_with_a_warning(flfast_run, stopped):
    whole = go_on(flfast_run, f"resume={stopped}", run_dir="whole")
    newest, _ = checkpoint_folders(stopped)
    # As long as it was, so that only reading it tells.
    size = (newest / "server.pt").stat().st_size
    (newest / "server.pt").write_bytes(bytes(size))
    assert_identical(go_on(flfast_run), whole)
    assert "skipping a broken checkpoint" in log_of(stopped)


def test_client_states_of_another_round_are_not_taken(flfast_run, stopped):
    """Two checkpoints whose files have changed places: neither is used."""
    newest, older = checkpoint_folders(stopped)
    name = clients_file(0, 1)
    assert (newest / name).read_bytes() != (older / name).read_bytes()
    (newest / name).rename(stopped / name)
    (older / name).rename(newest / name)
    (stopped / name).rename(older / name)
    with pytest.raises(SystemExit):
        go_on(flfast_run)


def refused(flfast_run, capsys, *overrides):
    with pytest.raises(SystemExit) as stop:
        go_on(flfast_run, *overrides)
    assert stop.value.code == 2
    return capsys.readouterr().err


def test_another_experiment_is_refused_and_nothing_is_touched(flfast_run, stopped, capsys):
    before = (stopped / "metrics.csv").read_text()
    said = refused(flfast_run, capsys, "seed=3", "optimizer.lr=1.0")
    assert "seed: 0 -> 3" in said
    assert "optimizer.lr: 0.05 -> 1.0" in said
    assert "rounds=1: the checkpoint is of round 2" in refused(flfast_run, capsys, "rounds=1")
    assert "resume=auto to go on with it" in refused(flfast_run, capsys, "resume=null")
    assert "there is no checkpoint" in refused(flfast_run, capsys, "resume=nowhere")
    assert (stopped / "metrics.csv").read_text() == before


def test_the_fingerprint_of_data_sees_inputs(make_data, monkeypatch):
    inputs = torch.rand(9, 5)
    changed = inputs.clone()
    changed[4, 3] += 1e-3

    class Files(torch.utils.data.Dataset):
        def __init__(self, inputs):
            self.inputs = inputs

        def __len__(self):
            return len(self.inputs)

        def __getitem__(self, index):
            return self.inputs[index]

    first = restore.fingerprint(make_data([5, 4], inputs=inputs))
    assert restore.fingerprint(make_data([5, 4], inputs=inputs.clone())) == first
    assert restore.fingerprint(make_data([5, 4], inputs=changed)) != first
    assert restore.fingerprint(make_data([4, 5], inputs=inputs)) != first
    read = restore.fingerprint(make_data([5, 4], inputs=Files(inputs)))
    assert restore.fingerprint(make_data([5, 4], inputs=Files(inputs + 1))) != read
    monkeypatch.setattr(restore, "COMPARED_BYTES", inputs.nbytes - 1)
    assert restore.fingerprint(make_data([5, 4], inputs=inputs)) == read


def test_other_data_under_the_same_name_are_refused(flfast_run, stopped, capsys):
    path = checkpoint_folders(stopped)[0] / "about.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "data": "00000000"}))
    assert "belongs to other data" in refused(flfast_run, capsys)


@pytest.mark.usefixtures("stopped")
def test_another_precision_is_said(flfast_run):
    words = "['strategy=dp', 'trainer.devices=2']"
    phases = f"schedule.phases=[{{from: 3, overrides: {words}}}]"
    folder = go_on(flfast_run, "trainer.precision=bf16-mixed", phases)
    assert rows(folder)[-1]["plan/strategy"] == "dp"
    assert "but 32-true up to round 2: results will differ from a run without" in log_of(folder)


def test_auto_begins_where_there_is_nothing_and_ends_where_all_is_done(flfast_run):
    folder = go_on(flfast_run, run_dir="new")
    assert "no checkpoint in" in log_of(folder)
    before = (folder / "metrics.csv").read_text()
    assert (go_on(flfast_run, run_dir="new") / "metrics.csv").read_text() == before


def test_a_size_that_was_found_stays(flfast_run):
    words = (*SMALL, EAGER, "batch_size=auto")
    folder = flfast_run(*words, "rounds=1")
    about = read_checkpoint(checkpoint_folders(folder)[0])
    assert about.about["sizes"]["batch_size"] > 10
    path = about.path / "about.json"
    path.write_text(json.dumps({**about.about, "sizes": {"batch_size": 7}}))
    flfast_run(*words, "rounds=2", "resume=auto")
    assert rows(folder)[-1]["plan/batch_size"] == "7"


@pytest.mark.slow
def test_what_auto_decided_stays_where_the_hardware_does(flfast_run):
    """Here it would decide otherwise: fused and stacked, rather than eager or two together."""
    words = (*SMALL, "sampler.fraction=1.0", "sampler.count=4")
    folder = flfast_run(*words, "rounds=1")
    assert "engine fused" in log_of(folder)
    path = checkpoint_folders(folder)[0] / "about.json"
    about = json.loads(path.read_text())
    (decided,) = about["decided"]
    assert list(decided["engines"].values()) == [None]
    ((width,),) = [own.values() for own in decided["widths"].values()]
    assert width > 2

    def decided_is(engines, width):
        widths = {
            key: dict.fromkeys(own, width) for key, own in about["decided"][0]["widths"].items()
        }
        changed = {"engines": dict.fromkeys(decided["engines"], engines), "widths": widths}
        path.write_text(json.dumps({**about, "decided": [changed]}))

    decided_is("it was so", width)
    flfast_run(*words, "rounds=2", f"resume={path.parent}", run_dir="eager")
    assert "engine eager (it was so)" in log_of(folder.parent / "eager")
    decided_is(None, 2)
    narrow = flfast_run(*words, "rounds=2", f"resume={path.parent}", run_dir="narrow")
    kept = read_checkpoint(checkpoint_folders(narrow)[0]).about["decided"][0]["widths"]
    assert [list(own.values()) for own in kept.values()] == [[2]]
    about["machine"] = "abacus"
    decided_is("it was so", width)
    flfast_run(*words, "rounds=2", f"resume={path.parent}", run_dir="elsewhere")
    assert "since the checkpoint: machine; engine=auto" in log_of(folder.parent / "elsewhere")
    del about["machine"]
    decided_is("it was so", width)
    flfast_run(*words, "rounds=2", "resume=auto", "trainer.benchmark=true")
    assert "the checkpoint: trainer, machine; engine=auto decides anew" in log_of(folder)
    assert log_of(folder).count("engine fused") == 2


def test_the_best_round_stays(flfast_run):
    words = ("checkpoint.keep_best=val/loss", "checkpoint.keep_last=1", "optimizer.lr=1.5", EAGER)
    folder = flfast_run(*SMALL, *words, "rounds=6")
    losses = [float(row["val/loss"]) for row in rows(folder)][1:]
    best = losses.index(min(losses)) + 1
    assert {read_checkpoint(path).round_idx for path in checkpoint_folders(folder)} == {best, 6}


def test_none_are_left_where_none_are_wanted(flfast_run):
    folder = flfast_run(*SMALL, EAGER, "checkpoint.every=0", "rounds=2")
    assert not (folder / "checkpoints").exists()


def test_a_folder_that_cannot_be_written_is_one_warning_and_training_goes_on(flfast_run):
    way = "+callbacks.way={_target_: ending.InTheWay}"
    folder = flfast_run(*SMALL, EAGER, "checkpoint.every=1", "rounds=4", way)
    assert [row["round"] for row in rows(folder)] == ["0", "1", "2", "3", "4"]
    assert log_of(folder).count("training continues") == 1
