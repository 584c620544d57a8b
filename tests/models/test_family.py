"""Which client has which model, and features of one size."""

import numpy as np
import pytest
import torch
from hydra.utils import instantiate
from hypothesis import given
from hypothesis import strategies as st
from models_by_name import FAMILIES, NAMES, TOKENS, make_model
from sampling import others_slow
from torch.nn import functional as F

from flfast.config.composition import compose, without_hydra
from flfast.config.job import HydraJob
from flfast.models.family import Family, with_same_features
from flfast.state.injection import call_with


def members(num, num_clients=6, seed=0, *, assign="round_robin", shares=None, order=None):
    builders = {f"m{place}": None for place in range(num)}
    return Family(builders, assign, shares, None).members(num_clients, seed, lambda: order)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=5).filter(sum), st.integers(1, 50))
def test_shares_are_kept_as_far_as_clients_can_be_divided(parts, num_clients):
    shares = [part / sum(parts) for part in parts]
    found = members(len(parts), num_clients, assign="shares", shares=shares)
    assert len(found) == num_clients
    counts = np.bincount(found, minlength=len(parts))
    assert np.abs(counts - np.multiply(shares, num_clients)).max() < 1 + 1e-9
    assert (counts[np.equal(parts, 0)] == 0).all()


def test_the_seed_draws_the_clients_of_shares():
    draws = {tuple(members(2, 20, seed, assign="shares", shares=[0.5, 0.5])) for seed in range(5)}
    assert len(draws) == 5
    assert tuple(members(2, 20, 3, assign="shares", shares=[0.5, 0.5])) in draws


@given(st.permutations(range(7)), st.integers(1, 9))
def test_faster_clients_have_members_that_come_first(order, num):
    found = members(num, 7, assign="by_device", order=order)
    assert (np.diff(found[order]) >= 0).all()
    counts = np.bincount(found, minlength=num)
    assert np.ptp(counts) <= 1, "equal parts, as far as possible"


def test_parts_by_device_are_the_shares():
    found = members(2, 4, assign="by_device", shares=[0.25, 0.75], order=[2, 0, 1, 3])
    assert found.tolist() == [1, 1, 0, 1]
    with pytest.raises(ValueError, match="allowed with assign=by_device: 2 numbers >= 0 that add"):
        members(2, 4, assign="by_device", shares=[], order=[2, 0, 1, 3])


def test_equal_shares_need_not_be_given():
    assert np.bincount(members(2, 7, assign="shares")).tolist() in ([3, 4], [4, 3])


def test_members_take_turns():
    assert members(3).tolist() == [0, 1, 2, 0, 1, 2]


def test_a_list_names_the_member_of_each_client():
    names = ["m1", "m0", "m1"]
    assert members(2, 3, assign=names).tolist() == [1, 0, 1]
    with pytest.raises(ValueError, match=r"m2 is no member; allowed: m0, m1"):
        members(2, 3, assign=["m1", "m0", "m2"])
    with pytest.raises(ValueError, match=r"has 3 names; allowed: one for each of 4 clients"):
        members(2, 4, assign=names)
    with pytest.raises(ValueError, match=r"model.shares=\[1.0\]: is for assign=shares or by"):
        members(1, shares=[1.0])


@pytest.mark.parametrize("shares", [[0.5], [0.7, 0.7], [1.5, -0.5]])
def test_shares_that_are_none_are_refused(shares):
    with pytest.raises(ValueError, match="2 numbers >= 0 that add up to 1"):
        members(2, assign="shares", shares=shares)


BODIES = [n for n in NAMES if n not in {*TOKENS, "forecaster", "multi_exit_cnn"}]


@pytest.mark.parametrize(
    "name", others_slow(BODIES, [n for n in BODIES if n not in {"resnet18", "vgg11"}])
)
def test_a_new_head_reads_averages_of_the_features(name):
    """The body gives what the last layer got, for every model of images, series and rows."""
    model = make_model(name).eval()
    inputs = []
    hook = next(m for m in reversed([*model.modules()]) if isinstance(m, torch.nn.Linear))
    hook.register_forward_pre_hook(lambda _, given: inputs.append(given[0]))
    shape = {"cnn1d": (2, 40), "tabular_mlp": (5,), "vgg11": (1, 32, 32), "timm": (3, 32, 32)}
    x = torch.randn(2, *shape.get(name, (1, 20, 20)))
    with torch.no_grad():
        outputs = model(x)
        found = with_same_features(model, 4).eval()
        assert found(x).shape == outputs.shape
        pooled = F.adaptive_avg_pool1d(inputs[0].unsqueeze(1), 4).squeeze(1)
        torch.testing.assert_close(found(x), found.head(pooled))
    assert [*dict(found.named_parameters())][-2:] == ["head.weight", "head.bias"]


def test_a_model_that_is_one_layer_has_no_features():
    with pytest.raises(ValueError, match="last layer, the model, is a Linear; allowed: models"):
        with_same_features(torch.nn.Linear(3, 2), 4)


READS = {"family_images": (3, 32, 32), "family_series": (2, 64), "family_text": (6,)}


@pytest.mark.parametrize(
    "option",
    [
        pytest.param(name, marks=[pytest.mark.slow] * (name in {"family_images", "family_text"}))
        for name in FAMILIES
    ],
)
def test_members_of_a_named_family_read_the_same_inputs(option):
    composed = compose([f"model={option}", "algorithm=local"])
    composed.hydra.runtime.output_dir = "unused"
    given = without_hydra(composed.copy())
    found = instantiate(HydraJob.of(composed, given).fill(given).model, _convert_="all")
    shape = READS.get(option, (1, 8, 8))
    is_text = option == "family_text"
    x = torch.randint(11, (2, *shape)) if is_text else torch.randn(2, *shape)
    offers = {"input_shape": shape, "num_classes": 11, "num_tokens": 11, "task": "language"}
    sizes = set()
    for builder in found.builders.values():
        model = call_with(builder, **offers)
        if found.feature_dim is not None:
            model = with_same_features(model, found.feature_dim)
        assert model.eval()(x).shape == ((2, *shape, 11) if is_text else (2, 11))
        sizes.add(sum(p.numel() for p in model.parameters()))
    assert len(sizes) == len(found.builders) > 1
