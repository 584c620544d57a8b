from pathlib import Path

import pytest
from torch import nn

from benchmarks.building import build_model
from benchmarks.workloads import USUAL, WORKLOADS, find

NOWHERE = Path("nowhere")


def test_w1_has_pfllibs_numbers():
    w1 = WORKLOADS["W1"]
    assert (w1.num_train, w1.num_test) == (52_492, 17_508)
    # Whole batches of ten of every client, as PFLlib drops the rest of an epoch.
    assert w1.steps == sum(n // 10 for n in w1.train_sizes)
    assert w1.samples == 10 * w1.steps


def test_a_full_batch_is_a_step_a_client():
    w1b = WORKLOADS["W1b"]
    assert (w1b.steps, w1b.samples) == (20, 52_492)


def test_epochs_and_cohort_multiply_the_work():
    w4 = WORKLOADS["W4"]
    assert (w4.steps, w4.samples) == (5 * 10 * 60, 5 * 10 * 600)
    assert w4.num_train == 60_000


def test_a_population_ten_times_as_large_has_the_same_work():
    small, large = WORKLOADS["W5"], WORKLOADS["W5m"]
    assert large.num_clients == 10 * small.num_clients
    assert (large.steps, large.samples, large.num_test) == (100, 200, small.num_test)


def test_w6_has_cifar10s_sizes():
    w6, augmented = WORKLOADS["W6"], WORKLOADS["W6a"]
    assert (w6.num_train, w6.num_test, w6.shape) == (50_000, 10_000, (3, 32, 32))
    # 78 steps of 64 and one of 8, three times, of ten clients.
    assert (w6.steps, w6.samples) == (3 * 10 * 79, 3 * 50_000)
    assert w6.data_bytes == 60_000 * (3072 + 8)
    assert (augmented.steps, augmented.samples) == (w6.steps, w6.samples)
    assert "data.random_crop=4" in augmented.flfast_overrides(device="cpu", rounds=1)
    assert not any("crop" in word for word in w6.flfast_overrides(device="cpu", rounds=1))


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_quick_workload_is_small_and_whole(name):
    quick = find(name, pfllib=NOWHERE, quick=True)
    assert 0 < quick.steps <= WORKLOADS[name].steps
    assert 1 <= quick.cohort <= quick.num_clients <= WORKLOADS[name].num_clients
    assert quick.num_test > 0


def test_a_model_convolves_where_its_module_does():
    for workload in WORKLOADS.values():
        layers = build_model(workload).modules()
        assert workload.convolves == any(isinstance(layer, nn.Conv2d) for layer in layers)


def test_comparisons_within_flfast_run_when_asked_for():
    assert set(WORKLOADS) - set(USUAL) == {"strategies", "algorithms"}
    assert {"W3c", "W6", "W6a"} <= set(USUAL)


def test_pfllibs_data_are_used_where_they_are(tmp_path):
    assert find("W1", pfllib=tmp_path, quick=False).root is None
    (tmp_path / "train").mkdir()
    assert find("W1", pfllib=tmp_path, quick=False).root == str(tmp_path)
    assert find("W3", pfllib=tmp_path, quick=False).root is None
