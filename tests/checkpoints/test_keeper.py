"""What is written of a round while the next one is trained."""

import json
from types import SimpleNamespace

import pytest
import torch

from flfast.channel.channel import Channel
from flfast.checkpoints import files, keeper, restore
from flfast.checkpoints.files import read_tensors
from flfast.checkpoints.folders import (
    FORMAT,
    BrokenCheckpointError,
    checkpoint_folders,
    parts_of,
    read_checkpoint,
)
from flfast.checkpoints.keeper import CheckpointKeeper
from flfast.checkpoints.policy import Policy
from flfast.distributed.world import ALONE
from flfast.state.stop_requests import StopRequests
from flfast.state.store import ClientStates, Kept

ABOUT_IT = {"format": FORMAT, "data": "", "config": {}, "sizes": {}}


def keeper_of(kept, run_dir):
    policy = Policy(every=1, keep_last=2, keep_best=None)
    requests = StopRequests(second="exit")
    return CheckpointKeeper(policy, run_dir, kept, ALONE, lambda: ABOUT_IT, requests)


def federation_of(history, server):
    return SimpleNamespace(
        history=history,
        last_round=99,
        server=server,
        loggers=(),
        engine=SimpleNamespace(decided={}, channel=Channel()),
        pace=SimpleNamespace(state_dict=dict),
    )


@pytest.mark.parametrize("memory", [None, 0], ids=["memory", "files"])
def test_a_checkpoint_is_of_its_round_whatever_the_next_one_changes(tmp_path, memory):
    """64 MB, which are still on their way to the disk when the next round begins."""
    kept = Kept(*(ClientStates(memory, tmp_path / name) for name in ("states", "records")))
    for client in range(8):
        for states in kept:
            states.put(client, {"w": torch.full((1_000_000,), float(client))})
    keeper = keeper_of(kept, tmp_path)
    server = {"params": {"w": torch.zeros(3)}}
    federation = federation_of([{"round": 1}], server)
    keeper.on_round_end(federation, {"round": 1}, {})
    for client in range(8):
        for states in kept:
            states.put(client, {"w": torch.full((1_000_000,), -1.0)})
    server["params"]["w"].fill_(-1)
    keeper.close()
    (path,) = checkpoint_folders(tmp_path)
    expected = torch.arange(8.0)
    for name in ("clients-0-of-1.pt", "records.pt"):
        (saved,) = read_tensors(path / name)["stacks"]
        assert saved["clients"].tolist() == list(range(8))
        assert torch.equal(saved["states"]["w"].amin(1), expected)
        assert torch.equal(saved["states"]["w"].amax(1), expected)
    assert not read_tensors(path / "server.pt")["server"]["params"]["w"].any()


@pytest.fixture
def eventful(tmp_path, monkeypatch):
    """A function that changes a few of 14 clients' states, and checks the round's checkpoint."""
    monkeypatch.setattr(keeper, "SMALL_BYTES", 0)
    kept = Kept(ClientStates(), ClientStates())
    for client in range(14):
        kept.states.put(client, {"w": torch.full((10_000,), float(client))})
    history = [{"round": 0}]
    federation = federation_of(history, {"params": {"w": torch.zeros(3)}})
    found = keeper_of(kept, tmp_path)

    def one_round():
        round_idx = len(history)
        history.append({"round": round_idx})
        kept.states.put(round_idx % 7, {"w": torch.full((10_000,), 1000.0 + round_idx)})
        kept.states.drop(round_idx + 6)
        kept.states.put(50, {"other": torch.full((round_idx % 3,), 7.0)})
        kept.records.put(1, {"r": torch.tensor(float(round_idx))})
        found.on_round_end(federation, history[-1], {})
        found._wait_until_written()
        checkpoint = read_checkpoint(checkpoint_folders(tmp_path)[0])
        assert checkpoint.round_idx == round_idx
        for name, expected in (("clients-0-of-1.pt", kept.states), ("records.pt", kept.records)):
            states = ClientStates()
            restore._replace(states, restore._load_states(checkpoint, name, list))
            assert states.clients() == expected.clients()
            for client in states.clients():
                left, right = states.get(client), expected.get(client)
                torch.testing.assert_close(left, right, rtol=0, atol=0)
        return checkpoint

    yield one_round
    found.close()


def written(checkpoint):
    """Files of client states that no older checkpoint has, too."""
    names = parts_of("clients-0-of-1.pt", checkpoint.about["files"])
    return [name for name in names if (checkpoint.path / name).stat().st_nlink == 1]


def test_a_checkpoint_writes_what_changed_and_links_to_the_rest(eventful):
    assert written(eventful()) == ["clients-0-of-1.pt"]
    for number in range(1, 4):
        checkpoint = eventful()
        assert written(checkpoint) == [f"clients-0-of-1.{number}.pt"]
        assert (checkpoint.path / f"clients-0-of-1.{number}.pt").stat().st_size < 50_000
    later = [written(eventful()) for _ in range(3)]  # half of the states' size has changed
    assert ["clients-0-of-1.pt"] in later


def test_changes_that_were_not_written_are_in_the_next_checkpoint(eventful, monkeypatch):
    eventful(), eventful()
    with monkeypatch.context() as patched:
        patched.setattr(files, "link", full)
        with pytest.raises(AssertionError):
            eventful()
    assert written(eventful()) == ["clients-0-of-1.pt"]
    assert written(eventful()) == ["clients-0-of-1.1.pt"]


def full(*_):
    raise OSError(28, "No space left on device")


def test_a_file_system_without_links_gets_copies(eventful, monkeypatch):
    def refused(*_):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr("os.link", refused)
    eventful(), eventful()
    assert written(eventful()) == [f"clients-0-of-1{part}.pt" for part in ("", ".1", ".2")]


@pytest.mark.parametrize("name", ["clients-0-of-1.1.pt", "clients-0-of-1.pt"])
def test_a_checkpoint_without_one_of_its_files_is_refused(eventful, name):
    eventful(), eventful()
    checkpoint = eventful()
    about = checkpoint.path / "about.json"
    content = json.loads(about.read_text())
    del content["files"][name]
    about.write_text(json.dumps(content))
    with pytest.raises(BrokenCheckpointError, match="files"):
        read_checkpoint(checkpoint.path)
