"""`devices.png`, and the probabilities in it."""

from dataclasses import dataclass
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from option_classes import called
from sampling import others_slow

from flfast.federation.devices.device import DAY, Devices
from flfast.federation.devices.ideal import ideal
from flfast.federation.devices.lognormal import Lognormal
from flfast.output.callbacks.devices_figure import (
    DevicesFigure,
    draw_devices,
    dropouts,
    nominal_seconds,
)
from flfast.output.callbacks.figures import figure
from flfast.state.randomness import uniforms

PNG = b"\x89PNG"
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
    seed=0,
)


@dataclass
class StandInTiming:
    """A stand-in for a federation's timing."""

    is_ideal: bool
    asked: list

    def devices(self, clients):
        self.asked.append(clients)
        return PHONES(clients)


@pytest.mark.parametrize("num_clients", [10, pytest.param(1000, marks=pytest.mark.slow)])
def test_the_run_folder_has_a_figure_of_the_devices(federation, num_clients):
    run = federation(num_clients=num_clients, num_examples=4 * num_clients)
    run.timing = StandInTiming(is_ideal=False, asked=[])
    DevicesFigure(max_clients=50, dpi=30, formats=["png"]).on_run_start(run)
    assert (run.run_dir / "devices.png").read_bytes().startswith(PNG)
    (clients,) = run.timing.asked
    assert len(clients) == min(num_clients, 50)
    assert clients[[0, -1]].tolist() == [0, num_clients - 1]


def test_ideal_devices_have_no_figure(federation):
    run = federation()
    run.timing = StandInTiming(is_ideal=True, asked=[])
    DevicesFigure(max_clients=50, dpi=30, formats=["png"]).on_run_start(run)
    assert [*run.run_dir.iterdir()] == []
    assert run.timing.asked == []


FEW = [(1, 0.0), (2, 1.0), (3, 0.0), (5, 1.0)]


@pytest.mark.parametrize(("num_clients", "seconds"), others_slow(FEW, FEW[:1]))
def test_few_and_equal_clients_can_be_drawn(tmp_path, num_clients, seconds):
    devices = ideal(np.arange(num_clients), seconds=seconds)
    with figure(tmp_path / "devices.png", size=(11, 3.8), dpi=30, title="ideal") as picture:
        draw_devices(picture, devices)
    assert (tmp_path / "devices.png").read_bytes().startswith(PNG)


def test_a_nominal_round_costs_fixed_training_and_transfers():
    devices = Devices(*np.array([[3.0], [0.1], [500_000.0], [250_000.0], [1.0], [0.0], [0.0]]))
    assert nominal_seconds(devices).tolist() == [3 + 10 + 2 + 4]


@given(st.floats(0.001, 1), st.floats(0, 1e18), st.floats(0, 1e18))
def test_dropouts_are_probabilities(available, hazard, seconds):
    devices = PHONES(np.arange(3), available=available, hazard=hazard)
    leaves, fails = dropouts(devices, np.full(3, seconds))
    assert (leaves >= 0).all()
    assert (fails >= 0).all()
    assert (leaves + fails <= 1 + 1e-9).all()
    if available == 1:
        assert (leaves == 0).all()
    if hazard == 0:
        assert (fails <= 1e-9).all()


@pytest.mark.parametrize("seconds", [600.0, 20_000.0, 60_000.0])
def test_dropouts_are_what_happens(seconds):
    """Of 20,000 clients that begin at random times: the standard deviation is at most 0.0036."""
    devices = PHONES(np.arange(20_000), available=0.4, hazard=3e-5)
    left = 0.4 * DAY * uniforms(0, "beginning", np.arange(20_000))
    lives = -np.log(uniforms(0, "failure", np.arange(20_000))) / 3e-5
    leaves, fails = dropouts(devices, np.full(20_000, seconds))
    left_first = (left < seconds) & (left < lives)
    failed_first = (lives < seconds) & (lives <= left)
    assert leaves[0] == pytest.approx(left_first.mean(), abs=0.015)
    assert fails[0] == pytest.approx(failed_first.mean(), abs=0.015)
