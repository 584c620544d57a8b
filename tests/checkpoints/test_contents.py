"""Checkpoints whose files are whole, but hold what is not of this run: an error, never a crash."""

import json
import os
import shutil
import tempfile
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from flfast.algorithms.scaffold import scaffold
from flfast.checkpoints.contents import check_history, check_server, check_states, first_states
from flfast.checkpoints.folders import ABOUT, FORMAT, BrokenCheckpointError, read_checkpoint
from flfast.state.store import ClientStates

ALGORITHM = scaffold(server_lr=1.0, momentum=0.0, nesterov=False, local_optimizer_state="reset")
INITIAL = {
    "params": {"w": torch.ones(2, 3), "b": torch.ones(2)},
    "buffers": {"num": torch.tensor(1)},
}
CLIENTS = (0, 2, 5)
ROWS = [
    {"round": r, "train/loss": 0.5, "plan/strategy": "single", "val/auc": None} for r in (0, 1)
]


def whole():
    """What a checkpoint of round 1 holds."""
    server = ALGORITHM.server_state(INITIAL)
    states = ClientStates()
    for client_id in CLIENTS:
        states.put(client_id, ALGORITHM.client_state(ALGORITHM.broadcast(server)))
    content = {"server": server, "history": ROWS, "stacks": states.state_dict()["stacks"]}
    return deepcopy(content)


def check(content):
    check_server(content["server"], ALGORITHM, INITIAL)
    check_history(content["history"], last=1)
    check_states(
        content["stacks"], lambda _: first_states(ALGORITHM, INITIAL)[0], candidates=range(6)
    )


def places(node, path=()):
    """Path of every part of a nested content."""
    if path:
        yield path
    items = node.items() if isinstance(node, dict) else enumerate(node)
    for name, child in items:
        if isinstance(child, dict | list):
            yield from places(child, (*path, name))
        else:
            yield (*path, name)


def replaced(content, path, change):
    node = content
    for name in path[:-1]:
        node = node[name]
    node[path[-1]] = change(node[path[-1]])
    return content


OTHERS = {
    "none": lambda old: None,
    "text": lambda old: "../../x",
    "list": lambda old: [[]],
    "tree": lambda old: {"of": {"another": torch.ones(1)}},
    "short": lambda old: old.flatten()[:-1],
    "long": lambda old: old.repeat(2, *[1] * old.ndim),
    "nan": lambda old: old.double() * torch.nan,
    "complex": lambda old: old * 1j,
    "negative": lambda old: -1 - old,
}
IN_PLANS = {("history", r, "plan/strategy") for r in (0, 1)}


def test_what_a_run_leaves_is_whole():
    check(whole())


@settings(max_examples=90)
@given(st.sampled_from(sorted(places(whole()), key=str)), st.sampled_from(sorted(OTHERS)))
def test_anything_else_is_named(path, kind):
    content = whole()
    try:
        broken = replaced(content, path, OTHERS[kind])
    except (AttributeError, TypeError):  # of tensors only
        return
    try:
        check(broken)
    except BrokenCheckpointError as error:
        assert str(path[-2] if len(path) > 1 else path[-1]) in str(error) or path[0] in str(error)
    else:  # other numbers of the same shape, or a cell that is empty
        beside = path[0] == "server" and path[1] != "params"
        assert kind == "negative" or path[0] == "history" or (kind == "nan" and beside)


def test_states_may_lack_leaves_that_are_not_shared_and_no_part():
    content = whole()
    del content["stacks"][0]["states"]["control"]["b"]
    check(content)
    del content["stacks"][0]["states"]["control"]
    with pytest.raises(BrokenCheckpointError, match="states: does not have the keys control"):
        check(content)


def test_clients_are_those_of_the_run_and_once():
    for clients in ([0, 2, 6], [0, 2, 2], [0, 2, -1], [0, 2]):
        content = whole()
        content["stacks"][0]["clients"] = torch.tensor(clients)
        with pytest.raises(BrokenCheckpointError, match=r"stacks\.0"):
            check(content)


