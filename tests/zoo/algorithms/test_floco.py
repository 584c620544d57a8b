"""Floco against its equations in NumPy, its projection, and personal models."""

import numpy as np
import pytest
import torch
from algorithms_by_name import assert_rounds_follow, federation_of, run, server_of
from engine_runs import mlp, ran
from hypothesis import given, settings
from hypothesis import strategies as st
from sampling import others_slow
from tied import generators

from flfast.algorithms.contract import Uploads
from flfast.engines.eager import EagerTraining
from flfast.engines.fused.training import FusedTraining
from flfast.state.plan import Batching
from flfast.state.randomness import torch_generator
from flfast.state.traced_noise import traced_uniform
from flfast.zoo.algorithms.floco import floco, mixture, positions
from flfast.zoo.algorithms.kit.nearest_mixture import nearest_mixture

SIZES, LR, EPOCHS, ROUNDS, TAU, RHO, M = (7, 3, 5), 0.2, 2, 5, 3, 0.3, 3
OPTIONS = {"num_endpoints": M, "tau": TAU, "rho": RHO}
GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def mixed(z):
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def uniforms(key, step, num):
    """SplitMix64's numbers of a key and a step."""
    with np.errstate(over="ignore"):
        start = mixed(np.array([key], np.uint64) + np.uint64(step) * GOLDEN)
        bits = mixed(start + np.arange(1, num + 1, dtype=np.uint64) * GOLDEN)
    return ((bits >> np.uint64(32)).astype(float) + 0.5) / 2**32


def weights_of_step(u, centre):
    """a of a local step; without a centre it is uniform on the simplex."""
    if centre is None:
        waits = -np.log(u[:M])
        return waits / waits.sum()
    side = 2 * u[M : 2 * M] - 1
    return centre + RHO * u[-1] * side / np.abs(side).sum()


def nearest(points, size):
    """The nearest points [..., M] with components >= 0 that add up to `size`, by bisection."""
    low, high = points.min(-1, keepdims=True) - size, points.max(-1, keepdims=True)
    for _ in range(200):
        middle = (low + high) / 2
        above = np.maximum(points - middle, 0).sum(-1, keepdims=True) > size
        low, high = np.where(above, middle, low), np.where(above, high, middle)
    return np.maximum(points - low, 0)


def energy(points):
    pairs = [(i, j) for i in range(len(points)) for j in range(i)]
    return sum(max(np.linalg.norm(points[i] - points[j]), 1e-4) ** -2 for i, j in pairs)


def project(changes):
    """Principal components of changes [n, P] on the simplex that spreads them best."""
    moves = changes - changes.mean(0)
    values, axes = np.linalg.eigh(moves.T @ moves)
    axes = axes[:, np.argsort(values)[::-1][: min(M, len(moves))]]
    axes = axes * np.sign(axes[np.abs(axes).argmax(0), range(axes.shape[1])])
    scores = np.zeros((len(moves), M))
    scores[:, : axes.shape[1]] = moves @ axes
    tried = nearest(scores, np.linspace(1e-4, 1, 1000).reshape(-1, 1, 1))
    return min(tried / tried.sum(-1, keepdims=True), key=energy)


def grinwald(reference, start, cohorts):
    """Floco of Grinwald et al. 2024: (server's weights, endpoints, centres) of every round."""
    w, endpoints, _ = start
    centres, last = {}, {}
    for t, cohort in enumerate(cohorts, start=1):
        done = {}
        for k in cohort:
            key = torch.randint(2**62, (), generator=torch_generator(0, "algorithm: floco", t, k))
            own = {**w, "E": endpoints}
            for step, (x, y) in enumerate(reference.steps(k, t)):
                u = uniforms(int(key), step, 2 * M + 1)
                own = descended(own, x, y, weights_of_step(u, centres.get(k)))
            done[k] = own
            if t < TAU:
                last[k] = (own["E"] - endpoints).flatten().numpy()
        if done:
            mean = reference.mean(done)
            endpoints = mean.pop("E")
            w = {**mean, "2.weight": endpoints.mean(0)}
        if t == TAU - 1:
            centres = dict(
                zip(sorted(last), project(np.stack([last[k] for k in sorted(last)])), strict=True)
            )
        yield w, endpoints, [centres.get(k, np.full(M, 1 / M)) for k in range(len(SIZES))]


def descended(own, x, y, a):
    names = [name for name in own if name != "2.weight"]
    leaves = {name: own[name].detach().requires_grad_() for name in names}
    x, y, a = torch.as_tensor(x), torch.as_tensor(y), torch.as_tensor(a)
    z = torch.tanh(x @ leaves["0.weight"].T + leaves["0.bias"])
    out = z @ torch.tensordot(a, leaves["E"], 1).T + leaves["2.bias"]
    loss = torch.nn.functional.cross_entropy(out, y)
    grads = torch.autograd.grad(loss, list(leaves.values()))
    new = {n: (p - LR * g).detach() for (n, p), g in zip(leaves.items(), grads, strict=True)}
    return {**own, **new}


def outcome(federation):
    server = federation.server
    return server_of(federation), server["endpoints"], list(server["regions"]["centre"])


def made(make_data, make_federation, **options):
    return federation_of(
        *(make_data, make_federation, "floco", mlp().double()),
        sizes=SIZES,
        rounds=ROUNDS,
        local_epochs=EPOCHS,
        lr=LR,
        algorithm=OPTIONS,
        **options,
    )


