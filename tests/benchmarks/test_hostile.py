"""The hostile campaign: what it tries, and what it finds."""

import importlib
import sys
from functools import partial

import pytest
from sampling import others_slow

from benchmarks.hostile import chains, files, options, targets
from benchmarks.hostile.command import Ended, run


@pytest.mark.parametrize(
    "cases",
    [
        pytest.param(options.cases, marks=pytest.mark.slow),
        files.cases,
        targets.cases,
        chains.cases,
    ],
)
def test_a_seed_draws_the_same_cases_and_another_seed_others(cases):
    assert [*cases(40, 1)] == [*cases(40, 1)] != [*cases(40, 2)]


def test_a_campaign_of_the_usual_size_tries_all_that_it_knows():
    assert {kind for kind, _, _ in files.cases(200, 0)} == {*files.KINDS}
    damaged = {(kind, damage) for kind, damage, _ in files.cases(200, 0)}
    assert {(kind, name) for kind in files.KINDS for name in files.KINDS[kind].damage} <= damaged
    assert len({number for number, *_ in targets.cases(42, 0)}) == 42
    every = [case for _, case in chains.cases(50, 0)]
    assert len(every) >= 15
    assert sum(case.kills for case in every) == 50


def say(text, code):
    sys.stdout.write(text)
    sys.stdout.flush()
    if code == "raise":
        raise RuntimeError("a mistake of ours")
    sys.exit(code)


@pytest.mark.parametrize(
    ("text", "code", "verdict"),
    [
        ("done", 0, "done"),
        ("key=1: allowed: 2", 2, "message"),
        ("Traceback (most recent call last):\n", 2, "traceback"),
        ("", "raise", "traceback"),
        ("", 75, "exit 75"),
    ],
)
def test_how_a_command_ended(tmp_path, text, code, verdict):
    assert run(partial(say, text, code), [], tmp_path).verdict == verdict
    assert Ended(None, "").verdict == "hang"


def called(node):
    """What Hydra's `instantiate` would do."""
    if isinstance(node, list):
        return [called(child) for child in node]
    if not isinstance(node, dict):
        return node
    node = {name: called(child) for name, child in node.items()}
    if "_target_" not in node:
        return node
    names = node.pop("_target_").split(".")
    for length in range(len(names) - 1, 0, -1):
        try:
            found = importlib.import_module(".".join(names[:length]))
        except ImportError:
            continue
        for name in names[length:]:
            found = getattr(found, name)
        break
    arguments = node.pop("_args_", [])
    bound = partial(found, *arguments, **{k: v for k, v in node.items() if k != "_partial_"})
    return bound if "_partial_" in node else bound()


@pytest.mark.parametrize("number", others_slow(range(42), range(0, 42, 3)))
def test_every_target_leaves_its_mark_if_it_is_called(tmp_path, number):
    target, arguments = targets.prepared(tmp_path, number)

    def main():
        opened = called({"_target_": target, **arguments})
        if hasattr(opened, "read"):  # of os.popen, which does not wait
            opened.read()
        if hasattr(opened, "wait"):
            opened.wait()

    run(main, [], tmp_path)
    assert (tmp_path / targets.MARK).exists()
