from dataclasses import asdict, replace

import pytest
import torch
from torch.nn import functional as F

from benchmarks.building import build_model, load_examples
from benchmarks.plain import PlainLoop, dealt, run, run_processes
from benchmarks.population import load
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


COLOUR = replace(
    TINY,
    model="lenet",
    shape=(3, 32, 32),
    train_sizes=12,
    test_sizes=5,
    batch_size=5,
    images=True,
    momentum=0.9,
    weight_decay=0.1,
)


def make(workload, **options):
    return PlainLoop(workload, load(workload, "cpu", **options))


def loss_of(params, inputs, targets):
    weight, bias = params
    return F.cross_entropy(inputs @ weight.T + bias, targets)


def test_full_batches_of_all_clients_are_one_step_of_gradient_descent():
    loop = make(replace(TINY, batch_size=-1))
    start = [p.clone().requires_grad_() for p in loop.server]
    examples = load_examples(TINY)
    inputs, targets = examples.inputs[:40], examples.targets[:40]
    grads = torch.autograd.grad(loss_of(start, inputs, targets), start)
    loop.train(1)
    for p, old, grad in zip(loop.server, start, grads, strict=True):
        torch.testing.assert_close(p, old - 0.1 * grad)
    assert (loop.steps, loop.samples) == (3, 40)


def test_micro_batches_give_the_same_numbers():
    whole = make(replace(TINY, batch_size=-1))
    cut = make(replace(TINY, batch_size=-1, micro_batch=4))
    whole.train(1)
    cut.train(1)
    torch.testing.assert_close(whole.server, cut.server)


def test_it_does_the_work_that_the_workload_says():
    for last_batch in ("keep", "drop"):
        workload = replace(TINY, last_batch=last_batch, local_epochs=2)
        loop = make(workload)
        loop.train(1)
        assert (loop.steps, loop.samples) == (workload.steps, workload.samples)


def test_it_evaluates_the_servers_model_on_all_test_examples():
    loop = make(TINY)
    loop.evaluate()
    examples = load_examples(TINY)
    expected = loss_of(loop.server, examples.inputs[40:], examples.targets[40:])
    assert abs(loop.loss - float(expected)) < 1e-5
    assert loop.accuracy in {n / 5 for n in range(6)}


def test_workloads_travel_as_json(tmp_path):
    import json

    from benchmarks.building import read_workload

    path = tmp_path / "workload.json"
    path.write_text(json.dumps(asdict(TINY)))
    assert read_workload(path) == TINY


def test_momentum_and_weight_decay_are_torchs_and_begin_anew_with_every_client():
    workload = replace(COLOUR, batch_size=-1, local_epochs=2)
    loop, data = make(workload), load(workload, "cpu")
    trained = []
    for client_id in range(3):
        model = build_model(workload)
        with torch.no_grad():
            for own, start in zip(model.parameters(), loop.server, strict=True):
                own.copy_(start)
        options = {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.1}
        optimizer = torch.optim.SGD(model.parameters(), **options)
        inputs, targets = data.client(client_id)
        for _ in range(2):
            optimizer.zero_grad()
            F.cross_entropy(model(inputs), targets).backward()
            optimizer.step()
        trained.append([p.detach() for p in model.parameters()])
    loop.train(1)
    expected = [torch.stack(leaves).mean(dim=0) for leaves in zip(*trained, strict=True)]
    torch.testing.assert_close(loop.server, expected)


@pytest.mark.parametrize("shape", [(1, 32, 32), (3, 32, 32)])
def test_the_layout_changes_no_number(shape):
    workload = replace(COLOUR, shape=shape, images=False, batch_size=-1)
    results = {}
    for last in (False, True):
        loop = make(workload, channels_last=last)
        loop.train(1)
        loop.evaluate()
        results[last] = (loop.server, loop.loss)
        # Of one channel, too, torch has to be told by the strides.
        assert (loop.data.inputs.stride(1) == 1) == last
        assert (loop.params[0].stride(1) == 1) == last
    torch.testing.assert_close(results[False], results[True])


def test_two_processes_compute_what_one_does():
    workload = replace(TINY, batch_size=-1, local_epochs=2)
    data = load(workload, "cpu")
    alone = run(PlainLoop(workload, data), rounds=2)
    both = run_processes(workload, data, world_size=2, rounds=2, threads=1)
    assert (both["steps"], both["samples"]) == (alone["steps"], alone["samples"]) == (6, 80)
    assert both["loss"] == pytest.approx(alone["loss"], rel=1e-5)
    assert both["accuracy"] == pytest.approx(alone["accuracy"])


def test_the_longest_client_goes_first_to_the_process_with_least():
    assert dealt({4: 5, 7: 9, 1: 3, 2: 2}, 2) == [[7], [4, 1, 2]]
    assert dealt({4: 5}, 2) == [[4], []]


def test_images_are_read_as_flfast_reads_them():
    examples, data = load_examples(COLOUR), load(COLOUR, "cpu")
    own = [n for n in range(36) if n % 3 == 1]
    expected = examples.transform(examples.inputs[own], dtype=torch.float32)
    torch.testing.assert_close(data.client(1)[0], expected)
    x, _ = data.test[0]
    expected = examples.transform(examples.inputs[36:], dtype=torch.float32)
    torch.testing.assert_close(x, expected)


def test_augmented_images_are_cut_from_padded_ones_and_half_of_them_mirrored():
    data = load(replace(COLOUR, augmented=True), "cpu")
    image = torch.arange(1, 193, dtype=torch.uint8).view(1, 3, 8, 8)
    padded = torch.nn.functional.pad(image, [4] * 4)[0]
    cuts = [padded[:, r : r + 8, c : c + 8] for r in range(9) for c in range(9)]
    allowed = {tuple(cut.flatten().tolist()): False for cut in cuts}
    allowed |= {tuple(cut.flip(-1).flatten().tolist()): True for cut in cuts}
    made = data.pixels.augmented(image.expand(2000, -1, -1, -1))
    found = [tuple(one.flatten().tolist()) for one in made]
    assert set(found) <= set(allowed)
    assert len(set(found)) > 150  # of 162
    assert 900 < sum(allowed[one] for one in found) < 1100


def test_an_augmented_round_does_the_same_work():
    loop = make(replace(COLOUR, augmented=True, local_epochs=3), channels_last=True)
    assert loop.data.inputs.dtype == torch.uint8
    loop.train(1)
    assert (loop.steps, loop.samples) == (3 * 3 * 3, 3 * 36)
    loop.evaluate()
    assert 0 < loop.loss < 10


def test_clients_trained_one_by_one_average_to_a_round():
    workload = replace(TINY, batch_size=-1)
    whole, single = make(workload), make(workload)
    start = [value.clone() for value in single.server]
    mean = [torch.zeros_like(value) for value in start]
    used = 0
    for client_id in range(3):
        num = single.train_from(start, client_id)
        used += num
        for total, value in zip(mean, single.params, strict=True):
            total += num * value.detach()
    whole.train(1)
    assert used == 40
    for total, value in zip(mean, whole.server, strict=True):
        torch.testing.assert_close(total / used, value)
