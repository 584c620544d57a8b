"""Audits of whole runs: what they find, what they refuse, and that they change nothing."""

import logging
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from algorithms_by_name import NAMES, algorithm_of
from hydra import compose, initialize_config_dir
from sampling import others_slow
from torch import nn

from flfast.algorithms.contract.algorithm_capabilities import capabilities_of
from flfast.algorithms.fedavg import fedavg
from flfast.algorithms.kit.keep_local import keep_local
from flfast.algorithms.local import local
from flfast.algorithms.scaffold import scaffold
from flfast.audits.audit import AuditAtEnd, none
from flfast.channel.channel import Channel
from flfast.channel.privacy.noise_sources import independent_noise
from flfast.channel.privacy.privacy import Privacy
from flfast.config.check import check
from flfast.config.errors import ConfigError
from flfast.federation.paces.buffered import buffered
from flfast.output.results.table import read_rows
from flfast.state.store import ClientStates
from flfast.state.weights import read_weights
from flfast.train import CONF
from flfast.zoo.audits.gradient_inversion import gradient_inversion
from flfast.zoo.audits.interception import intercept
from flfast.zoo.audits.membership import example_losses, membership

INVERSION = {"client": 1, "num_images": 1, "labels": "recovered", "total_variation": 0.0}
MEMBERSHIP = {"max_examples": 10_000, "per_client": False}
SCAFFOLD = scaffold(server_lr=1.0, momentum=0.0, nesterov=False, local_optimizer_state="reset")


def inversion(**options):
    return gradient_inversion(**INVERSION | {"iterations": 150} | options)


def images(make_data, **options):
    return make_data((6, 8, 5), features=(1, 4, 4), num_test=9, **options)


def network(*layers, hidden=16):
    torch.manual_seed(1)  # noqa: TID251 - a test's own model
    return nn.Sequential(nn.Flatten(), *layers, nn.Linear(hidden, 3))


def audited(federation, audit):
    """Rows of audit.csv after a run."""
    federation.callbacks = [*federation.callbacks, AuditAtEnd(audit)]
    audit.check(federation)
    federation.run()
    return read_rows(federation.run_dir / "audit.csv")


@pytest.mark.slow
def test_an_overfitted_model_tells_its_training_examples_and_an_untrained_one_does_not(
    make_data, make_federation
):
    """Labels are random, so nothing can be learned but the examples themselves."""
    data = make_data((40, 40, 40), features=(20,), num_test=120)
    labels = torch.randint(
        3, data.examples.targets.shape, generator=torch.Generator().manual_seed(2)
    )
    data.examples.targets.copy_(labels)
    model = network(nn.Linear(20, 128), nn.ReLU(), hidden=128)
    federation = make_federation(data, model, rounds=12, local_epochs=3, lr=0.2)
    untrained = membership(**MEMBERSHIP).measure(replaced_history(federation)).rows[0]
    # Its 95 % interval misses one run in twenty; twice as wide, it misses one in 10,000.
    assert abs(untrained["auc"] - 0.5) <= untrained["auc_high"] - untrained["auc_low"]
    assert untrained["members"] == untrained["others"] == 120
    whole, *clients = audited(federation, membership(**MEMBERSHIP | {"per_client": True}))
    assert float(whole["auc_low"]) > 0.75
    assert float(whole["advantage"]) > 0.4
    assert float(whole["member_loss"]) < float(whole["other_loss"])
    assert [row["client_id"] for row in clients] == ["0", "1", "2"]
    assert sum(int(row["members"]) for row in clients) == 120
    assert (federation.run_dir / "audit.png").stat().st_size > 1000


def replaced_history(federation):
    """The federation as if round 1 had changed nothing."""
    return replace(federation, history=[{"round": 0}, {"round": 1}])


def test_losses_are_those_of_the_model_in_evaluation_mode(make_data, make_federation):
    model = network(nn.Dropout(0.9)).train()
    federation = make_federation(images(make_data), model)
    examples = federation.data.examples
    found = example_losses(federation, np.array([3, 0, 17]))
    assert model.training
    with torch.no_grad():
        logits = model.eval()(examples.inputs[[3, 0, 17]])
    expected = nn.functional.cross_entropy(logits, examples.targets[[3, 0, 17]], reduction="none")
    np.testing.assert_allclose(found, expected.numpy(), rtol=1e-5)


