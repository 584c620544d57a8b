"""The task segmentation with a U-Net: engines, stacks and micro-batches agree."""

import pytest
import torch
from engine_runs import assert_engines_agree

from flfast.datamodules.federated import FederatedDataModule, Split
from flfast.datamodules.fetching import Loading
from flfast.datamodules.partitions.natural import natural
from flfast.state.plan import Batching
from flfast.state.randomness import seed_torch
from flfast.zoo.datamodules.sources.synthetic_shapes import SyntheticShapes
from flfast.zoo.models.unet import unet

DOUBLE = {"trainer": {"precision": "64-true"}}


@pytest.fixture(scope="module")
def shapes():
    """Three clients with seven training images of 8 x 8 pixels each."""
    options = {"num_clients": 3, "per_client": 7, "test_per_client": 2, "side": 8}
    found = SyntheticShapes(**options, scanner=1.0, noise=0.05, dice_weight=1.0, seed=0).load()
    data = FederatedDataModule(
        lambda: found,
        lambda num_examples, owner: natural(
            num_examples, owner=owner, group_size=1, rest="smaller"
        ),
        seed=0,
        split=Split(0.0, 0.0),
        loading=Loading(eval_batch_size=4),
    )
    data.setup()
    return data


@pytest.fixture
def make(shapes, make_federation):
    def federation(batching, norm):
        seed_torch(0, "initial weights")
        options = {"task": "segmentation", "width": 2, "depth": 2, "norm": norm, "groups": 1}
        model = unet(input_shape=(1, 8, 8), num_classes=3, **options).double()
        return make_federation(shapes, model, rounds=2, lr=0.3, batching=batching, **DOUBLE)

    return federation


@pytest.mark.parametrize(
    ("batching", "norm"),
    [
        (Batching(-1), "none"),
        pytest.param(Batching(3), "group", marks=pytest.mark.slow),
        pytest.param(Batching(6, micro_batch=2), "group", marks=pytest.mark.slow),
        pytest.param(Batching(4, last_batch="pad"), "batch", marks=pytest.mark.slow),
    ],
)
def test_engines_agree(make, batching, norm):
    found = assert_engines_agree(lambda: make(batching, norm))
    first, *_, last = (row["local/loss"] for row in found.history)
    assert last < first


@pytest.mark.slow
def test_stacks_agree(make):
    assert_engines_agree(lambda: make(Batching(3), "group"), stack=3)


def test_micro_batches_do_not_change_the_weights(make):
    whole, parts = (make(Batching(6, micro_batch=m), "group") for m in (None, 2))
    for federation in (whole, parts):
        federation.run()
    expected = whole.weights()
    for name, value in parts.weights().items():
        torch.testing.assert_close(value, expected[name], rtol=1e-9, atol=1e-9)
