"""Properties of every model in conf/model."""

import pytest
import torch
from models_by_name import NAMES, NUM_TOKENS, REQUIRED, SHAPES, TOKENS, make_inputs
from models_by_name import make_model as make
from sampling import others_slow
from torch import nn
from torch.func import functional_call

from flfast.datamodules.batches import Batch
from flfast.engines.evaluation.personal_models import PersonalModels
from flfast.engines.fused.graph.trace import operators
from flfast.state.weights import read_weights
from flfast.tasks.classification import CLASSIFICATION

LARGER = {"cnn1d": (9, 128), "timm": (3, 40, 20), "vgg11": (3, 64, 32)}
LARGER |= {"forecaster": (1, 30)}
IMAGES = [name for name in NAMES if name not in SHAPES]
SMALL = [name for name in NAMES if name not in {"resnet18", "timm", "vgg11"}]
TRACED = ["cnn", "forecaster", "lstm", "mlp"]
# Some have names of their own, or several last layers.
HEADS = [name for name in NAMES if name not in {*REQUIRED, "multi_exit_cnn"}]
per_model = pytest.mark.parametrize("name", others_slow(NAMES, SMALL))


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        *((name, shape) for name in IMAGES for shape in ((1, 28, 28), (3, 32, 32), (3, 40, 20))),
        *((name, shape) for name in SHAPES for shape in (SHAPES[name], LARGER.get(name))),
    ],
)
def test_every_yaml_builds_a_model_that_maps_a_batch_to_logits(name, shape):
    model = make(
        name, shape=shape, num_classes=7, task="classification", options=REQUIRED.get(name, {})
    )
    assert model(make_inputs(name, 2, shape=shape)).shape == (2, 7)


@pytest.mark.parametrize("name", TOKENS)
def test_language_has_logits_at_every_position_that_depend_on_no_later_token(name):
    model = make(name)
    tokens = make_inputs(name, 3)
    logits = model(tokens)
    assert logits.shape == (3, 6, NUM_TOKENS)
    tokens[:, 4:] = (tokens[:, 4:] + 1) % NUM_TOKENS
    torch.testing.assert_close(model(tokens)[:, :4], logits[:, :4], rtol=0, atol=0)
    assert not torch.allclose(model(tokens)[:, 4:], logits[:, 4:])


@pytest.mark.parametrize("name", TOKENS)
def test_classification_does_not_read_padding_at_the_end(name):
    model = make(name, task="classification").eval()
    tokens = make_inputs(name, 3).clamp(min=1)
    padded = tokens.clone()
    padded[0, 2:] = padded[1, 5:] = 0
    logits = model(padded)
    torch.testing.assert_close(logits[0], model(tokens[:1, :2])[0])
    torch.testing.assert_close(logits[1], model(tokens[1:2, :5])[0])
    torch.testing.assert_close(logits[2], model(tokens[2:])[0])
    assert not torch.allclose(logits[0], model(tokens)[0])


@per_model
def test_every_parameter_gets_a_gradient(name):
    model = make(name)
    logits = model(make_inputs(name, 12)).flatten(0, -2)
    nn.functional.cross_entropy(logits, torch.arange(len(logits)) % 3).backward()
    assert [
        name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()
    ] == []


@pytest.mark.parametrize("name", HEADS)
def test_the_last_layer_is_named_fc(name):
    layer, head = list(make(name, task="classification").named_modules())[-1]
    assert layer == "fc"
    assert head.out_features == 3


@per_model
def test_initial_weights_are_a_function_of_the_seed(name):
    same, again, other = (list(make(name, seed=seed).parameters()) for seed in (1, 1, 2))
    assert all(map(torch.equal, same, again))
    assert not all(map(torch.equal, same, other))


@pytest.mark.parametrize("name", others_slow(NAMES, TRACED))
def test_a_step_can_be_traced(name):
    model, inputs = make(name), make_inputs(name, 2)

    def step(state, batch):
        params = {n: p.detach().requires_grad_() for n, p in state.items()}
        with torch.enable_grad():
            loss = functional_call(model, params, (batch["inputs"],)).square().mean()
        for p, grad in zip(
            state.values(), torch.autograd.grad(loss, list(params.values())), strict=True
        ):
            p.sub_(grad)

    state = {n: p.detach() for n, p in model.named_parameters()}
    assert len(operators(step, [state, {"inputs": inputs}]).graph.nodes) > len(state)


@per_model
def test_models_of_several_clients_predict_together_where_vmap_can(name):
    weights = {k: read_weights(make(name, seed=k)) for k in (1, 2)}
    inputs = make_inputs(name, 5)
    batch = Batch(inputs, torch.zeros(5, dtype=torch.int64), owners=[(1, 2), (2, 3)])
    together, alone = (
        PersonalModels(make(name).eval(), CLASSIFICATION, weights, vmapped=v)
        for v in (True, False)
    )
    torch.testing.assert_close(together(batch), alone(batch))
    # vmap has no rules for the CPU's kernels of LSTMs and attention.
    assert together._vmapped == (name not in TOKENS)
