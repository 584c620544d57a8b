from types import SimpleNamespace

import numpy as np
import pytest
import torch

from flfast.algorithms.contract.algorithm import Algorithm
from flfast.algorithms.contract.client import Finished
from flfast.algorithms.contract.uploads import Part
from flfast.channel.attacks.gaussian import gaussian
from flfast.channel.attacks.sign_flip import sign_flip
from flfast.channel.channel import Channel
from flfast.channel.compression.compression import NO_COMPRESSION
from flfast.channel.compression.quantize import quantize
from flfast.channel.compression.topk import topk
from flfast.channel.faults.fault import Faults
from flfast.channel.faults.simulated import simulated
from flfast.channel.privacy.privacy import Privacy
from flfast.channel.sent import LocalResult, Sender
from flfast.channel.sides import ClientSide, ServerSide
from flfast.engines.delivery import Delivery
from flfast.state.tree import leaves
from flfast.state.vector import learned_norm
from flfast.zoo.channel.attacks.scaled import scaled

UPLOAD = {"params": {"w": torch.tensor([3.0, 4.0]), "b": torch.tensor(0.0)}, "c": torch.ones(2)}


def algorithm_of(upload):
    counts = {"counts": Part(learned=False)} if "counts" in upload else {}
    return Algorithm("test", finish=lambda done, ctx: (upload, {}), parts=counts)


def result_of(client_id):
    context = SimpleNamespace(server={}, client={})
    return LocalResult(client_id, context, Finished({}, 5, 2, {}), 10, 20.0)


def deliver(channel, client_id=3, round_idx=1, upload=UPLOAD):
    """The report of an upload in the simulator, which has attackers and faults."""
    arrived, reports = {}, []
    site = SimpleNamespace(
        algorithm=algorithm_of(upload), residual=lambda k: {}, keep_state=lambda *_: None
    )
    downloads = SimpleNamespace(plan=lambda k, plan: plan, orders={}, exact={})
    reduction = SimpleNamespace(add=lambda k, upload, weight: arrived.update({k: upload}))
    plan = SimpleNamespace(round_idx=round_idx)
    Delivery(site, channel, reduction, downloads, plan, reports.append)([result_of(client_id)])
    return reports[0]._replace(upload=arrived.get(client_id))


def became(report):
    return report.status, report.reason


def faulty(**options):
    return simulated(**{"lost": 0.0, "broken": 0.0, "corruption": "any", **options})


def test_in_peace_an_upload_is_passed_on_as_it_is():
    arrival = deliver(Channel())
    assert arrival.upload is UPLOAD
    assert (*became(arrival), arrival.up_bytes) == ("trained", "", 20)


@pytest.mark.parametrize(
    ("attack", "expected"),
    [
        (sign_flip(fraction=1.0, scale=2.0), ([-6.0, -8.0], 0.0, [-2.0, -2.0])),
        (scaled(fraction=1.0, scale=3.0), ([9.0, 12.0], 0.0, [3.0, 3.0])),
    ],
)
def test_attackers_send_something_else_and_others_do_not(attack, expected):
    channel = Channel(attack=attack, attackers=frozenset({3}))
    sent = deliver(channel).upload
    assert (sent["params"]["w"].tolist(), sent["params"]["b"], sent["c"].tolist()) == expected
    assert deliver(channel, client_id=4).upload is UPLOAD


def test_noise_is_drawn_by_seed_round_and_client():
    def sent(seed=0, **path):
        who = frozenset({3, 4})
        return deliver(Channel(seed=seed, attack=attack, attackers=who), **path).upload

    attack = gaussian(fraction=1.0, std=2.0)
    first = sent()
    torch.testing.assert_close(sent(), first, rtol=0, atol=0)
    for other in (sent(seed=1), sent(round_idx=2), sent(client_id=4)):
        assert not torch.equal(other["params"]["w"], first["params"]["w"])
    assert first["c"].dtype == torch.float32
    drawn = attack.upload(torch.zeros(10_000), np.random.default_rng(0))
    assert abs(float(drawn.std()) - 2) < 0.1


def test_a_long_change_is_scaled_down_to_the_norm():
    long = (9 + 16 + 1 + 1) ** 0.5
    arrival = deliver(Channel(clip_norm=1.0))
    assert became(arrival) == ("trained", "clipped")
    assert learned_norm(arrival.upload, ()) == pytest.approx(1)
    torch.testing.assert_close(arrival.upload["params"]["w"], torch.tensor([3.0, 4.0]) / long)
    assert deliver(Channel(clip_norm=6.0)).upload is UPLOAD


