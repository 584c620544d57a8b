"""Every command in every folder: its outcome is as the table of docs/operations.md says."""

import hashlib
import shutil
import signal
import sys
import warnings
from contextlib import nullcontext
from pathlib import Path

import pytest
import yaml
from pages import page
from processes import Command
from sampling import others_slow, rotating
from tables import timeless

import flfast
from flfast import evaluate, export, report, train, watch
from flfast.config import folder_lock
from flfast.config.errors import ConfigError
from flfast.config.folder_lock import FolderLock
from flfast.output.results.outcome import EXIT_BUSY, outcome
from flfast.output.results.run_files import OF_A_RUN
from flfast.state.stop_requests import EXIT_STOPPED

TINY = (
    *("data=synthetic", "data.num_examples=200", "data.num_test=50", "partition=iid", "rounds=2"),
    *("partition.num_clients=3", "model=logistic", "local_epochs=1", "engine=eager", "seed=0"),
    *("trainer.devices=1", "callbacks=none", "checkpoint.every=1"),
    "+callbacks.weights={_target_: flfast.output.callbacks.final_weights.FinalWeights,"
    " max_personal: 20, model: null}",
)
NONE = "checkpoint.every=0"


def ends(how, after, *, checkpoint=False):
    options = f"how: {how}, after: {after}, checkpoint: {checkpoint}"
    return f"+callbacks.ending={{_target_: ending.Ending, {options}}}"


STATES = {
    "empty": None,
    "killed without a row": (ends("kill", -1),),
    "failed without a row": (ends("fail", -1),),
    "running": (ends("kill", 1),),
    "killed without a checkpoint": (NONE, ends("kill", 1)),
    "stopped without a checkpoint": (NONE, ends("stop", 1)),
    "failed without a checkpoint": (NONE, ends("fail", 1)),
    "killed with a checkpoint": (ends("kill", 2, checkpoint=True),),
    "stopped with a checkpoint": (ends("stop", 1),),
    "failed with a checkpoint": (ends("fail", 2),),
    "finished without a checkpoint": (NONE,),
    "finished with a checkpoint": (),
}
"""Words of the run that leaves a folder in the state."""

COMMANDS = {
    "nothing set": (),
    "`resume=auto`": ("resume=auto",),
    "and other settings": ("resume=auto", "seed=1"),
    "and more rounds": ("resume=auto", "rounds=3"),
    "`overwrite=true`": ("overwrite=true",),
}
"""Words of the command, by the heading of its column."""


def table():
    """What the page says: by words of the state and heading of the command."""
    text = page("operations").partition("| the folder's run is |")[2].partition("\n\n")[0]
    lines = [[cell.strip() for cell in line.split("|")] for line in text.splitlines()]
    headings = lines[0][:-1]
    assert headings == list(COMMANDS)
    return {line[1]: dict(zip(headings, line[2:-1], strict=True)) for line in lines[2:]}


TABLE = table()


def said(state, command):
    """The cell of the table: the row that names the state's outcome and its checkpoint."""
    words, _, lacks = state.partition(" ")
    (row,) = (row for row in TABLE if words in row and row.endswith(lacks))
    return TABLE[row][command]


