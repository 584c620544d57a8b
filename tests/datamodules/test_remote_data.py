import numpy as np
import pytest
import torch

from flfast.datamodules.examples import Examples
from flfast.datamodules.fetching import Loading
from flfast.datamodules.remote_data import RemoteData, schema_of
from flfast.datamodules.splits import Split

SIZES = {"train": np.array([3, 5]), "val": np.array([1, 0]), "test": np.array([0, 2])}
TARGETS = {
    "classification": torch.tensor([0, 2]),
    "language": torch.tensor([[1, 2, 0], [1, 0, 2]]),
    "regression": torch.tensor([[0.5, 1, 2], [3, 4, 5]]),
    "multilabel": torch.tensor([[0, 1, 1], [1, 0, 0]]),
    "survival": torch.tensor([[3.5, 1], [2, 0]]),
    "forecasting": torch.ones(2, 6, 1),
    "segmentation": torch.tensor([[[0, 2]], [[1, 0]]], dtype=torch.uint8),
}


@pytest.mark.parametrize("task", TARGETS)
def test_sizes_are_true_and_inputs_take_no_memory(task):
    given = Examples(
        torch.ones(2, 4, 5),
        TARGETS[task],
        1 if task == "survival" else 3,
        task=task,
        categories=(2,),
    )
    settings = {"seed": 0, "split": Split(0.1, 0.1), "loading": Loading(10)}
    data = RemoteData(schema_of(given), SIZES, **settings)
    data.setup()
    assert schema_of(data.examples) == schema_of(given)
    assert data.examples.inputs.untyped_storage().nbytes() == 4 * 4 * 5
    assert data.num_clients == 2
    for name, sizes in SIZES.items():
        assert data.splits[name].sizes().tolist() == sizes.tolist()
    assert data.client_sizes.tolist() == [3, 5]
    batch = next(iter(data.client(1).train_dataloader()))
    assert batch.inputs.shape[1:] == (4, 5)


def test_clients_that_are_held_out_are_those_of_a_simulation(make_data):
    given = Examples(torch.ones(2, 4), TARGETS["classification"], 3)
    sizes = {"train": np.full(10, 4), "val": np.zeros(10, int), "test": np.full(10, 1)}
    split = Split(0.0, 0.2, clients=3)
    data = RemoteData(schema_of(given), sizes, seed=7, split=split, loading=Loading(10))
    data.setup()
    simulated = make_data([5] * 10, seed=7, split=(0.0, 0.2))
    simulated.split = split
    simulated._hold_out()
    assert data.held_out.tolist() == simulated.held_out.tolist()
