"""What counts as rounding when two ways of local training are compared."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from flfast.engines.fused.agreement import TrialSteps, agree, perturbations

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
FLOAT32 = torch.finfo(torch.float32).eps


def weights(seed, dtype=torch.float32):
    rng = torch.Generator().manual_seed(seed)
    params = {"w": torch.randn(30, 20, generator=rng).to(dtype)}
    return {"params": params, "buffers": {"n": torch.tensor(3)}}


def trained(seed, dtype=torch.float32):
    start, change = weights(seed, dtype), weights(seed + 1, dtype)
    end = {"params": {"w": start["params"]["w"] + 0.01 * change["params"]["w"]}}
    return TrialSteps(start, {**end, "buffers": start["buffers"]})


def moved(tree, relative, seed=9):
    """Weights with a random relative error."""
    noise = torch.randn(30, 20, generator=torch.Generator().manual_seed(seed))
    return {**tree, "params": {"w": tree["params"]["w"] * (1 + relative * noise)}}


@given(st.integers(0, 1000))
def test_rounding_agrees_and_more_does_not(seed):
    """Updates are a hundredth of the weights; an error of their percent is 1e-4 of the weights."""
    expected = trained(seed)
    assert agree(expected.end, expected)
    assert agree(moved(expected.end, FLOAT32), expected)
    assert not agree(moved(expected.end, 1e-4), expected)


def test_what_perturbed_weights_change_is_allowed():
    """Steps that magnify a rounding error, such as Adam's, magnify it for both engines."""
    expected = trained(0)
    found = moved(expected.end, 1e-4)
    nearby = [TrialSteps(expected.start, moved(expected.end, 1e-4, seed)) for seed in (1, 2)]
    assert agree(found, expected, nearby=nearby)
    assert not agree(moved(expected.end, 1e-2), expected, nearby=nearby)


def test_a_reference_that_is_not_finite_agrees_only_with_its_like():
    expected = trained(0)
    broken = TrialSteps(expected.start, moved(expected.end, float("nan")))
    assert agree(broken.end, broken)
    assert not agree(expected.end, broken)
    assert not agree(broken.end, expected)


@pytest.mark.parametrize(
    ("precision", "dtype", "device", "unit"),
    [
        ("32-true", torch.float32, CPU, FLOAT32),
        ("64-true", torch.float64, CPU, torch.finfo(torch.float64).eps),
        ("bf16-true", torch.bfloat16, CPU, 2**-7),
        ("bf16-mixed", torch.float32, CPU, 2**-7),
        ("16-mixed", torch.float32, CUDA, 2**-10),
        ("32-true", torch.float32, CUDA, 2**-10),  # TF32, in convolutions by default
        ("64-true", torch.float64, CUDA, torch.finfo(torch.float64).eps),
    ],
)
def test_perturbations_are_units_in_the_last_place(precision, dtype, device, unit):
    before = weights(0, dtype)
    first, second = (perturb(before) for perturb in perturbations(precision, device))
    for after in (first, second):
        change = (after["params"]["w"].double() / before["params"]["w"].double() - 1).abs()
        assert change.median() == pytest.approx(unit, rel=0.5)
        assert torch.equal(after["buffers"]["n"], before["buffers"]["n"])
    assert not torch.equal(first["params"]["w"], second["params"]["w"])


def test_without_tf32_a_gpu_rounds_as_a_cpu(monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    before = weights(0)
    after = next(perturbations("32-true", CUDA))(before)
    change = (after["params"]["w"].double() / before["params"]["w"].double() - 1).abs()
    assert change.max() <= 2 * FLOAT32