@pytest.mark.parametrize(
    ("batch_size", "sampling", "engine"),
    [(-1, {}, FusedTraining), (3, {"fraction": 0.7}, EagerTraining)],
)
def test_trajectories_follow_the_paper(make_data, make_federation, batch_size, sampling, engine):
    federation = made(make_data, make_federation, batching=Batching(batch_size), sampling=sampling)
    assert_rounds_follow(federation, outcome, grinwald, engine=engine)


@pytest.mark.parametrize("engine", others_slow([EagerTraining, FusedTraining], [EagerTraining]))
def test_endpoints_may_have_16_bits(make_data, make_federation, engine):
    federation = federation_of(
        *(make_data, make_federation, "floco", mlp().bfloat16()),
        sizes=SIZES,
        rounds=TAU + 1,
        algorithm=OPTIONS,
        trainer={"precision": "bf16-true"},
    )
    ran(federation, engine)
    assert federation.server["regions"]["placed"].all()
    assert federation.server["endpoints"].isfinite().all()


def test_personal_models_have_the_clients_centres(make_data, make_federation):
    federation = made(make_data, make_federation, split=(0.0, 0.4))
    run(federation)
    server = federation.server
    assert server["regions"]["placed"].all()
    assert len(server["regions"]["centre"].unique(dim=0)) == len(SIZES)
    for k in range(len(SIZES)):
        own = federation.engine.personal_weights(server, k)["params"]
        head = torch.tensordot(server["regions"]["centre"][k], server["endpoints"], 1)
        torch.testing.assert_close(own["2.weight"], head)
        torch.testing.assert_close(own["0.weight"], server["params"]["0.weight"])


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 2**32 - 1), st.booleans())
def test_weights_of_a_step_are_in_the_region(seed, placed):
    rng = np.random.default_rng(seed)
    u, centre = torch.from_numpy(rng.uniform(1e-9, 1, 7)), torch.tensor([0.2, 0.5, 0.3]).double()
    a = mixture(u, centre, torch.tensor(placed), 0.4)
    assert float(a.sum()) == pytest.approx(1) or placed
    assert placed or bool((a >= 0).all())
    assert not placed or float((a - centre).abs().sum()) == pytest.approx(0.4 * float(u[-1]))


def test_uniform_numbers_are_those_of_the_hash():
    key, like = torch.tensor(123456789123), torch.zeros((), dtype=torch.float64)
    found = [traced_uniform(key, torch.tensor(t), 50, like) for t in range(20)]
    for t, numbers in enumerate(found):
        np.testing.assert_array_equal(numbers.numpy(), uniforms(123456789123, t, 50))
    everything = torch.cat(found)
    assert abs(float(everything.mean()) - 0.5) < 0.03
    assert len(everything.unique()) == 1000


def test_equal_clients_stand_together_and_others_apart():
    """Two groups of changes. Those that differ by more than the sizes tried are spread, too."""
    rng = np.random.default_rng(0)
    groups = np.repeat(rng.normal(size=(2, 20)), 3, axis=0) + 1e-8 * rng.normal(size=(6, 20))
    found = positions(torch.from_numpy(groups), 4)
    np.testing.assert_allclose(found.sum(1), 1)
    far = torch.cdist(found, found)
    assert far[:3, :3].max() < 0.1 * far[:3, 3:].min()
    sizes = torch.linspace(1e-4, 1, 7, dtype=torch.float64)
    scores = torch.from_numpy(groups - groups.mean(0))[:, :4]
    others = [nearest_mixture(scores / size) for size in sizes]
    assert energy(found.numpy()) <= min(energy(each.numpy()) for each in others)


@settings(max_examples=5)
@given(generators())
def test_rounding_mirrors_no_positions(rng):
    """Changes of the rows of two classes are opposite, so that two loadings are the largest."""
    row = rng.normal(size=(5, 6))
    changes = np.concatenate([row, -row], axis=1)
    other = changes * (1 + 1e-15 * rng.choice([-4, 4], changes.shape))
    found, expected = (positions(torch.from_numpy(each), 3) for each in (other, changes))
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("missed", [None, TAU - 1])
def test_clients_get_regions_once_even_if_no_upload_arrives_before_tau(missed):
    """A round without uploads has no server step."""
    weights = {"params": {"fc.weight": torch.zeros(2, 4), "fc.bias": torch.zeros(2)}}
    initial = weights | {"buffers": {}}
    about = {"head": None, "weighting": "uniform", "initial": initial, "num_clients": 4, "seed": 0}
    algorithm = floco(**OPTIONS, **about)
    server = algorithm.server_state(initial)
    rng = torch_generator(0, "test")
    for number in {1, 2, 3, 4, 5} - {missed}:
        was = server["regions"]
        rows = {"endpoints": torch.randn(4, M, 2, 4, generator=rng)}
        mean = {"params": {"fc.bias": torch.zeros(2)}, "buffers": {}}
        sent = {"rows": rows, "clients": torch.arange(4), "weights": torch.ones(4).double()}
        server = algorithm.server_step(server, Uploads(mean, 4, 4, **sent, round=number))
        assert server["regions"]["placed"].all() == (number >= (TAU if missed else TAU - 1))
        if was["placed"].all():
            assert torch.equal(server["regions"]["centre"], was["centre"])


def test_one_client_and_fewer_clients_than_endpoints_have_positions():
    for num in (1, 2):
        found = positions(torch.randn(num, 9, generator=torch.Generator().manual_seed(0)), 5)
        np.testing.assert_allclose(found.sum(1), 1)
