"""Recomputed layers: the same numbers to the last bit, fewer kept activations."""

from copy import deepcopy

import pytest
import torch
from engine_runs import chosen, ran
from models_by_name import make_inputs, make_model
from sampling import others_slow
from tables import assert_same_numbers, rows
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.func import functional_call

from flfast.engines.eager import EagerTraining
from flfast.models.recomputed import Recomputed, recompute, recomputes
from flfast.state.plan import Batching
from flfast.state.weights import buffers

GPT2 = {"name": "gpt2", "options": {"n_embd": 8, "n_head": 2, "n_layer": 3}}  # with dropout
MODELS = {
    "transformer": lambda: make_model(
        "transformer", options={"width": 8, "layers": 3, "heads": 2, "dropout": 0.3}
    ),
    "transformers": lambda: make_model("transformers", options=GPT2),
    "resnet18": lambda: make_model("resnet18"),  # its BatchNorm counts batches
}


TEXT_MODELS = [*MODELS][:2]


def made(name, chosen="auto"):
    model = MODELS[name]().train()
    if chosen is not None:
        recompute(model, chosen)
    return model


def step(model, inputs, weights=None):
    """Outputs, gradients, buffers and the next random number after a step."""
    torch.manual_seed(3)  # noqa: TID251 - the test's own masks
    weights = weights or dict(model.named_parameters())
    own = [p for p in model.parameters() if any(p is w for w in weights.values())]
    outputs = model(inputs) if own else functional_call(model, weights, (inputs,))
    grads = torch.autograd.grad(outputs.square().sum(), list(weights.values()), allow_unused=True)
    after = {name: buffer.clone() for name, buffer in buffers(model).items()}
    return outputs, grads, after, torch.rand(())


@pytest.mark.parametrize("name", MODELS)
def test_a_step_is_the_same_to_the_last_bit(name):
    inputs = make_inputs(name, 4)
    expected, found = step(made(name, None), inputs), step(made(name), inputs)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


@pytest.mark.parametrize("name", others_slow(MODELS, TEXT_MODELS))
def test_a_step_with_weights_that_are_not_the_models_own_is_the_same(name):
    """The backward pass runs when `functional_call` has put back the model's own weights."""
    inputs, found = make_inputs(name, 4), []
    for option in (None, "auto"):
        model = made(name, option)
        other = {n: (0.5 * p + 0.01).detach() for n, p in model.named_parameters()}
        found.append(step(model, inputs, {n: p.requires_grad_() for n, p in other.items()}))
    torch.testing.assert_close(*found, rtol=0, atol=0)


def kept_bytes(model, inputs):
    kept = {}

    def pack(tensor):
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        outputs = model(inputs)
    del outputs
    return sum(kept.values()) - sum(p.nbytes for p in model.parameters())


@pytest.mark.parametrize("name", others_slow(MODELS, TEXT_MODELS))
def test_activations_within_layers_are_not_kept_for_the_backward_pass(name):
    inputs = make_inputs(name, 64)
    assert kept_bytes(made(name), inputs) < kept_bytes(made(name, None), inputs) / 3


def test_second_derivatives_are_the_same():
    inputs, found = make_inputs("transformer", 4), []
    for option in (None, "auto"):
        model = made("transformer", option).double()
        torch.manual_seed(3)  # noqa: TID251 - the test's own masks
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            loss = model(inputs).square().mean()
            params = list(model.parameters())
            first = torch.autograd.grad(loss, params, create_graph=True)
            total = sum(g.square().sum() for g in first)
            found.append(torch.autograd.grad(total, params))
    torch.testing.assert_close(*found, rtol=0, atol=0)


def test_a_copy_computes_with_its_own_weights():
    model = made("transformer")
    copy = deepcopy(model)
    with torch.no_grad():
        for p in copy.parameters():
            p.mul_(2)
    inputs = make_inputs("transformer", 4)
    plain = made("transformer", None)
    plain.load_state_dict(copy.state_dict())
    torch.testing.assert_close(step(copy, inputs), step(plain, inputs), rtol=0, atol=0)


