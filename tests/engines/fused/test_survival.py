"""The task survival: engines and stacks agree, and its batches stay whole."""

import numpy as np
import pytest
from engine_runs import assert_engines_agree, engine_of
from sampling import others_slow

from flfast.datamodules.examples import Examples
from flfast.datamodules.federated import FederatedDataModule, Split
from flfast.datamodules.fetching import Loading
from flfast.datamodules.sources.synthetic import Synthetic
from flfast.engines.auto import AutoTraining
from flfast.engines.eager import EagerTraining
from flfast.engines.fused.training import FusedTraining
from flfast.state.plan import Batching

SIZES = [150, 70, 7]


@pytest.fixture(scope="module")
def patients():
    """Three clients; the last one has no event."""
    options = {"num_classes": None, "num_clients": 1, "noise": 0.1, "task": "survival", "seed": 0}
    drawn = Synthetic(num_examples=sum(SIZES), num_test=20, shape=[4], **options).load()
    targets = drawn.targets.clone()
    targets[sum(SIZES[:2]) : sum(SIZES), 1] = 0
    examples = Examples(drawn.inputs, targets, 1, is_test=drawn.is_test, task="survival")
    data = FederatedDataModule(
        lambda: examples,
        lambda: np.repeat(np.arange(3), SIZES),
        seed=0,
        split=Split(0.0, 0.0),
        loading=Loading(eval_batch_size=4),
    )
    data.setup()
    return data


@pytest.mark.parametrize(
    "batching",
    [
        pytest.param(Batching(4), marks=pytest.mark.slow),
        Batching(-1),
        pytest.param(Batching(8, last_batch="drop"), marks=pytest.mark.slow),
    ],
)
def test_engines_agree(patients, make_federation, batching):
    """A full batch of 150 examples is not cut to fit a cache, nor a partial one padded."""
    options = {"rounds": 2, "batching": batching, "trainer": {"precision": "64-true"}}
    found = assert_engines_agree(lambda: make_federation(patients, **options))
    first, *_, last = (row["global/concordance"] for row in found.history)
    assert last > first


@pytest.mark.parametrize("stack", others_slow([2, 3], [3]))
def test_stacks_agree(patients, make_federation, stack):
    options = {"batching": Batching(4), "trainer": {"precision": "64-true"}}
    assert_engines_agree(lambda: make_federation(patients, **options), stack=stack)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batching": Batching(8, micro_batch=2)}, "micro_batch=2 cuts; use micro_batch=null"),
        ({"batching": Batching(4, accumulate=2)}, "accumulate_grad_batches=2 cuts; use batch_si"),
        ({"strategy": "dp"}, "strategy=dp divides; use strategy=ddp"),
        ({"strategy": "ddp", "shard": "batch"}, "strategy.shard=batch divides"),
        ({"batching": Batching(1)}, "compares the examples of a batch, and batch_size=1 has one"),
    ],
)
@pytest.mark.parametrize("training", [EagerTraining, FusedTraining, AutoTraining])
def test_batches_are_not_split(patients, make_federation, training, changes, message):
    found = make_federation(patients)
    plan = found.plans(1, [])._replace(**changes)
    with pytest.raises(ValueError, match=f"task=survival .*{message}"):
        engine_of(found, training).choose(plan)
