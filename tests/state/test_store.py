"""Client states compared with a dict: in memory, in files, and when they move to files."""

import os
import re
import sys
import tempfile
from pathlib import Path

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from flfast.checkpoints.files import read_tensors
from flfast.state.machine import keep_freed_memory, return_freed_memory
from flfast.state.store import ClientStates
from flfast.state.tensor_file import write_tensors
from flfast.state.tree import leaves, tree_map

CLIENTS = st.integers(0, 6)
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool]


@st.composite
def states(draw):
    """Nested states, some of them empty, with leaves of any dtype and size."""

    def leaf():
        shape = draw(st.sampled_from([(), (0,), (2,), (2, 3)]))
        values = torch.full(shape, draw(st.integers(0, 100)), dtype=torch.float64)
        return values.to(draw(st.sampled_from(DTYPES)))

    optimizer = {name: {"step": leaf()} for name in draw(st.sets(st.sampled_from("ab")))}
    return draw(st.sampled_from([{}, {"own": {"w": leaf()}, "optimizer": optimizer}]))


def assert_equal(found, expected):
    assert repr(found) == repr(expected), "structure, order, shapes, types and values"


class LikeADict(RuleBasedStateMachine):
    """`get` returns what was `put`, even if the caller changes either tensor in place."""

    @initialize(memory=st.sampled_from([None, 0, 40, 200]))
    def start(self, memory):
        self.folder = tempfile.TemporaryDirectory()
        self.memory, self.model = memory, {}
        self.states, self.follower = self.empty(), ClientStates()

    def empty(self):
        return ClientStates(self.memory, Path(self.folder.name) / "states")

    @rule(client=CLIENTS, state=states())
    def put(self, client, state):
        self.model[client] = tree_map(torch.clone, state)
        self.states.put(client, state)
        scribble(state)

    @rule(client=CLIENTS)
    def change_what_get_returned(self, client):
        scribble(self.states.get(client) or {})

    @rule(client=CLIENTS, other=CLIENTS)
    def put_what_get_returned(self, client, other):
        state = self.states.get(other)
        if state is not None:
            self.states.put(client, state)
            self.model[client] = self.model[other]

    @rule(client=CLIENTS)
    def drop(self, client):
        self.states.drop(client)
        self.model.pop(client, None)

    @rule()
    def follow(self):
        """Other states that get what has changed since the last time are the same states."""
        self.follower.apply(self.states.changes())
        self.states.changed.clear()
        for client in range(7):
            assert_equal(self.follower.get(client), self.model.get(client))

    @rule()
    def save_and_load(self):
        self.follow()
        path = Path(self.folder.name) / "saved.pt"
        torch.save(self.states.state_dict(), path)
        self.states.close()
        self.states = self.empty()
        self.states.put(99, {"other": torch.ones(3)})
        self.states.load_state_dict(torch.load(path, weights_only=True))
        self.states.changed.clear()

    @invariant()
    def agrees(self):
        if hasattr(self, "model"):
            assert len(self.states) == len(self.model)
            for client in range(7):
                assert_equal(self.states.get(client), self.model.get(client))

    def teardown(self):
        self.states.close()
        assert not (Path(self.folder.name) / "states").exists()
        self.folder.cleanup()


TestLikeADict = LikeADict.TestCase
TestLikeADict.settings = settings(max_examples=60, stateful_step_count=20, deadline=None)


def scribble(tree):
    for leaf in leaves(tree):
        leaf.fill_(77)


def state(value, num=1000):
    return {"own": {"w": torch.full((num,), float(value))}}


def test_memory_grows_with_the_clients_seen_and_rows_are_reused():
    states = ClientStates()
    for client in range(0, 10**9, 10**8):
        states.put(client, state(client))
    saved = states.state_dict()["stacks"]
    assert len(saved) == 1
    assert saved[0]["states"]["own"]["w"].shape == (10, 1000)
    (stack,) = states._stacks.values()
    before = stack.num_bytes
    assert before <= 1.5 * 10 * 4000
    for client in range(5, 10**6, 10**4):
        states.put(client, state(1))
        states.drop(client)
    assert stack.num_bytes <= 1.5 * 11 * 4000


def test_moving_states_to_files_logs_one_line(tmp_path, caplog):
    caplog.set_level("INFO")
    states = ClientStates(40_000, tmp_path / "states")
    for client in range(4):
        states.put(client, state(client))
    assert not (tmp_path / "states").exists()
    for client in range(4, 20):
        states.put(client, state(client))
    assert len(caplog.messages) == 1
    assert "client states move to files" in caplog.text
    (file,) = (tmp_path / "states").iterdir()
    assert file.stat().st_size >= 20 * 4000
    states.close()
    assert not (tmp_path / "states").exists()
    assert_equal(states.get(3), state(3))


def test_files_of_a_killed_run_are_removed(tmp_path):
    (tmp_path / "states").mkdir()
    (tmp_path / "states" / "0.rows").write_bytes(b"\x01" * 8000)
    (tmp_path / "states" / "9.rows").write_bytes(b"\x01" * 8000)
    states = ClientStates(0, tmp_path / "states")
    states.put(0, state(2))
    assert_equal(states.get(0), state(2))
    assert [file.name for file in (tmp_path / "states").iterdir()] == ["0.rows"]


def anonymous_bytes():
    """Resident memory of this process that is not file-backed."""
    (kilobytes,) = re.findall(r"RssAnon:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return 1024 * int(kilobytes)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc, and needs glibc")
@pytest.mark.parametrize("memory", [None, 0], ids=["memory", "files"])
def test_checkpointing_states_in_files_takes_no_memory(tmp_path, memory):
    """Of 64 MB of states, those in memory are copied, and less than 16 MB of those in files."""
    states = ClientStates(memory, tmp_path / "states")
    for client in range(65):
        states.put(client, state(client, num=250_000))
    states.drop(3)  # closing the gap must move one row, not copy all others
    pid = os.fork()
    if pid == 0:
        return_freed_memory()
        keep_freed_memory()  # so that the peak is still visible afterwards
        before = anonymous_bytes()
        write_tensors(tmp_path / "saved.pt", states.state_dict())
        os._exit(anonymous_bytes() - before > 16_000_000)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == (memory is None)
    again = ClientStates(memory, tmp_path / "again")
    again.load_state_dict(read_tensors(tmp_path / "saved.pt", mapped=True))
    assert len(again) == 64
    if memory == 0:  # the child closed the gap in the shared files; do so in this process
        states.state_dict()
    assert all(repr(again.get(k)) == repr(states.get(k)) for k in (0, 2, 4, 64))


@pytest.mark.skipif(not hasattr(os, "posix_fallocate"), reason="disk space is not allocated here")
def test_a_full_disk_is_a_named_error_and_loses_no_state(tmp_path):
    states = ClientStates(0, tmp_path / "states")
    states.put(0, state(2))
    huge = {"own": {"w": torch.zeros(1).expand(2**57)}}
    with pytest.raises(OSError, match=r"client_states: .* bytes do not fit in .*states"):
        states.put(0, huge)
    assert_equal(states.get(0), state(2))


def test_states_put_during_inference_can_be_changed_afterwards():
    states = ClientStates()
    with torch.inference_mode():
        states.put(0, state(1))
    states.put(0, state(2))
    assert_equal(states.get(0), state(2))