REASONS = {
    "not_finite": ("rejected", "NaN or infinity on arrival"),
    "shape": ("rejected", "leaves of other names or shapes"),
    "huge": ("trained", ""),
}


@pytest.mark.parametrize("kind", REASONS)
def test_broken_uploads_are_rejected_unless_they_only_look_long(kind):
    before = {**UPLOAD["params"], "c": UPLOAD["c"]}
    before = {name: leaf.clone() for name, leaf in before.items()}
    channel = Channel(faults=faulty(broken=1.0, corruption=kind), clip_norm=None)
    for client_id in range(10):
        arrival = deliver(channel, client_id)
        assert became(arrival) == REASONS[kind]
        assert (arrival.upload is None) == (arrival.status == "rejected")
    after = {**UPLOAD["params"], "c": UPLOAD["c"]}
    torch.testing.assert_close(after, before, rtol=0, atol=0)
    if kind == "huge":
        assert learned_norm(arrival.upload, ()) == pytest.approx(1e6 * 27**0.5, rel=1e-4)


def test_every_kind_of_corruption_comes_up_and_lost_uploads_weigh_nothing():
    channel = Channel(faults=faulty(broken=0.5))
    reasons = {became(deliver(channel, k, r)) for k in range(20) for r in (1, 2)}
    assert reasons == set(REASONS.values())
    lost = deliver(Channel(faults=faulty(lost=1.0)))
    assert (*became(lost), lost.up_bytes, lost.upload) == ("lost", "", 0, None)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (torch.nan, "NaN or infinity on arrival"),
        (torch.inf, "NaN or infinity on arrival"),
        (-3.0, "counts out of range"),
        (1e30, "counts out of range"),
    ],
)
def test_counts_that_cannot_be_reject_the_upload(value, reason):
    def miscount(upload, *_):
        return {**upload, "counts": {"steps": torch.tensor(value)}}

    counted = {**UPLOAD, "counts": {"steps": torch.tensor(3.0)}}
    channel = Channel(faults=Faults(transit=miscount))
    arrival = deliver(channel, upload=counted)
    assert (arrival.status, arrival.reason, arrival.upload) == ("rejected", reason, None)


def test_an_overflowing_attack_is_rejected_too():
    attack = scaled(fraction=1.0, scale=1e39)
    for compression in (NO_COMPRESSION, quantize(bits=4, bucket=None, downloads=False)):
        channel = Channel(attack=attack, attackers=frozenset({3}), compression=compression)
        assert became(deliver(channel)) == ("rejected", "NaN or infinity on arrival")


@pytest.mark.parametrize("name", ["none", "topk"])
def test_the_two_sides_make_what_the_simulator_makes_without_attackers_and_faults(name):
    """All that the server knows is in `Sent`; a deployment has the sides on two machines."""
    codec = {"none": NO_COMPRESSION, "topk": topk(share=0.4, feedback=True)}[name]
    privacy = Privacy("test", clip_norm=2.0, local_multiplier=0.1)
    channel = Channel(privacy=privacy, compression=codec, clip_norm=1.5)
    upload = {**UPLOAD, "counts": torch.tensor(7)}
    expected, algorithm = deliver(channel, upload=upload), algorithm_of(upload)
    sender = Sender(3, 1)
    answer = ClientSide(algorithm, channel)(result_of(3), sender, {})
    arrival = ServerSide(algorithm, channel)(sender, answer.sent)
    torch.testing.assert_close(arrival.upload, expected.upload, rtol=0, atol=0)
    assert arrival[:-1] == expected[:-1]
    assert answer.sent[2:] == (5.0, 5, 2, 10, 20.0, True, True, {})
    is_encoded = [leaf.is_meta for leaf in leaves(answer.sent.upload)]
    assert is_encoded == [name == "topk"] * 3 + [False]
    kept = [float(leaf.abs().sum()) > 0 for leaf in leaves(answer.residual)]
    assert any(kept) == (name == "topk")


def test_a_client_that_diverged_sends_no_message_and_keeps_its_state_and_residual():
    upload, residual = {"params": {"w": torch.tensor([torch.nan])}}, {"params": torch.ones(1)}
    channel, sender = Channel(compression=topk(share=0.4, feedback=True)), Sender(3, 1)
    answer = ClientSide(algorithm_of(upload), channel)(result_of(3), sender, residual)
    assert answer.residual is residual
    arrival = ServerSide(algorithm_of(upload), channel)(sender, answer.sent)
    assert (*became(arrival), arrival.up_bytes) == ("rejected", "NaN or infinity", 4)
    assert arrival.upload is None
