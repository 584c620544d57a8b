"""Language models: the fused engine gives the numbers of the eager one, factored logits or not."""

import numpy as np
import pytest
import torch
from engine_runs import assert_engines_agree, chosen, engine_of, ran
from models_by_name import NUM_TOKENS, SHAPES, make_inputs, make_model

from flfast.datamodules.examples import Examples
from flfast.datamodules.federated import FederatedDataModule, Split
from flfast.datamodules.fetching import Loading
from flfast.datamodules.transforms import BatchTransform
from flfast.engines.eager import EagerTraining
from flfast.engines.fused.training import FusedTraining
from flfast.state.plan import Batching
from flfast.tasks import factored_logits
from flfast.tasks.task_type import IGNORED

SIZES = [7, 10]


@pytest.fixture(scope="module")
def texts():
    """Two clients; of some texts the first tokens are not to be predicted."""
    num = sum(SIZES) + 5
    tokens = make_inputs("lstm", num)
    targets = tokens.roll(-1, dims=1)
    for row in range(0, num, 3):
        targets[row, : row % 5] = IGNORED
    examples = Examples(
        tokens,
        targets,
        NUM_TOKENS,
        SHAPES["lstm"],
        BatchTransform(),
        is_test=np.arange(num) >= sum(SIZES),
        task="language",
    )
    data = FederatedDataModule(
        lambda: examples,
        lambda: np.repeat(np.arange(2), SIZES),
        seed=0,
        split=Split(0.0, 0.0),
        loading=Loading(eval_batch_size=4),
    )
    data.setup()
    return data


@pytest.fixture
def make(texts, make_federation):
    def make(name, *, precision="64-true"):
        return make_federation(
            texts,
            make_model(name),
            rounds=2,
            lr=0.1,
            batching=Batching(4),
            trainer={"precision": precision},
        )

    return make


@pytest.mark.slow
def test_the_lstm_trains_as_eagerly(make):
    """With one operator a layer, whatever the number of positions."""
    fused = assert_engines_agree(lambda: make("lstm", precision="32-true"), tol=1e-5)
    programs = [
        own for found in fused.engine.training._programs.values() for own in found.client.programs
    ]
    kernels = [
        node
        for own in programs
        for node in own._traced[1].graph.nodes
        if "rnn_layer.default" in str(node.target)
    ]
    assert len(kernels) == 2


def test_an_lstm_without_a_kernel_trains_eagerly_for_a_reason(make):
    federation = make("lstm")
    found = chosen(federation, precision="64-true")
    reason = "with trainer.precision=64-true the model has a recurrent layer without a kernel"
    assert found.startswith(f"eager ({reason}")
    with pytest.raises(ValueError, match=f"engine=fused: {reason}.*; use engine=auto or"):
        engine_of(federation, FusedTraining).choose(
            federation.plans(1, [])._replace(precision="64-true")
        )


@pytest.mark.slow
@pytest.mark.parametrize("name", ["transformer", "transformers"])
def test_a_transformer_trains_as_eagerly(make, name):
    assert_engines_agree(lambda: make(name))


def test_factored_logits_change_no_numbers(make, monkeypatch):
    name = "transformer"
    expected = ran(make(name), EagerTraining)
    monkeypatch.setattr(factored_logits, "WHOLE_BYTES", 1)
    monkeypatch.setattr(factored_logits, "CHUNK_BYTES", 5 * NUM_TOKENS * 8)
    found = assert_engines_agree(lambda: make(name))
    torch.testing.assert_close(found.weights(), expected.weights(), rtol=1e-9, atol=1e-9)
    measured = [key for key in expected.history[-1] if key.startswith("global/")]
    assert len(measured) == 4
    for key in measured:
        assert found.history[-1][key] == pytest.approx(expected.history[-1][key], rel=1e-5)
