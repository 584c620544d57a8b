"""The mathematics of torch.optim, step by step and state by state."""

from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.optim import SGD, Adam, AdamW, RMSprop

from flfast.engines.fused.graph.update_rules import local_optimizer

SHAPES = {"weight": (3, 2), "bias": (3,), "scale": ()}
decays = st.sampled_from([0.0, 0.01, 0.3])
rates = st.floats(1e-4, 0.5)


@st.composite
def optimizers(draw):
    """lr -> a torch optimizer's constructor over parameters."""
    make = draw(st.sampled_from([SGD, Adam, AdamW]))
    options = {"weight_decay": draw(decays)}
    if make is SGD:
        options["momentum"] = draw(st.sampled_from([0.0, 0.5, 0.9]))
        options["nesterov"] = bool(options["momentum"]) and draw(st.booleans())
    else:
        options["betas"] = draw(st.sampled_from([(0.9, 0.999), (0.0, 0.5), (0.5, 0.9)]))
        options["eps"] = draw(st.sampled_from([1e-8, 1e-3]))
    return partial(make, **options)


def drawn(seed, dtype):
    rng = torch.Generator().manual_seed(seed)
    return {
        name: torch.randn(shape, generator=rng, dtype=torch.float64).to(dtype)
        for name, shape in SHAPES.items()
    }


def steps_of_torch(make, params, grads, *, lr, state):
    """Parameters and state by name after torch.optim's own steps, from a state or none."""
    own = {name: nn.Parameter(value.clone()) for name, value in params.items()}
    optimizer = make(list(own.values()), lr=lr)
    if state:
        entries = [{slot: leaf.clone() for slot, leaf in state[name].items()} for name in own]
        saved = optimizer.state_dict()
        optimizer.load_state_dict({**saved, "state": dict(enumerate(entries))})
    for grad in grads:
        for name, p in own.items():
            p.grad = grad[name].clone()
        optimizer.step()
    kept = {
        name: {slot: leaf for slot, leaf in optimizer.state[p].items() if leaf is not None}
        for name, p in own.items()
    }
    return {name: p.detach() for name, p in own.items()}, kept


def steps_of_ours(make, params, grads, *, lr, state):
    optimizer = local_optimizer(make([nn.Parameter(torch.zeros(1))], lr=lr))
    params = {name: value.clone() for name, value in params.items()}
    own = optimizer.empty(params)
    optimizer.load(own, state, lr)
    rate = torch.tensor(lr, dtype=torch.float64)
    factor = lr if optimizer.scaled else 1.0
    for grad in grads:
        scaled = {name: value * factor for name, value in grad.items()}
        optimizer.update(params, scaled, own, rate)
    return params, optimizer.read(own, list(params), lr)


@settings(max_examples=25)
@given(
    make=optimizers(),
    lrs=st.lists(rates, min_size=1, max_size=3),
    num_steps=st.integers(1, 4),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    seed=st.integers(0, 10_000),
)
def test_rounds_of_steps_are_those_of_torch(make, lrs, num_steps, dtype, seed):
    tol = 1e-12 if dtype == torch.float64 else 1e-6
    params = expected = drawn(seed, dtype)
    state, expected_state = {}, {}
    for round_idx, lr in enumerate(lrs):  # the state goes from round to round, the rate changes
        grads = [drawn(seed + 100 * round_idx + i + 1, dtype) for i in range(num_steps)]
        params, state = steps_of_ours(make, params, grads, lr=lr, state=state)
        expected, expected_state = steps_of_torch(
            make, expected, grads, lr=lr, state=expected_state
        )
        # Roundings add up from round to round, but no faster than that.
        close = partial(torch.testing.assert_close, rtol=4 * tol, atol=4 * tol)
        close(params, expected)
        if any(expected_state.values()):
            close(state, expected_state)
        else:
            assert not any(state.values())


@pytest.mark.parametrize(
    "make", [partial(SGD, momentum=0.9), Adam, AdamW], ids=["sgd", "adam", "adamw"]
)
def test_a_state_of_torch_survives_loading_and_reading(make):
    params = drawn(0, torch.float32)
    grads = [drawn(seed, torch.float32) for seed in (1, 2, 3)]
    _, kept = steps_of_torch(make, params, grads, lr=0.1, state={})
    found = steps_of_ours(make, params, [], lr=0.03, state=kept)[1]
    assert {name: set(own) for name, own in found.items()} == {n: set(k) for n, k in kept.items()}
    torch.testing.assert_close(found, kept, rtol=1e-6, atol=0)
    if "step" in kept["bias"]:
        assert found["bias"]["step"] == 3


def test_reading_copies_and_loading_leaves_the_source_alone():
    make = partial(SGD, momentum=0.5)
    state = {name: {"momentum_buffer": value} for name, value in drawn(1, torch.float64).items()}
    before = {name: own["momentum_buffer"].clone() for name, own in state.items()}
    _, found = steps_of_ours(
        make, drawn(0, torch.float64), [drawn(2, torch.float64)], lr=1.0, state=state
    )
    for name, own in state.items():
        assert torch.equal(own["momentum_buffer"], before[name])
        assert found[name]["momentum_buffer"].data_ptr() != own["momentum_buffer"].data_ptr()


def test_adam_with_decoupled_weight_decay_is_adamw():
    params, grads = drawn(0, torch.float64), [drawn(1, torch.float64)]
    options = {"weight_decay": 0.1}
    left = partial(Adam, decoupled_weight_decay=True, **options)
    found = [
        steps_of_ours(make, params, grads, lr=0.1, state={})[0]
        for make in (left, partial(AdamW, **options))
    ]
    torch.testing.assert_close(*found, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (partial(Adam, amsgrad=True), "optimizer.amsgrad"),
        (partial(SGD, momentum=0.9, dampening=0.1), "optimizer.dampening"),
        (partial(SGD, maximize=True), "optimizer.maximize"),
        (partial(Adam, differentiable=True), "optimizer.differentiable"),
        (RMSprop, "optimizer RMSprop"),
        (type("MySGD", (SGD,), {}), "optimizer MySGD"),  # whose step may be any other
    ],
    ids=["amsgrad", "dampening", "maximize", "differentiable", "rmsprop", "subclass"],
)
def test_what_is_not_known_is_named(make, message):
    with pytest.raises(NotImplementedError, match=message):
        local_optimizer(make([nn.Parameter(torch.zeros(2))], lr=0.1))


def test_several_parameter_groups_are_refused():
    groups = [{"params": [nn.Parameter(torch.zeros(2))]} for _ in range(2)]
    with pytest.raises(NotImplementedError, match="several parameter groups"):
        local_optimizer(SGD(groups, lr=0.1))
