"""What is written of a round while the next one is trained."""

from types import SimpleNamespace

import pytest
import torch

from flfast.channel.channel import Channel
from flfast.checkpoints.files import read_tensors
from flfast.checkpoints.folders import checkpoint_folders
from flfast.checkpoints.keeper import CheckpointKeeper
from flfast.checkpoints.policy import Policy
from flfast.checkpoints.signals import StopRequests
from flfast.distributed.world import ALONE
from flfast.state.store import ClientStates, Kept


@pytest.mark.parametrize("memory", [None, 0], ids=["memory", "files"])
def test_a_checkpoint_is_of_its_round_whatever_the_next_one_changes(tmp_path, memory):
    """64 MB, which are still on their way to the disk when the next round begins."""
    kept = Kept(*(ClientStates(memory, tmp_path / name) for name in ("states", "records")))
    for client in range(8):
        for states in kept:
            states.put(client, {"w": torch.full((1_000_000,), float(client))})
    policy = Policy(every=1, keep_last=2, keep_best=None)
    requests = StopRequests(second="exit")
    keeper = CheckpointKeeper(policy, tmp_path, kept, ALONE, dict, requests)
    server = {"params": {"w": torch.zeros(3)}}
    federation = SimpleNamespace(
        history=[{"round": 1}],
        last_round=9,
        server=server,
        loggers=(),
        engine=SimpleNamespace(decided={}, channel=Channel()),
        pace=SimpleNamespace(state_dict=dict),
    )
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
