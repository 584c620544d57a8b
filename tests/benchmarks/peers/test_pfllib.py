import numpy as np
import torch

from benchmarks.building import load_examples
from benchmarks.peers.pfllib import write_dataset
from benchmarks.workload import Workload
from flfast.zoo.datamodules.sources.pfllib import pfllib

UNEVEN = Workload(
    "tiny",
    "three clients",
    model="logistic",
    train_sizes=(5, 12, 23),
    test_sizes=(2, 1, 3),
    lr=0.1,
    rounds=1,
    shape=(4,),
    num_clients=3,
    cohort=3,
)


def test_a_dataset_in_pfllibs_format_holds_the_same_clients(tmp_path):
    write_dataset(UNEVEN, tmp_path)
    read, made = pfllib(root=str(tmp_path)), load_examples(UNEVEN)
    for client_id in range(3):
        for is_test in (False, True):
            mine, theirs = (
                np.flatnonzero((one.owner == client_id) & (one.is_test == is_test))
                for one in (read, made)
            )
            assert torch.equal(read.inputs[mine], made.inputs[theirs])
            assert torch.equal(read.targets[mine], made.targets[theirs])