def digests(folder):
    """Every file and folder below, with the bytes of the files."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        if path.is_file()
        else "folder"
        for path in sorted(folder.rglob("*"))
    }


FOREIGN = {str(Path(pattern).parent / "mine.txt") for pattern in OF_A_RUN}
"""A file that flfast did not write, in every folder in which it writes some."""


def files(folder):
    """Names of all files, but for those of checkpoints, which need not be written."""
    found = (str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    return {name for name in found if not name.startswith("checkpoints/round-")}


def by_command(words, folder):
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        patch.setattr(sys, "argv", ["flfast", *words, f"hydra.run.dir={folder}"])
        train.main()


def in_a_sweep(words, folder):
    by_command(("-m", *words, f"hydra.sweep.dir={folder.parent}"), "unused")


def from_python(words, folder):
    try:
        flfast.run(*words, folder=folder)
    except flfast.ConfigError:
        raise SystemExit(2) from None


DOORS = {"command": by_command, "sweep": in_a_sweep, "python": from_python}


class Folders:
    """Folders in all states, made once and copied for each test to where they were made."""

    def __init__(self, root):
        self.root = root
        self._runs = {}

    def put(self, state):
        """A folder `0` in the state, which may not exist; nothing else is beside it."""
        place = self.root / "sweep"
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        words = STATES[state]
        if words is None:
            return place / "0"
        if words not in self._runs:
            kept = self.root / f"kept-{len(self._runs)}"
            self._make(words, place / "0")
            shutil.copytree(place / "0", kept)
            self._runs[words] = kept
        else:
            shutil.copytree(self._runs[words], place / "0")
        return place / "0"

    def uninterrupted(self, *words):
        """Folder of a run with these words that nothing stopped."""
        if words not in self._runs:
            folder = self.root / f"kept-{len(self._runs)}"
            self._make(words, folder)
            self._runs[words] = folder
        return self._runs[words]

    def _make(self, words, folder):
        if "kill" in str(words):
            run = Command(train.main, (*TINY, *words, f"hydra.run.dir={folder}"), self.root, {})
            code, errors = run.end()
            assert code < 0, errors
            return
        try:
            by_command((*TINY, *words), folder)
        except (SystemExit, RuntimeError):
            assert "how" in str(words)


@pytest.fixture(scope="module")
def folders(tmp_path_factory, request):
    request.getfixturevalue("ran_once")
    return Folders(tmp_path_factory.mktemp("states"))


@pytest.fixture
def lock(monkeypatch):
    """Hold the lock of a folder in the state `running`."""
    monkeypatch.setattr(folder_lock, "PATIENCE_S", 0.05)
    held = []

    def lock(state, folder):
        if state == "running":
            held.append(FolderLock(folder, setting="folder"))

    yield lock
    for one in held:
        one.release()


@pytest.mark.parametrize("state", rotating(STATES, every=2))
def test_one_function_knows_the_outcome(folders, lock, state):
    folder = folders.put(state)
    lock(state, folder)
    assert outcome(folder) == state.partition(" ")[0]
    if state == "empty":
        with pytest.raises(ConfigError, match="allowed: the folder of a run"):
            flfast.Run(folder)
    else:
        assert flfast.Run(folder).outcome == outcome(folder)


@pytest.mark.parametrize(("state", "command"), rotating(STATES, COMMANDS, every=14))
def test_a_command_does_what_the_table_says(folders, lock, capsys, state, command):
    does = said(state, command)
    folder = folders.put(state)
    lock(state, folder)
    before = digests(folder.parent)
    words = (*TINY, *(NONE,) * (NONE in (STATES[state] or ())), *COMMANDS[command])
    if does in {"refused", "busy"}:
        with pytest.raises(SystemExit) as refused:
            by_command(words, folder)
        assert refused.value.code == (EXIT_BUSY if does == "busy" else 2)
        assert digests(folder.parent) == before
        _, holds, said_of_it = capsys.readouterr().err.partition("already holds a run, which is ")
        assert not holds or said_of_it.startswith(f"{state.partition(' ')[0]};")
        return
    if does == "unchanged":
        by_command(words, folder)
        assert digests(folder.parent) == before
        return
    for name in FOREIGN:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("mine")
    by_command(words, folder)
    assert outcome(folder) == "finished"
    settings = [word for word in COMMANDS[command] if word.startswith(("seed", "rounds"))]
    fresh = folders.uninterrupted(*settings)
    assert timeless(folder) == timeless(fresh)
    assert files(folder) == files(fresh) | FOREIGN
    assert set(settings) <= set(yaml.safe_load((folder / ".hydra/overrides.yaml").read_text()))
    goes_on = "resuming after round" in (folder / "train.log").read_text()
    assert goes_on is (does == "goes on")


@pytest.mark.parametrize("door", others_slow([*DOORS], ["sweep"]))
@pytest.mark.parametrize(
    "ranks",
    [(), pytest.param(("strategy=ddp", "trainer.devices=2"), marks=pytest.mark.slow)],
    ids=str,
)
def test_a_stop_request_in_the_last_round_comes_too_late(folders, door, ranks):
    """The run ends by itself; a sweep has something left to stop, and perhaps a program."""
    folder = folders.put("empty")
    words = (*TINY, NONE, *ranks, ends("stop", 2))
    told = []
    before = signal.signal(signal.SIGTERM, lambda *_: told.append(outcome(folder)))
    try:
        with pytest.raises(SystemExit) if door == "sweep" else nullcontext() as stopped:
            DOORS[door](words, folder)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert told == ["finished"] * (door == "python")
    if stopped:
        assert stopped.value.code == EXIT_STOPPED
    assert outcome(folder) == "finished"
    assert timeless(folder) == timeless(folders.uninterrupted(*ranks))


def test_a_stop_request_reaches_ranks_that_have_finished(folders):
    folder = folders.put("empty")
    from_python((*TINY, NONE, "strategy=ddp", "trainer.devices=2", ends("late", 2)), folder)
    assert outcome(folder) == "finished"


REFUSED_LATE = {
    "in the schema": ("rounds=0",),
    "by a rule": ("batch_size=-1", "trainer.accumulate_grad_batches=2"),
    "by the data": ("sampler.count=1000",),
    "by the data, with a database": ("sampler.count=1000", "logger=mlflow"),
    "by a bug": ("model=custom", "model._target_=ending.no_model"),
    "by a file": ("init_from=nowhere.pt",),
    "by a logger": ("+logger.own={_target_: ending.NoServer, folder: '${hydra:run.dir}/wandb'}",),
}
ENDS_OF_A_WAY = ("empty", "killed without a checkpoint", "finished with a checkpoint")


@pytest.mark.parametrize(
    ("state", "why", "door"),
    rotating(ENDS_OF_A_WAY, REFUSED_LATE, ["command", "python"], every=10),
)
def test_whoever_refuses_a_run_its_folder_stays(folders, state, why, door):
    folder = folders.put(state)
    before = digests(folder.parent)
    words = (*TINY, "overwrite=true", *REFUSED_LATE[why])
    with pytest.raises((SystemExit, RuntimeError)):
        DOORS[door](words, folder)
    assert digests(folder.parent) == before


@pytest.mark.parametrize("words", [("overwrite=true",), ("resume=auto", "rounds=3")], ids=str)
def test_records_of_before_stay_where_a_logger_refuses(folders, words):
    folder = folders.put("finished with a checkpoint")
    (folder / "wandb").mkdir()
    (folder / "wandb" / "records").write_text("of weeks")
    (folder / "wandb" / "newest").symlink_to("records")
    before = digests(folder)
    with pytest.raises(SystemExit):
        by_command((*TINY, *words, *REFUSED_LATE["by a logger"]), folder)
    assert digests(folder) == before
    assert (folder / "wandb" / "newest").is_symlink()


@pytest.mark.parametrize("state", ENDS_OF_A_WAY[:2])
def test_settings_that_cannot_be_written_refuse_the_run(folders, state, capsys):
    folder = folders.put(state)
    shutil.rmtree(folder / ".hydra", ignore_errors=True)
    folder.mkdir(exist_ok=True)
    (folder / ".hydra").write_text("in the way")
    before = digests(folder)
    with pytest.raises(SystemExit):
        by_command((*TINY, "overwrite=true"), folder)
    assert f"exists: '{folder / '.hydra'}'" in capsys.readouterr().err
    assert digests(folder) == before


@pytest.mark.parametrize("door", ["sweep", "python"])
@pytest.mark.parametrize("state", ENDS_OF_A_WAY[1:])
@pytest.mark.parametrize("words", [(), ("resume=auto", "seed=1")], ids=str)
def test_every_door_refuses_alike(folders, state, door, words):
    """Jobs of a sweep, too; then the files of the sweep stay as they were."""
    before = digests(folders.put(state).parent)
    with pytest.raises(SystemExit) as refused:
        DOORS[door]((*TINY, *words), folders.root / "sweep" / "0")
    assert refused.value.code == 2
    assert digests(folders.root / "sweep") == before


@pytest.mark.parametrize("moved", others_slow([False, True], [True]))
def test_what_is_finished_is_so_for_every_door(folders, moved):
    folder = folders.put("finished with a checkpoint")
    if moved:
        shutil.rmtree(folder)
        shutil.copytree(folders.uninterrupted("rounds=2"), folder)
    before = digests(folder)
    for way in DOORS.values():
        way((*TINY, "resume=auto"), folders.root / "sweep" / "0")
        assert digests(folders.root / "sweep" / "0") == before


READERS = {
    evaluate: ("evaluation/",),
    export: ("model.pt2",),
    report: ("report.html",),
    watch: (),
}
"""What a command that reads a run adds to its folder, or replaces there."""


@pytest.mark.parametrize(("state", "command"), rotating(STATES, READERS, every=4))
def test_who_reads_a_run_leaves_it_alone(folders, lock, monkeypatch, state, command):
    folder = folders.put(state)
    lock(state, folder)
    before, code = digests(folder.parent), 0
    words = [f"run={folder}"] if command in (evaluate, export) else [str(folder)]
    words += ["format=torch"] * (command is export) + ["--once"] * (command is watch)
    monkeypatch.setattr(sys, "argv", ["flfast", *words])
    try:
        command.main(*([words] if command is report else []))
    except SystemExit as stop:
        code = stop.code
    after = digests(folder.parent)
    own = tuple(f"0/{name}" for name in READERS[command])
    changed = {name for name in before | after if before.get(name) != after.get(name)}
    assert all(f"{name}/".startswith(own) or name.startswith(own) for name in changed)
    if state.startswith("finished"):
        assert not code
    if code:
        assert changed == set()