class Nested(nn.Module):
    def __init__(self):
        super().__init__()
        self.stages = nn.ModuleList(
            nn.Sequential(*(nn.Sequential(nn.Linear(3, 3), nn.Tanh()) for _ in range(2)))
            for _ in range(2)
        )
        self.head = nn.Sequential(nn.Linear(3, 2))

    def forward(self, inputs):
        for stage in self.stages:
            inputs = stage(inputs)
        return self.head(inputs)


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        ("auto", ["stages.0", "stages.1"]),
        (r"stages\.\d\.1", ["stages.0.1", "stages.1.1"]),
        ("head", ["head"]),
        ("Sequential", ["stages.0", "stages.1", "head"]),
    ],
)
def test_layers_are_chosen_by_class_or_path_and_not_within_each_other(option, expected):
    model = Nested()
    recompute(model, option)
    assert [n for n, m in model.named_modules() if isinstance(m, Recomputed)] == expected
    assert recomputes(model)


@pytest.mark.parametrize(
    ("make", "option", "message"),
    [
        (lambda: make_model("mlp"), "auto", "recompute=auto: the model has no such layers"),
        (Nested, "Linear", "or a class or path of layers that are made of layers: Sequential"),
        (Nested, "block", "recompute=block: the model has no such layers"),
        (Nested, "(", r"recompute=\( is no regular expression: missing"),
    ],
)
def test_a_choice_without_effect_is_refused(make, option, message):
    with pytest.raises(ValueError, match=message):
        recompute(make(), option)


@pytest.mark.parametrize("strategy", ["single", "dp"])
def test_a_run_has_the_same_weights(make_data, make_federation, strategy):
    found = []
    for option in (None, "auto"):
        torch.manual_seed(1)  # noqa: TID251 - a test's own model
        model = Nested()
        if option is not None:
            recompute(model, option)
        data = make_data([7, 5], features=(3,), num_classes=2)
        federation = make_federation(data, model, batching=Batching(3), strategy=strategy)
        found.append(ran(federation, EagerTraining).weights())
    torch.testing.assert_close(*found, rtol=0, atol=0)
    if strategy == "single":
        reason = "eager (recompute computes layers again"
        assert chosen(federation).startswith(reason)


TEXTS = (
    *("data=synthetic", "task=language", "data.shape=[6]", "data.num_examples=24"),
    *("data.num_test=6", "data.num_clients=2", "partition=natural", "rounds=1"),
    *("local_epochs=1", "strategy=single", "trainer.accelerator=cpu", "callbacks=none"),
    *("model=transformer", "model.width=8", "model.heads=2", "model.dropout=0.1"),
)


@pytest.mark.slow
def test_a_command_has_the_same_numbers(flfast_run):
    found = [
        rows(flfast_run(*TEXTS, "engine=eager", run_dir="kept")),
        rows(flfast_run(*TEXTS, "recompute=auto", run_dir="recomputed")),
    ]
    assert_same_numbers(*found, rel=0)
    assert found[0][-1]["train/loss"] == found[1][-1]["train/loss"]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("recompute=auto", "engine=fused"), "engine=fused: recompute computes layers again"),
        (("recompute=auto", "micro_batch=auto"), "auto on cpu with recompute"),
        (("recompute=Linear",), "recompute=Linear: the model has no such layers"),
        (
            ("recompute=auto", "privacy=dp_sgd"),
            "with privacy=dp_sgd: layers compute twice",
        ),
    ],
)
def test_a_command_refuses_what_does_not_go_together(flfast_run, capfd, overrides, message):
    with pytest.raises(SystemExit):
        flfast_run(*TEXTS, *overrides)
    assert message in capfd.readouterr().err