def test_more_than_there_was_at_first_is_tensors_too():
    server = {
        **ALGORITHM.server_state(INITIAL),
        "seen": torch.tensor(3),
        "m": {"w": torch.ones(2)},
    }
    check_server(server, ALGORITHM, INITIAL)
    with pytest.raises(BrokenCheckpointError, match=r"server\.seen"):
        check_server({**server, "seen": "often"}, ALGORITHM, INITIAL)


def test_rows_may_have_texts_of_callbacks():
    check_history([{**row, "note": "warm"} for row in ROWS], last=1)


def test_states_that_grow_have_no_shape_beforehand_but_are_tensors():
    grown = {**ALGORITHM.server_state(INITIAL), "optimizer": {"w": {"step": torch.tensor(3.0)}}}

    def begins(weights):
        return {**ALGORITHM.server_state(weights), "optimizer": {}}

    algorithm = replace(ALGORITHM, server_state=begins)
    check_server(grown, algorithm, INITIAL)
    for optimizer in ({"w": 3}, 5, {"w": [grown]}):
        with pytest.raises(BrokenCheckpointError, match=r"server\.optimizer"):
            check_server({**grown, "optimizer": optimizer}, algorithm, INITIAL)


ABOUT_IT = {
    "format": FORMAT,
    "round": 3,
    "tables": {"clients.csv": 0},
    "world_size": 1,
    "config": {},
    "sizes": {"batch_size": 4},
    "data": "0",
    "loggers": {},
    "decided": [{"engines": {"0 single": None}, "widths": {"0": {"b": 2}}, "finetuning": {}}],
    "files": {name: {"bytes": 4, "digest": "0"} for name in ("server.pt", "clients-0-of-1.pt")},
}
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**30), 10**30) | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=9), inner),
    max_leaves=3,
)
FILES = {
    "a folder": lambda path: path.mkdir(),
    "nothing": lambda path: None,
    "a link to nothing": lambda path: path.symlink_to("nowhere"),
    "a link to itself": lambda path: path.symlink_to(path),
    "a link to a folder": lambda path: path.symlink_to("."),
    "a pipe": os.mkfifo,
    "zeros": lambda path: path.write_bytes(bytes(9)),
    "brackets": lambda path: path.write_text("[" * 100_000),
}


@pytest.fixture(scope="module")
def checkpoint():
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "round-000003"
        path.mkdir()
        for name in ABOUT_IT["files"]:
            (path / name).write_bytes(b"1234")
        (path / ABOUT).write_text(json.dumps(ABOUT_IT))
        yield path


@settings(max_examples=80)
@given(st.sampled_from(sorted(ABOUT_IT)), VALUES)
@example("config", [])
@example("format", 1.0)
@example("sizes", {"a": 1})
@example("tables", {"clients.csv": "4"})
@example("files", {"server.pt": True})
@example("files", {**ABOUT_IT["files"], "server.pt": {"bytes": 4}})
@example("files", {"server.pt": {"bytes": 4, "digest": "0"}})
@example("world_size", 10**12)
@example("world_size", 0)
@example("round", 4)
@example("decided", [3])
@example("decided", [{"a": 1}])
@example("decided", [{"widths": {"0": {"b": 0}}}])
@example("decided", [{"finetuning": {"engines": []}}])
def test_what_about_says_is_of_the_right_kind_or_broken(checkpoint, name, value):
    assert read_checkpoint(checkpoint).round_idx == 3
    before = (checkpoint / ABOUT).read_text()
    (checkpoint / ABOUT).write_text(json.dumps({**ABOUT_IT, name: value}))
    try:
        about = read_checkpoint(checkpoint).about
    except BrokenCheckpointError as error:
        assert "round-000003" in str(error)
    else:
        assert type(about[name]) is type(ABOUT_IT[name])
        assert about["sizes"].keys() <= {"batch_size", "micro_batch"}
    finally:
        (checkpoint / ABOUT).write_text(before)


@pytest.mark.parametrize("kind", FILES)
@pytest.mark.parametrize("name", [ABOUT, "server.pt"])
def test_what_is_no_file_is_broken(checkpoint, tmp_path, name, kind):
    copy = tmp_path / "round-000003"
    shutil.copytree(checkpoint, copy)
    (copy / name).unlink()
    FILES[kind](copy / name)
    with pytest.raises(BrokenCheckpointError, match="round-000003"):
        read_checkpoint(copy)
