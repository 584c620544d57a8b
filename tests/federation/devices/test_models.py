"""What every device model promises, and the numbers of lognormal devices and of tiers."""

import tracemalloc
from functools import partial

import numpy as np
import pytest
import scipy
from hydra.utils import instantiate
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf
from option_classes import called

from flfast.config.check import _check_targets
from flfast.config.signature import read_signature
from flfast.federation.devices.device import DAY
from flfast.federation.devices.lognormal import Lognormal
from flfast.federation.devices.tiers import Tiers
from flfast.state.injection import call_with

MANY = np.arange(20_000)
PHONES = partial(
    called,
    Lognormal,
    speed=75.0,
    speed_spread=0.6,
    down_mbit=6.0,
    up_mbit=2.0,
    bandwidth_spread=1.0,
    fixed=10.0,
    available=0.4,
    hazard=0.0005,
)
TIERS = partial(
    called,
    Tiers,
    shares=[0.25, 0.5, 0.25],
    slowdown=[1.0, 3.0, 10.0],
    speed=100.0,
    down_mbit=8.0,
    up_mbit=None,
    fixed=2.0,
    available=1.0,
    hazard=0.0,
)
TRACE = "client,fixed,per_example,down,available,begins\n3,1,0.1,9,0.5,80000\n70,2,0.2,8,1,0\n"


@pytest.fixture(scope="session")
def models(root, tmp_path_factory):
    """Every device model, by the name of its option, as a run gets it."""
    path = tmp_path_factory.mktemp("trace") / "trace.csv"
    path.write_text(TRACE)
    found = {}
    for file in sorted((root / "conf" / "devices").glob("*.yaml")):
        config = OmegaConf.load(file)
        if OmegaConf.is_missing(config, "path"):
            config.path = str(path)
        found[file.stem] = instantiate(config)
    return found


def rows(devices):
    return np.stack(devices, axis=1)


IDS = st.lists(st.integers(0, 2**31 - 1), max_size=20)


@given(IDS, st.integers(0, 2**40), st.randoms(use_true_random=False))
def test_a_device_is_a_function_of_seed_and_client(models, ids, seed, random):
    """Not of the order in which clients are asked for, nor of who else is."""
    clients = np.array(ids, dtype=np.int64)
    order = random.sample(range(len(ids)), len(ids))
    half = len(ids) // 2
    for model in models.values():
        devices = rows(call_with(model, clients, seed=seed))
        assert devices.dtype == np.float64
        assert devices.shape == (len(ids), 7)
        again = rows(call_with(model, clients[order], seed=seed))
        np.testing.assert_array_equal(again, devices[order])
        parts = [rows(call_with(model, c, seed=seed)) for c in (clients[:half], clients[half:])]
        np.testing.assert_array_equal(np.concatenate(parts), devices)


@given(IDS, st.integers(0, 2**40))
def test_numbers_of_devices_are_in_range(models, ids, seed):
    for model in models.values():
        devices = call_with(model, np.array(ids, dtype=np.int64), seed=seed)
        for seconds in (devices.fixed, devices.per_example, devices.hazard):
            assert (seconds >= 0).all()
            assert np.isfinite(seconds).all()
        assert (devices.down > 0).all()
        assert (devices.up > 0).all()
        assert ((devices.available >= 0.001) & (devices.available <= 1)).all()
        assert ((devices.begins >= 0) & (devices.begins < DAY)).all()


def test_another_seed_has_other_devices(models):
    for name in ("lognormal", "tiers", "from_trace"):
        one, two = (rows(call_with(models[name], MANY, seed=seed)) for seed in (0, 1))
        assert (one != two).any(axis=1).mean() > 0.3, name


def test_a_million_clients_fit_into_little_memory(models):
    """Seven numbers each are 56 MB."""
    clients = np.arange(1_000_000)
    for model in models.values():
        tracemalloc.start()
        call_with(model, clients, seed=0)
        assert tracemalloc.get_traced_memory()[1] < 150e6
        tracemalloc.stop()


def normal(logarithms, *, median, spread):
    return scipy.stats.kstest((logarithms - np.log(median)) / spread, "norm").pvalue


def test_speeds_and_bandwidths_are_lognormal():
    devices = PHONES(MANY, seed=0)
    speeds = -np.log(devices.per_example)
    assert normal(speeds, median=75, spread=0.6) > 0.01
    assert normal(np.log(devices.down), median=750_000, spread=1) > 0.01
    assert normal(np.log(devices.up), median=250_000, spread=1) > 0.01
    correlations = np.corrcoef([speeds, np.log(devices.down), np.log(devices.up), devices.begins])
    # The standard deviation of a correlation of 20,000 independent pairs is 0.007.
    assert np.abs(correlations - np.eye(4)).max() < 0.03


