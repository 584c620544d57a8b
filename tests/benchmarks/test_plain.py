from dataclasses import asdict, replace

import torch
from torch.nn import functional as F

from benchmarks.building import build_model, load_examples
from benchmarks.plain import PlainLoop
from benchmarks.workload import Workload

TINY = Workload(
    "tiny",
    "three clients",
    model="logistic",
    train_sizes=(5, 12, 23),
    test_sizes=(2, 0, 3),
    lr=0.1,
    rounds=1,
    shape=(4,),
    num_clients=3,
    cohort=3,
)


def loss_of(params, inputs, targets):
    weight, bias = params
    return F.cross_entropy(inputs @ weight.T + bias, targets)


def test_full_batches_of_all_clients_are_one_step_of_gradient_descent():
    loop = PlainLoop(replace(TINY, batch_size=-1), "cpu")
    start = [p.clone().requires_grad_() for p in loop.server]
    examples = load_examples(TINY)
    inputs, targets = examples.inputs[:40], examples.targets[:40]
    grads = torch.autograd.grad(loss_of(start, inputs, targets), start)
    loop.train(1)
    for p, old, grad in zip(loop.server, start, grads, strict=True):
        torch.testing.assert_close(p, old - 0.1 * grad)
    assert (loop.steps, loop.samples) == (3, 40)


def test_micro_batches_give_the_same_numbers():
    whole = PlainLoop(replace(TINY, batch_size=-1), "cpu")
    cut = PlainLoop(replace(TINY, batch_size=-1, micro_batch=4), "cpu")
    whole.train(1)
    cut.train(1)
    torch.testing.assert_close(whole.server, cut.server)


def test_it_does_the_work_that_the_workload_says():
    for last_batch in ("keep", "drop"):
        workload = replace(TINY, last_batch=last_batch, local_epochs=2)
        loop = PlainLoop(workload, "cpu")
        loop.train(1)
        assert (loop.steps, loop.samples) == (workload.steps, workload.samples)


def test_it_evaluates_the_servers_model_on_all_test_examples():
    loop = PlainLoop(TINY, "cpu")
    loop.evaluate()
    examples = load_examples(TINY)
    expected = loss_of(loop.server, examples.inputs[40:], examples.targets[40:])
    assert abs(loop.loss - float(expected)) < 1e-5
    assert loop.accuracy in {n / 5 for n in range(6)}


def test_pfl_researchs_cnn_has_its_published_sizes():
    model = build_model(replace(TINY, model="pfl_cnn", shape=(3, 32, 32)))
    # 896 + 18,496 in the convolutions, 12,544 * 128 + 128 and 1,290 in the linear layers.
    assert sum(p.numel() for p in model.parameters()) == 896 + 18_496 + 1_605_760 + 1_290
    assert model(torch.zeros(2, 3, 32, 32)).shape == (2, 10)


def test_workloads_travel_as_json(tmp_path):
    import json

    from benchmarks.building import read_workload

    path = tmp_path / "workload.json"
    path.write_text(json.dumps(asdict(TINY)))
    assert read_workload(path) == TINY
