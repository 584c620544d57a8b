from benchmarks.building import build_model
from benchmarks.floors import flops_per_example
from benchmarks.workloads import WORKLOADS


def test_flops_of_logistic_regression_are_those_of_its_matrix_products():
    workload = WORKLOADS["W2"]
    training, evaluation = flops_per_example(build_model(workload), workload.shape)
    # Forward 2 * 784 * 10; backward the same once more, as inputs need no gradient.
    assert evaluation == 2 * 784 * 10
    assert training == 2 * evaluation