def test_members_are_those_of_clients_that_were_drawn(make_data, make_federation):
    federation = make_federation(images(make_data), network(), sampling={"count": 1})
    [row] = audited(federation, membership(**MEMBERSHIP))
    drawn = federation.cohort(1).clients
    assert len(drawn) == 1
    assert int(row["members"]) == min(len(federation.data.splits["train"].indices_of(drawn[0])), 9)


class Trained:
    """The clients that have trained."""

    def __init__(self):
        self.clients = set()

    def on_client_end(self, federation, report):
        self.clients.add(report.client_id)


def test_members_are_those_of_clients_that_an_asynchronous_pace_has_called(
    make_data, make_federation
):
    pace = partial(buffered, buffer=2, discount="constant", strength=None, patience=None)
    data, trained = make_data([4] * 20, num_test=90), Trained()
    sampling = {"count": 3}
    federation = make_federation(data, rounds=4, sampling=sampling, make_pace=pace)
    federation.callbacks = [trained]
    _, *rows = audited(federation, membership(max_examples=100, per_client=True))
    assert {int(row["client_id"]) for row in rows} == trained.clients
    drawn = set(np.concatenate([federation.cohort(r).clients for r in (1, 2, 3, 4)]).tolist())
    assert drawn != trained.clients  # draws are not rounds


def test_the_server_sees_what_the_client_sends_and_privacy_hides_it(make_data, make_federation):
    """All with the same final model: only the audited upload differs."""

    def psnr(channel):
        federation = make_federation(images(make_data), network())
        federation.callbacks = []
        federation.run()
        federation.engine.channel = channel
        return inversion().measure(federation)

    plain = psnr(Channel())
    [row] = plain.rows
    assert row["psnr_db"] > 30
    assert row["label"] == row["attacked_label"]
    local_noise = Privacy("local", clip_norm=0.1, local_multiplier=0.5)
    hidden = psnr(Channel(privacy=local_noise))
    assert hidden.rows[0]["psnr_db"] < 15
    assert "with the client's noise" in hidden.sentence
    central = Privacy(
        "central",
        clip_norm=0.1,
        central_noise=independent_noise,
        central_multiplier=0.5,
        expected_clients=3,
    )
    trusted = psnr(Channel(privacy=central))
    assert trusted.rows[0]["psnr_db"] > 30  # the noise comes later
    assert "privacy=central trusts the server" in trusted.sentence


@pytest.mark.parametrize("algorithm", others_slow(["fedavg", "scaffold"], ["scaffold"]))
def test_an_audit_changes_nothing_and_can_be_repeated(
    algorithm, make_data, make_federation, caplog
):
    made = {"fedavg": fedavg(weighting="samples"), "scaffold": SCAFFOLD}[algorithm]

    def run(audit):
        federation = make_federation(images(make_data), network(), algorithm=made, rounds=2)
        federation.callbacks = [AuditAtEnd(audit)]
        federation.run()
        return federation

    def states(federation):
        kept = federation.engine.site.states
        return [kept.get(client_id) for client_id in range(3)]

    plain = run(none())
    assert not (plain.run_dir / "audit.csv").exists()
    with caplog.at_level(logging.INFO):
        found = run(inversion(num_images=2))
    assert "audit=gradient_inversion: client 1, 2 examples in one step: PSNR" in caplog.text
    first = (found.run_dir / "audit.csv").read_bytes()
    torch.testing.assert_close(found.weights(), plain.weights(), rtol=0, atol=0)
    torch.testing.assert_close(states(found), states(plain), rtol=0, atol=0)
    found.run()  # a finished run that is resumed
    assert (found.run_dir / "audit.csv").read_bytes() == first
    assert len(found.history) == 3


