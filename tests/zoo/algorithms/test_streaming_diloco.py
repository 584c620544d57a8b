"""Streaming DiLoCo against its equations in double precision, and its messages."""

import pytest
import sliced_runs
import torch
from algorithms_by_name import algorithm_of
from sampling import others_slow
from sliced_runs import EPOCHS, LR, WAYS, mlp, population
from torch import nn
from torch.nn import functional as F

import flfast
from flfast.algorithms.contract import Context, Finished
from flfast.output.results.table import read_history
from flfast.state.tree import leaves, tree_map
from flfast.state.weights import read_weights

ROUNDS = 5
MLP = ("model=mlp", "model.hidden=[6]", f"rounds={ROUNDS}")
STREAMING = (*MLP, "algorithm=streaming_diloco", "algorithm.weighting=uniform")
# Tensors by size, the largest ones first, each to the smallest fragment: 30, 18, 6 and 3 numbers.
FRAGMENTS = {
    1: [["fc1.weight", "fc.weight", "fc1.bias", "fc.bias"]],
    2: [["fc1.weight"], ["fc.weight", "fc1.bias", "fc.bias"]],
    3: [["fc1.weight"], ["fc.weight"], ["fc1.bias", "fc.bias"]],
}


def equations(v, fragments, alpha):
    """Algorithm 2 without overlap; local steps have momentum 0.9, outer ones Nesterov's."""
    x, y, owner = population()
    velocity = {n: torch.zeros_like(leaf) for n, leaf in v.items()}
    workers = [
        {"w": dict(v), "since": dict(v), "m": {n: torch.zeros_like(leaf) for n, leaf in v.items()}}
        for _ in range(4)
    ]
    for t in range(1, ROUNDS + 1):
        synchronised = fragments[(t - 1) % len(fragments)]
        for k, own in enumerate(workers):
            for _ in range(EPOCHS):
                point = {n: leaf.clone().requires_grad_() for n, leaf in own["w"].items()}
                loss = F.cross_entropy(mlp(point, x[owner == k]), y[owner == k])
                grads = torch.autograd.grad(loss, list(point.values()))
                for n, grad in zip(point, grads, strict=True):
                    own["m"][n] = 0.9 * own["m"][n] + grad
                    own["w"][n] = own["w"][n] - LR * own["m"][n]
        v = dict(v)
        for n in synchronised:
            outer = sum(own["since"][n] - own["w"][n] for own in workers) / 4
            velocity[n] = 0.9 * velocity[n] + outer
            v[n] = v[n] - 0.7 * (outer + 0.9 * velocity[n])
            for own in workers:
                own["w"][n] = alpha * own["w"][n] + (1 - alpha) * v[n]
                own["since"][n] = own["w"][n]
    return v


CASES = [(*case, way) for case in ((3, 0.5), (2, 0.0)) for way in WAYS]


@pytest.mark.parametrize(("num", "alpha", "way"), others_slow(CASES, [(3, 0.5, "eager")]))
def test_fragments_follow_the_equations(tmp_path, num, alpha, way):
    words = (*STREAMING, f"algorithm.fragments={num}", f"algorithm.alpha={alpha}")
    words = (*words, "optimizer.momentum=0.9")
    start = sliced_runs.initial(tmp_path / "initial", *words)
    expected = equations(start, FRAGMENTS[num], alpha)
    found = sliced_runs.run(tmp_path / "run", *words, *WAYS[way])
    torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-8)
    # Only a fragment is sent, each way: that of this round up, that of the last round down.
    sizes = [8 * sum(start[n].numel() for n in names) for names in FRAGMENTS[num]]
    rows = read_history(tmp_path / "run" / "metrics.csv")[1:]
    up = [float(row["comm/up_bytes"]) / 4 for row in rows]
    down = [float(row["comm/down_bytes"]) / 4 for row in rows]
    assert up == [sizes[(t - 1) % num] for t in range(1, ROUNDS + 1)]
    assert down == [sizes[(t - 2) % num] for t in range(1, ROUNDS + 1)]


@pytest.mark.slow
def test_one_fragment_is_diloco_and_a_stopped_run_goes_on(tmp_path):
    words = ("optimizer=adamw", "checkpoint.every=1")
    one = sliced_runs.run(tmp_path / "one", *STREAMING, *words, "algorithm.fragments=1")
    key = "algorithm.server_optimizer"
    outer = (f"{key}._target_=torch.optim.SGD", f"{key}.lr=0.7", f"+{key}.momentum=0.9")
    diloco = ("algorithm=fedopt", "algorithm.weighting=uniform", "local_optimizer_state=keep")
    options = (*outer, f"+{key}.nesterov=true", *words)
    whole = sliced_runs.run(tmp_path / "diloco", *MLP, *diloco, *options)
    torch.testing.assert_close(one, whole, rtol=1e-10, atol=1e-10)
    mixed = (*STREAMING, *words, "algorithm.fragments=3", "algorithm.alpha=0.5")
    whole = sliced_runs.run(tmp_path / "whole", *mixed)
    sliced_runs.run(tmp_path / "run", *mixed, "rounds=3")
    found = sliced_runs.run(tmp_path / "run", *mixed, "resume=auto")
    torch.testing.assert_close(found, whole, rtol=0, atol=0)


def test_a_client_that_misses_rounds_uploads_its_progress_once():
    """It trains in rounds 1, 3, 5 and 7, which send one fragment, and never gets it back."""
    model = nn.Linear(3, 2).double()
    algorithm = algorithm_of("streaming_diloco", model)
    broadcast = algorithm.broadcast(algorithm.server_state(read_weights(model)))
    client = algorithm.client_state(broadcast)
    for _ in range(4):
        start = algorithm.start(broadcast, client)
        context = Context(broadcast, client, start, None, None)
        trained = tree_map(lambda leaf: leaf + 1, start)
        upload, client = algorithm.finish(Finished(trained, 1, 1, {}), context)
        for leaf in leaves(upload):
            torch.testing.assert_close(leaf, torch.ones_like(leaf))


def test_every_fragment_has_a_parameter():
    """Otherwise the outer optimizer of a fragment of buffers would have nothing to move."""
    model = nn.Sequential(nn.Linear(5, 3), nn.BatchNorm1d(3))
    found = algorithm_of("streaming_diloco", model, fragments=4)
    server = found.server_state(read_weights(model))
    assert all(call.broadcast(server)["params"] for call in (found, *found.calls))


def test_more_fragments_than_parameters_are_refused(tmp_path):
    match = r"fragments=5: the model has 4 parameter tensors; allowed"
    with pytest.raises(flfast.ConfigError, match=match):
        sliced_runs.run(tmp_path / "run", *STREAMING, "algorithm.fragments=5")
