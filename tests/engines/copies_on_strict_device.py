"""A round stays on the device: what the host reads of it, and that the numbers are the host's.

`test_strict_device.py` runs this file, with the plugin `strict_device`.
"""

from dataclasses import replace
from functools import partial

import pytest
import torch
from engine_runs import engine_of, mlp, with_batchnorm
from strict_device import DEVICE, CopiesByRound

from flfast.algorithms.fedavg import fedavg
from flfast.algorithms.scaffold import scaffold
from flfast.channel.aggregations.geometric_median import geometric_median
from flfast.channel.aggregations.krum import multi_krum
from flfast.channel.aggregations.median import median
from flfast.channel.aggregations.trimmed_mean import trimmed_mean
from flfast.channel.channel import Channel
from flfast.channel.privacy.central import independent_noise
from flfast.channel.privacy.privacy import Privacy
from flfast.engines import delivery
from flfast.engines.fused.training import FusedTraining
from flfast.zoo.channel.aggregations.bulyan import bulyan
from flfast.zoo.channel.aggregations.centered_clipping import centered_clipping
from flfast.zoo.channel.aggregations.foolsgold import foolsgold
from flfast.zoo.channel.aggregations.sign_majority import sign_majority

SIZES = [8, 6, 4, 12, 6, 4, 10]
FEDAVG = fedavg(weighting="samples")
CENTRAL = Privacy("central", 0.1, central_noise=independent_noise, expected_clients=7.0)
CHANNELS = {
    "mean": Channel(),
    "clip": Channel(clip_norm=0.2),
    "privacy": Channel(privacy=CENTRAL),
    "median": Channel(aggregation=median()),
    "trimmed_mean": Channel(aggregation=trimmed_mean(trim=0.2), clip_norm=0.2),
    "geometric_median": Channel(aggregation=geometric_median(iterations=3, eps=1e-6)),
    "multi_krum": Channel(aggregation=multi_krum(num_byzantine=1, num_selected=3)),
    "bulyan": Channel(aggregation=bulyan(num_byzantine=1)),
    "centered_clipping": Channel(aggregation=centered_clipping(radius=0.1, iterations=2)),
    "foolsgold": Channel(aggregation=foolsgold(confidence=1.0)),
    "sign_majority": Channel(aggregation=sign_majority(step=0.01)),
}
READ_OF_A_ROUND = {
    "engines/delivery.py:_report_waiting": "losses, and which uploads arrived or were clipped",
    "channel/reduction.py:combine": "the mean",
    "channel/row_reduction.py:combine": "what a rule made of the rows",
    "lit/predictions.py:collect": "predictions of a pass",
}
"""Which functions read something of the device, and what."""


@pytest.fixture
def run(make_data, make_federation):
    """Run two rounds; returns the federation, and its copies to the host."""

    def run(channel=None, *, stack=7, model=mlp, algorithm=FEDAVG, diverges=False):
        copies, data = CopiesByRound(), make_data(SIZES, num_test=9)
        if diverges:
            data.examples.inputs[data.train_clients.indices_of(4)] = torch.inf
        options = {"optimizer": partial(torch.optim.SGD, momentum=0.9), "callbacks": [copies]}
        federation = make_federation(data, model(), algorithm=algorithm, rounds=2, **options)
        federation.engine = engine_of(federation, FusedTraining, stack=stack)
        federation.engine.channel = channel or Channel()
        federation.run()
        return federation, copies

    return run


def ours(copies):
    """The functions that read, as far as we know what they read; else the innermost of ours."""
    readers = [[name for name in copy.callers if name in READ_OF_A_ROUND] for copy in copies]
    return [(known or copy.callers)[0] for known, copy in zip(readers, copies, strict=True)]


@pytest.mark.parametrize("stack", [1, 3, 7])
@pytest.mark.parametrize("model", [mlp, with_batchnorm])
@pytest.mark.parametrize("name", ["mean", "clip", "privacy", "median", "trimmed_mean"])
def test_a_round_is_read_three_times(run, name, model, stack):
    """Once its losses, once the sum, once the predictions."""
    _, copies = run(CHANNELS[name], model=model, stack=stack)
    combined = "channel/reduction.py:combine"
    if CHANNELS[name].aggregation.combine is not None:
        combined = "channel/row_reduction.py:combine"
    assert ours(copies.trained[-1]) == ["engines/delivery.py:_report_waiting", combined]
    assert ours(copies.evaluated[-1]) == ["lit/predictions.py:collect"]


@pytest.mark.parametrize("diverges", [False, True])
@pytest.mark.parametrize("name", CHANNELS)
def test_the_device_gives_the_numbers_of_the_host(run, monkeypatch, name, diverges):
    there, _ = run(CHANNELS[name], diverges=diverges)
    monkeypatch.setattr(Channel, "only_clips", False)
    here, copies = run(CHANNELS[name], diverges=diverges)
    assert "engines/stack_uploads.py:known" not in {
        n for c in copies.trained[-1] for n in c.callers
    }
    exact = {"rtol": 0, "atol": 0} if name == "mean" else {"rtol": 1e-6, "atol": 1e-7}
    torch.testing.assert_close(there.server, here.server, **exact)
    assert [*map(known, there.history)] == [*map(known, here.history)]
    assert there.history[-1]["cohort/rejected"] >= diverges


def known(row):
    """What a round says of its clients."""
    wanted = "cohort/", "comm/", "train/loss"
    return {name: value for name, value in row.items() if name.startswith(wanted)}


@pytest.mark.parametrize("seconds", [0.0, 9.0])
def test_reports_come_within_a_round_if_it_takes_long(run, monkeypatch, seconds):
    monkeypatch.setattr(delivery, "WAIT_SECONDS", seconds)
    _, copies = run(stack=1)
    assert len(copies.trained[-1]) == (1 + len(SIZES) if not seconds else 2)


def test_what_clients_keep_is_read_once_for_a_stack(run):
    """SCAFFOLD's `finish` runs on the host. Nobody reads the momentum of local training."""
    federation, copies = run(
        algorithm=scaffold(
            server_lr=1.0, momentum=0.0, nesterov=False, local_optimizer_state="reset"
        )
    )
    read = [copy for copy in copies.trained[-1] if "to_host" in copy.callers[0]]
    params = sum(p.numel() for p in federation.engine.site.model.parameters())
    assert [copy.num_bytes for copy in read] == [4 * len(SIZES) * (params + 1)]


def test_rows_that_do_not_fit_are_on_the_host(run, monkeypatch):
    expected, _ = run(CHANNELS["median"])
    monkeypatch.setattr("flfast.channel.row_reduction.has_room", lambda *_: False)
    found, _ = run(CHANNELS["median"])
    torch.testing.assert_close(found.server, expected.server)


def test_evaluation_reads_the_examples_that_training_put_on_the_device(run, monkeypatch):
    federation, _ = run()
    data = federation.engine.site.data
    monkeypatch.setattr(data, "_fetch_eval", None)
    assert data.stored.on_device(DEVICE)[0].device == DEVICE
    before = federation.history[-1]["global/loss"]
    metrics = federation.engine.evaluate(federation.server, federation.plans(2, []))
    assert float(metrics["global"].values["loss"][0]) == before


def test_an_algorithm_that_finishes_itself_is_not_added_on_the_device(run):
    own = replace(FEDAVG, finish=lambda done, ctx: (ctx.change(done.weights), {}))
    expected, _ = run()
    found, _ = run(algorithm=own)
    torch.testing.assert_close(found.server, expected.server, rtol=0, atol=0)