def test_the_attacked_client_begins_with_its_state(make_data, make_federation):
    """SCAFFOLD's control variates change the step."""
    federation = make_federation(images(make_data), network(), algorithm=SCAFFOLD, rounds=2)
    federation.run()
    examples = federation.data.train_clients.indices_of(1)[:2]
    found = intercept(federation, 1, examples)
    site = federation.engine.site
    federation.engine.site = replace(site, states=ClientStates())
    other = intercept(federation, 1, examples)
    assert not torch.equal(found.change["1.weight"], other.change["1.weight"])


def test_the_upload_is_one_step_on_the_batch(make_data, make_federation):
    federation = make_federation(images(make_data), network(), lr=0.25)
    federation.run()
    chosen = federation.data.train_clients.indices_of(2)[:3]
    found = intercept(federation, 2, chosen)
    model = network()
    model.load_state_dict(federation.weights())
    examples = federation.data.examples
    loss = nn.functional.cross_entropy(model(examples.inputs[chosen]), examples.targets[chosen])
    slopes = torch.autograd.grad(loss, list(model.parameters()))
    for change, slope in zip(found.change.values(), slopes, strict=True):
        torch.testing.assert_close(change, -0.25 * slope, rtol=1e-4, atol=1e-6)


def test_a_failed_run_is_not_audited(make_data, make_federation):
    federation = make_federation(images(make_data), network())
    (federation.run_dir / "audit.csv").write_text("of an earlier end")

    class Fails:
        def on_round_end(self, *args):
            if len(federation.history) > 1:
                raise RuntimeError

    federation.callbacks = [Fails(), AuditAtEnd(membership(**MEMBERSHIP))]
    with pytest.raises(RuntimeError):
        federation.run()
    assert not (federation.run_dir / "audit.csv").exists()


def batch_network():
    return nn.Sequential(nn.BatchNorm2d(1), *network())


@pytest.mark.parametrize(
    ("audit", "options", "said"),
    [
        (inversion(client=3), {}, "of audit.client=3, who trains on 0 examples"),
        (
            inversion(num_images=9),
            {},
            "audit.num_images=9 of audit.client=1, who trains on 8 examples",
        ),
        (inversion(), {"model": batch_network}, "audit.num_images=1 with BatchNorm"),
        (inversion(), {"features": (16,)}, r"inputs of shape \[16\].* allowed: audit=membership"),
        (
            inversion(),
            {"algorithm": lambda w: keep_local(fedavg(weighting="samples"), w)},
            "uploads lack the model's 1.weight",
        ),
        (membership(**MEMBERSHIP), {"num_test": 0}, "allowed: split.test > 0"),
    ],
)
def test_runs_that_cannot_be_attacked_are_refused(
    audit, options, said, make_data, make_federation
):
    features = options.get("features", (1, 4, 4))
    data = make_data((6, 8, 5), features=features, num_test=options.get("num_test", 9))
    model = options.get("model", network)()
    federation = make_federation(data, model, algorithm=options.get("algorithm"))
    with pytest.raises(ValueError, match=said):
        audit.check(federation)


def test_losses_are_those_of_a_server_that_has_a_complete_model():
    initial = read_weights(network())
    found = capabilities_of(local(initial=initial), initial)
    assert membership(**MEMBERSHIP).capabilities.needs & found.breaks.keys() == {"server model"}


@pytest.mark.parametrize("name", NAMES)
def test_every_algorithm_is_audited_or_refused(name, make_data, make_federation):
    model = network(nn.Linear(16, 8), hidden=8)
    algorithm = algorithm_of(name, model)
    data = images(make_data, server_examples=3 if algorithm.server_calls else 0)
    federation = make_federation(data, model, algorithm=algorithm)
    try:
        inversion(num_images=2).check(federation)
    except ValueError as error:
        assert "audit=gradient_inversion with algorithm=" in str(error)


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (("audit=membership", "mode=local_only"), "there is no server, but audit needs"),
        (
            ("audit=gradient_inversion", "mode=centralized"),
            "nothing is sent, but audit",
        ),
        (("audit=gradient_inversion", "secure=masks"), "gets no upload of one client"),
    ],
)
def test_the_config_alone_tells_what_cannot_be_audited(overrides, said):
    with initialize_config_dir(version_base="1.3", config_dir=CONF):
        config = compose("config", ["logger=none", *overrides])
    with pytest.raises(ConfigError, match=said):
        check(config)
