from dataclasses import replace

from benchmarks import floors
from benchmarks.building import build_model, flops_per_example
from benchmarks.workloads import WORKLOADS


def test_flops_of_logistic_regression_are_those_of_its_matrix_products():
    workload = WORKLOADS["W2"]
    training, evaluation = flops_per_example(build_model(workload), workload.shape)
    # Forward 2 * 784 * 10; backward the same once more, as inputs need no gradient.
    assert evaluation == 2 * 784 * 10
    assert training == 2 * evaluation


def test_momentum_doubles_the_bytes_of_a_step(monkeypatch):
    for name, rate in (("copy_rate", 1e9), ("peak_flops", 1e9)):
        monkeypatch.setattr(floors, name, lambda *_, rate=rate: rate)
    plain = floors.floor(WORKLOADS["W2"], "cpu")
    heavy = floors.floor(replace(WORKLOADS["W2"], momentum=0.9), "cpu")
    assert heavy["train_byte_s"] == 2 * plain["train_byte_s"]
    assert heavy["train_flop_s"] == plain["train_flop_s"]
