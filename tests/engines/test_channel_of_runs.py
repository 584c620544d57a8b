"""What the channel does to the uploads of whole runs, with codecs and noise of the test's own."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from flfast.algorithms.fedavg import fedavg
from flfast.algorithms.scaffold import scaffold
from flfast.channel.attacks.attack import Attack
from flfast.channel.attacks.sign_flip import sign_flip
from flfast.channel.channel import Channel
from flfast.channel.compression.compression import Compression
from flfast.channel.privacy.adaptive_clipping import AdaptiveClipping
from flfast.channel.privacy.noise_sources import independent_noise
from flfast.channel.privacy.privacy import Privacy
from flfast.state.tree import leaves, tree_map

SIZES = (4, 6, 8)


def encode(change, _):
    return b"".join(leaf.half().numpy().tobytes() for leaf in leaves(change))


def decode(message, like, _):
    flat = torch.from_numpy(np.frombuffer(message, dtype=np.float16).copy())
    parts = iter(flat.split([leaf.numel() for leaf in leaves(like)]))
    return tree_map(lambda leaf: next(parts).view(leaf.shape).to(leaf.dtype), like)


HALF = Compression("half", encode, decode)


OPTIONS = {
    "fedavg": fedavg(weighting="samples"),
    "uniform": fedavg(weighting="uniform"),
    "scaffold": scaffold(
        server_lr=1.0, momentum=0.0, nesterov=False, local_optimizer_state="reset"
    ),
}


@pytest.fixture
def run(make_data, make_federation):
    def run(channel, algorithm="fedavg", *, rounds=3, width=5, **options):
        federation = make_federation(
            make_data(SIZES, features=(width,)),
            algorithm=OPTIONS[algorithm],
            rounds=rounds,
            **options,
        )
        site = federation.engine.site
        federation.engine.site = replace(site, keeps_residuals=channel.compression.feedback)
        federation.engine.channel = channel
        federation.run()
        return federation

    return run


def assert_close(found, expected, **tolerance):
    torch.testing.assert_close(found.weights(), expected.weights(), **tolerance)


def test_attackers_that_agree_on_the_opposite_flip_signs(run):
    flip = sign_flip(fraction=1.0, scale=1.0)
    together = Attack(1.0, collude=lambda changes, num_clients, rng: -changes)
    attackers = frozenset({0, 2})
    expected = run(Channel(attack=flip, attackers=attackers))
    found = run(Channel(attack=together, attackers=attackers))
    assert_close(found, expected, rtol=1e-5, atol=1e-6)
    honest = run(Channel())
    assert not torch.equal(found.weights()["weight"], honest.weights()["weight"])


def test_colluders_know_the_changes_of_all_of_them_and_the_size_of_the_cohort(run):
    seen = []

    def collude(changes, num_clients, _):
        seen.append((tuple(changes.shape), num_clients))
        return changes.flip(0)

    run(Channel(attack=Attack(1.0, collude=collude), attackers=frozenset({0, 2})))
    assert [shape[0] for shape, _ in seen] == [2, 2, 2]
    assert {num for _, num in seen} == {3}


@pytest.mark.parametrize("algorithm", ["fedavg", "scaffold"])
def test_an_encoding_is_what_the_server_gets_and_what_is_counted(run, algorithm):
    plain, found = run(Channel(), algorithm), run(Channel(compression=HALF), algorithm)
    assert found.history[1]["comm/up_bytes"] == plain.history[1]["comm/up_bytes"] // 2
    assert found.history[1]["comm/down_bytes"] == plain.history[1]["comm/down_bytes"]
    assert_close(found, plain, rtol=1e-2, atol=1e-2)
    assert not torch.equal(found.weights()["weight"], plain.weights()["weight"])


@pytest.mark.parametrize("algorithm", ["fedavg", "scaffold"])
def test_clients_keep_what_the_encoding_lost_beside_their_states(run, algorithm):
    nothing = Compression(
        "nothing",
        lambda change, rng: b"",
        lambda message, like, rng: tree_map(torch.zeros_like, like),
        feedback=True,
    )
    once, thrice = (run(Channel(compression=nothing), algorithm, rounds=n) for n in (1, 3))
    assert_close(thrice, run(Channel(), algorithm, lr=1e-30), rtol=0, atol=0)  # nothing arrives
    for client_id in range(len(SIZES)):
        sites = once.engine.site, thrice.engine.site
        one, three = (site.residual(client_id)["params"]["weight"].norm() for site in sites)
        # SCAFFOLD's control variates undo the local steps of later rounds.
        assert (2 if algorithm == "fedavg" else 1) * one < three < 4 * one
    state = thrice.engine.site.client_state(0, thrice.algorithm.broadcast(thrice.server))
    assert state.keys() == ({"control"} if algorithm == "scaffold" else set())


def test_encoded_broadcasts_do_not_round_the_servers_model(run):
    channel = Channel(compression=replace(HALF, downloads=True))
    found, before = run(channel, lr=1e-30), run(Channel(), lr=1e-30)
    assert found.history[1]["comm/down_bytes"] == before.history[1]["comm/down_bytes"] // 2
    assert_close(found, before, rtol=1e-6, atol=1e-7)


def central(**options):
    settings = {
        "clip_norm": 1e6,
        "central_noise": independent_noise,
        "expected_clients": 3.0,
        **options,
    }
    return Channel(privacy=Privacy("central", **settings))


@pytest.mark.parametrize("algorithm", ["fedavg", "scaffold"])
def test_without_noise_and_with_a_wide_bound_privacy_is_a_mean_of_equals(run, algorithm):
    uniform = "uniform" if algorithm == "fedavg" else algorithm
    assert_close(run(central(), algorithm), run(Channel(), uniform), rtol=1e-5, atol=1e-6)


def test_noise_has_the_variance_that_was_asked_for(run):
    """Of the sum, 0.5 * 2; of the mean over four expected clients, a quarter of that."""
    noisy = central(clip_norm=2.0, central_multiplier=0.5, expected_clients=4.0)
    before, found = (
        run(channel, lr=1e-30, rounds=1, width=2000).weights()["weight"]
        for channel in (Channel(), noisy)
    )
    noise = found - before
    assert float(noise.std()) == pytest.approx(0.25, rel=0.03)
    assert abs(float(noise.mean())) < 0.02


@pytest.mark.parametrize(("quantile", "grows"), [(0.0, False), (1.0, True)])
def test_the_clipping_norm_follows_the_quantile(run, quantile, grows):
    adaptive = AdaptiveClipping(quantile, lr=0.5, count_std=1e-6)
    found = run(central(clip_norm=0.05, adaptive=adaptive))
    norms = [row["privacy/clip_norm"] for row in found.history[1:]]
    # All changes are longer than 0.05, so none is within the bound: the share is 0.
    expected = [0.05 * np.exp(0.5 * quantile * n) for n in (1, 2, 3)]
    np.testing.assert_allclose(norms, expected, rtol=1e-3)
    assert (norms[-1] > 0.05) == grows


def test_the_sum_is_divided_by_the_expected_number_of_clients(run):
    start = run(central(), lr=1e-30).weights()["weight"]
    three, six = (run(central(expected_clients=n), rounds=1) for n in (3.0, 6.0))
    torch.testing.assert_close(
        three.weights()["weight"] - start, 2 * (six.weights()["weight"] - start)
    )