def test_without_a_spread_devices_are_equal():
    devices = PHONES(MANY[:5], speed_spread=0.0, bandwidth_spread=0.0, up_mbit=None, seed=0)
    assert devices.per_example.tolist() == [1 / 75] * 5
    assert devices.down.tolist() == [750_000] * 5
    assert devices.up.tolist() == [np.inf] * 5
    assert devices.fixed.tolist() == [10] * 5
    assert devices.hazard.tolist() == [0.0005] * 5


def test_extreme_options_stay_finite():
    for extreme in (1e-6, 1e12):
        options = dict.fromkeys(("speed", "down_mbit", "up_mbit"), extreme)
        devices = PHONES(MANY, **options, speed_spread=10.0, bandwidth_spread=10.0, seed=0)
        for field in devices:
            assert np.isfinite(field).all()
        assert min(devices.per_example.min(), devices.down.min(), devices.up.min()) > 0


def test_availability_begins_at_any_time_of_the_day():
    devices = PHONES(MANY, seed=0)
    assert scipy.stats.kstest(devices.begins / DAY, "uniform").pvalue > 0.01
    for hour in range(24):
        # Binomial: the standard deviation of the share is 0.0035.
        assert (devices.until(3600.0 * hour) > 0).mean() == pytest.approx(0.4, abs=0.015)


def test_tiers_have_their_shares_and_their_times():
    devices = TIERS(MANY, seed=0)
    for share, slowdown in zip([0.25, 0.5, 0.25], [1, 3, 10], strict=True):
        tier = devices.fixed == 2 * slowdown
        # The standard deviation is at most 0.0035.
        assert tier.mean() == pytest.approx(share, abs=0.015)
        np.testing.assert_allclose(devices.per_example[tier], slowdown / 100)
        np.testing.assert_allclose(devices.down[tier], 1e6 / slowdown)
    assert (devices.up == np.inf).all()


@given(st.lists(st.integers(1, 100), min_size=1, max_size=9))
def test_shares_may_be_rounded(weights):
    shares = [weight / sum(weights) for weight in weights]
    slowdown = [float(tier + 1) for tier in range(len(shares))]
    devices = TIERS(MANY[:100], shares=shares, slowdown=slowdown, seed=0)
    assert set(devices.fixed / 2) <= set(slowdown)


@pytest.mark.parametrize(
    ("shares", "slowdown", "message"),
    [
        ([0.5, 0.5], [1.0], r"shares=\[0.5, 0.5\] devices.slowdown=\[1.0\]: have lengths 2 and 1"),
        ([0.5, 0.4], [1.0, 2.0], r"shares=\[0.5, 0.4\]: sum to 0.9; allowed: .* sum to 1"),
        ([1.0, 1.0], [1.0, 2.0], r"shares=\[1.0, 1.0\]: sum to 2; allowed"),
        ([], [], r"shares=\[\]: sum to 0; allowed"),
    ],
)
def test_lists_that_are_no_tiers_are_refused(shares, slowdown, message):
    with pytest.raises(ValueError, match=message):
        TIERS(MANY, shares=shares, slowdown=slowdown, seed=0)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("devices=lognormal", "devices.available=0"),
        ("devices=lognormal", "devices.available=1.1"),
        ("devices=lognormal", "devices.speed=0"),
        ("devices=lognormal", "devices.speed=1e-300"),
        ("devices=lognormal", "devices.speed_spread=1000"),
        ("devices=lognormal", "devices.down_mbit=0"),
        ("devices=lognormal", "devices.up_mbit=-1"),
        ("devices=lognormal", "devices.fixed=-1"),
        ("devices=lognormal", "devices.hazard=null"),
        ("devices=tiers", "devices.available=0"),
        ("devices=tiers", "devices.shares=[0.0,1.0]"),
        ("devices=tiers", "devices.shares=0.5"),
        ("devices=tiers", "devices.slowdown=[0.5,1.0]"),
        ("devices=from_trace", "devices.path=3"),
        ("work=by_speed", "work.smallest=0"),
        ("work=by_speed", "work.seconds=0"),
        ("work=by_chance", "work.fraction=1.5"),
    ],
)
def test_values_out_of_range_are_refused_before_training(root, option, value):
    group, _, name = option.partition("=")
    config = OmegaConf.load(root / "conf" / group / f"{name}.yaml")
    if OmegaConf.is_missing(config, "path"):
        config.path = "trace.csv"
    assert list(_check_targets(f"{group}.", OmegaConf.to_container(config))) == []
    config.merge_with_dotlist([value.partition(".")[2]])
    (problem,) = _check_targets(f"{group}.", OmegaConf.to_container(config))
    assert problem.startswith(value.partition("=")[0])


def test_every_option_is_in_its_yaml(root):
    """And nothing else is, but what the run knows."""
    for group, known in {
        "devices": {"clients", "seed"},
        "work": {"clients", "round_idx", "seed", "training", "around"},
    }.items():
        for file in (root / "conf" / group).glob("*.yaml"):
            config = OmegaConf.to_container(OmegaConf.load(file))
            options = {name for name in config if not name.startswith("_")}
            parameters = read_signature(config["_target_"]).parameters
            assert options == set(parameters) - known, file
