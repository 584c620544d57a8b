"""Every command on the pages runs, small: or a comment above its block says what it needs.

Small is one round of one local epoch, on one device, and of a sweep its first job. The commands of
docs/tutorial.md and CONTRIBUTING.md, which build on each other, have tests of their own.
"""

import re
import shutil
import warnings

import pytest
from pages import PAGES, commands, first_job, runnable
from sampling import rotating

import flfast
from flfast.describe import main as describe
from flfast.evaluate import evaluate
from flfast.export import export
from flfast.report import main as report
from flfast.watch import main as watch

ELSEWHERE = {"tutorial.md", "CONTRIBUTING.md", "CHANGELOG.md"}
FOUND = {
    tuple(words): page.name
    for page in PAGES
    if page.name not in ELSEWHERE
    for words in commands(runnable(page.read_text(encoding="utf-8")))
    if "&&" not in words and "--help" not in words  # README's first two: the suite is the second
}
SMALL = {"rounds": 1, "batch_size": 100, "engine": "eager", "eval_every": 1, "local_epochs": 1}
ALWAYS = {"rounds", "eval_every"}
QUIET = (
    *("trainer.devices=1", "checkpoint.every=0", "++callbacks.curves=null"),
    *("++callbacks.partition_report.dpi=30", "++callbacks.report_page=null"),
)


def small(words):
    """The overrides of the first job, in a small run."""
    overrides = [word for word in first_job(words) if not word.startswith("callbacks=")]
    named = {word.lstrip("+").partition("=")[0]: n for n, word in enumerate(overrides)}
    steps = "local_steps" in named
    more = [
        f"{key}={value}"
        for key, value in SMALL.items()
        if key in ALWAYS or (key not in named and not (steps and key == "local_epochs"))
    ]
    more += ["audit.iterations=5"] * ("audit=gradient_inversion" in overrides)
    return [*overrides, *more, *QUIET]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run of two rounds that leaves all that the commands read of a FOLDER."""
    folder = tmp_path_factory.mktemp("finished")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        words = small(("algorithm=ditto", "checkpoint.keep_best=val/loss"))
        flfast.run(*words, "checkpoint.every=1", folder=folder)
    return folder


COMMANDS = {
    "flfast.describe": lambda words: describe(),
    "flfast.report": lambda words: report([*words, "output=page.html"]),
    "flfast.watch": lambda words: watch(),
    "flfast.evaluate": evaluate,
    "flfast.export": export,
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("words", rotating(FOUND, every=120, name=lambda w: " ".join(w[2:])[:90]))
def test_a_command_runs(words, finished, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    module, *words = words[words.index("-m") + 1 : words.index(">") if ">" in words else None]
    # The gallery's own run is `first`.
    words = [re.sub(r"FOLDER(\.\.\.)?|(?<=run=)first$", str(finished), word) for word in words]
    monkeypatch.setattr("sys.argv", [module, *words])
    if module == "flfast.train":
        run = flfast.run(*small(words))
        assert [row["round"] for row in logged(run)][-1] == 1
    else:
        shutil.copytree(finished, tmp_path / "outputs" / "today" / "now")
        found = COMMANDS[module](words)
        assert not isinstance(found, int) or found == 0  # others give a path, or metrics


def logged(run):
    history = run.history
    return history if isinstance(history, list) else history.to_dict("records")


def test_what_commands_need_is_said_in_few_words():
    said = [
        need
        for page in PAGES
        for need in re.findall(r"^<!-- needs: (.*) -->$", page.read_text("utf-8"), re.MULTILINE)
    ]
    assert said
    assert all(len(need) < 80 for need in said)
