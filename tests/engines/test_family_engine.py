"""Families: a client with a model of its own trains as if all clients had this model."""

import json

import pytest
import torch
from composing import FILES
from sampling import others_slow

import flfast
from flfast.config.errors import ConfigError
from flfast.evaluate import evaluate
from flfast.output.results.table import read_history, read_rounds, read_rows

SMALL = (
    *(*FILES, "partition.num_clients=4", "partition.alpha=1.0", "rounds=2"),
    *("local_epochs=1", "sampler.fraction=1.0", "strategy=single", "batch_size=50"),
)
OF = "model.of=[{mlp: {hidden: [8]}}, logistic]"
FAMILY = ("model=family", OF, "model.feature_dim=null")
SAME = ("model=family", OF.replace("logistic", "{mlp: {hidden: [12]}}"), "model.feature_dim=8")


def personal(folder):
    return [torch.load(folder / "personal" / f"{k}.pt", weights_only=True) for k in range(4)]


def trained(folder, *words):
    flfast.run(*SMALL, *words, folder=folder)
    return personal(folder)


def assert_close(found, expected, **tolerance):
    for k, (own, other) in enumerate(zip(found, expected, strict=True)):
        assert own.keys() == other.keys(), k
        for name in own:
            torch.testing.assert_close(own[name], other[name], **tolerance)


@pytest.mark.parametrize("engine", others_slow(["eager", "fused"], ["eager"]))
def test_each_client_trains_as_in_a_run_of_its_model(tmp_path, engine):
    words = ("algorithm=local", f"engine={engine}")
    found = trained(tmp_path / "family", *words, *FAMILY)
    for place, model in enumerate((("model=mlp", "model.hidden=[8]"), ("model=logistic",))):
        alone = trained(tmp_path / model[0], *words, *model)
        exact = {"rtol": 0, "atol": 0} if engine == "eager" else {"rtol": 1e-5, "atol": 1e-6}
        assert_close(found[place::2], alone[place::2], **exact)


@pytest.mark.slow
def test_batches_of_one_are_left_out_where_the_model_has_batchnorm(tmp_path):
    """Of each member by itself: many of these clients have an odd number of examples."""
    convolutions = "{heterofl_cnn: {channels: [2, 3]}}"
    words = ("algorithm=local", "engine=eager", "batch_size=2", "split.server_examples=1100")
    words = (*words, "rounds=1")
    family = ("model=family", f"model.of=[logistic, {convolutions}]", "model.feature_dim=null")
    found = trained(tmp_path / "family", *words, *family)
    cnn = ("model=heterofl_cnn", "model.channels=[2,3]")
    for place, model in enumerate((("model=logistic",), cnn)):
        alone = trained(tmp_path / model[0], *words, *model)
        assert_close(found[place::2], alone[place::2], rtol=0, atol=0)


OTHERS = (
    *(("fd",), ("fedgh",), ("fedgen", "algorithm.share=head", "algorithm.server_steps=10")),
    ("fedmrl", "model.common={mlp: {hidden: [6]}}"),
    ("fedmd", "split.server_examples=40", "algorithm.subset=30"),
    ("feddf", "split.server_examples=40", "algorithm.server_steps=10"),
)


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [("fedproto",), *OTHERS],
    ids=lambda own: own[0],
)
def test_engines_and_ranks_have_one_result(tmp_path, words):
    words = (*SAME, f"algorithm={words[0]}", *words[1:], "rounds=3")
    expected = trained(tmp_path / "eager", *words, "engine=eager")
    for name, way in (
        ("fused", ("engine=fused",)),
        ("ranks", ("engine=eager", "strategy=ddp", "trainer.devices=2")),
    ):
        found = trained(tmp_path / name, *words, *way)
        assert_close(found, expected, rtol=1e-4, atol=1e-5)
        rows, others = (
            read_history(tmp_path / run / "metrics.csv")[-1] for run in (name, "eager")
        )
        accuracy, other = (float(row["personal/accuracy"]) for row in (rows, others))
        assert accuracy == pytest.approx(other, abs=0.01)
        assert rows["comm/up_bytes"] == others["comm/up_bytes"]
        for column in ("comm/up_bytes", "cohort/clients"):
            members = [float(rows[f"{column}_{member}"]) for member in ("mlp", "mlp-2")]
            assert sum(members) == float(others[column])
        assert min(float(rows[f"time/train_s_{member}"]) for member in ("mlp", "mlp-2")) > 0


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(("algorithm=fedproto", "finetune_epochs=1"), marks=pytest.mark.slow),
        ("algorithm=feddf", "split.server_examples=40", "algorithm.server_steps=5"),
    ],
    ids=["finetuned", "feddf"],
)
@pytest.mark.slow
def test_a_resumed_family_is_one_that_was_not_interrupted(tmp_path, words):
    words = (*SAME, *words, "checkpoint.every=1")
    whole = trained(tmp_path / "whole", *words, "rounds=3")
    trained(tmp_path / "half", *words, "rounds=2")
    found = trained(tmp_path / "half", *words, "rounds=3", "resume=auto")
    assert_close(found, whole, rtol=0, atol=0)


@pytest.mark.slow
def test_members_by_device_are_those_of_a_resumed_and_of_an_evaluated_run(tmp_path):
    trace = tmp_path / "devices.csv"
    trace.write_text("per_example\n4\n3\n1\n2\n")
    of = "model.of=[{mlp: {hidden: [12]}}, {mlp: {hidden: [8]}}]"
    by_device = (of, "model.assign=by_device", "devices=from_trace", f"devices.path={trace}")
    words = ("model=family", *by_device, "model.feature_dim=null", "algorithm=local")
    trained(tmp_path / "run", *words, "rounds=1", "checkpoint.every=1")
    found = trained(tmp_path / "run", *words, "checkpoint.every=1", "resume=auto")
    assert [len(next(iter(own.values()))) for own in found] == [8, 8, 12, 12]
    evaluate([f"run={tmp_path / 'run'}", "personal=true"])
    path = tmp_path / "run" / "evaluation" / "metrics.json"
    metrics = json.loads(path.read_text(encoding="utf-8"))["metrics"]
    row = read_history(tmp_path / "run" / "metrics.csv")[-1]
    assert metrics["personal/loss"] == pytest.approx(float(row["personal/loss"]), rel=1e-6)


@pytest.mark.slow
def test_members_of_one_architecture_are_the_model(tmp_path):
    """FedAvg of two members that are alike: one reduction gets the uploads of both."""
    words = ("algorithm=fedavg", "engine=eager")
    flfast.run(*SMALL, *words, "model=mlp", "model.hidden=[8]", folder=tmp_path / "model")
    twice = "model.of=[{mlp: {hidden: [8]}}, {mlp: {hidden: [8]}}]"
    family = ("model=family", twice, "model.feature_dim=null")
    flfast.run(*SMALL, *words, *family, folder=tmp_path / "family")
    found, expected = (
        torch.load(tmp_path / name / "model.pt", weights_only=True) for name in ("family", "model")
    )
    assert_close([found], [expected], rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_feddf_is_that_of_the_model_if_no_client_has_another(tmp_path):
    """The second member learns from the ensemble alone, and its own clients have its model."""
    words = ("algorithm=feddf", "split.server_examples=40", "algorithm.server_steps=10")
    words = (*words, "engine=eager", "sampler.fraction=0.5")
    flfast.run(*SMALL, *words, "model=mlp", "model.hidden=[8]", folder=tmp_path / "model")
    for name, assign in (("first", "mlp,mlp,mlp,mlp"), ("one", "mlp,mlp,mlp,logistic")):
        flfast.run(*SMALL, *words, *FAMILY, f"model.assign=[{assign}]", folder=tmp_path / name)
    found, expected = (
        torch.load(tmp_path / name / "model.pt", weights_only=True) for name in ("first", "model")
    )
    assert_close([found], [expected], rtol=1e-5, atol=1e-6)
    row, first = read_history(tmp_path / "one" / "metrics.csv")[-1::-2]
    assert float(row["personal/accuracy_logistic"]) > float(first["personal/accuracy_logistic"])
    own = personal(tmp_path / "one")
    assert own[3].keys() != own[0].keys() == own[1].keys()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("algorithm=fedavg",), "algorithm=fedavg clients share params/fc1.weight"),
        (("algorithm=fedproto",), "algorithm=fedproto clients share prototypes, which mlp and"),
        pytest.param(
            *(("algorithm=apple",), "algorithm=apple clients share"), marks=pytest.mark.slow
        ),
        (("algorithm=local", "batch_size=auto"), "batch_size=auto: is found for one model"),
        (("algorithm=local", "model.assign=[mlp]"), "model.assign: has 1 names; allowed: one"),
        (
            ("algorithm=local", "model.assign=shares", "model.shares=[1]"),
            "model.shares=[1]: allowed with assign=shares",
        ),
        (
            ("algorithm=local", "model.assign=by_device"),
            "model.assign=by_device devices=ideal: all devices are equally fast",
        ),
        (("mode=centralized",), "mode=centralized: trains one model"),
        (("algorithm=local", "model.assign=no.txt"), "model.assign=no.txt: is no file; allowed"),
    ],
    ids=[
        "fedavg",
        "fedproto",
        "apple",
        "auto",
        "names",
        "shares",
        "by-device",
        "centralized",
        "no-file",
    ],
)
def test_what_a_family_cannot_do_is_refused(tmp_path, words, message):
    with pytest.raises(ConfigError, match=message.replace("[", r"\[")):
        flfast.run(*SMALL, *FAMILY, *words, folder=tmp_path / "run")
    assert not (tmp_path / "run" / "metrics.csv").exists()


TRIED = ("finetune_epochs=2", "sampler.holdout_clients=1", "devices=tiers", "partition.alpha=5")


@pytest.mark.slow
def test_a_client_that_never_trains_begins_with_its_own_member(tmp_path):
    words = ("algorithm=fedproto", *TRIED)
    flfast.run(*SMALL, *SAME, *words, "model.assign=shares", "model.shares=[0,1]", folder=tmp_path)
    alone = ("model=family", "model.of=[{mlp: {hidden: [12]}}]", "model.feature_dim=8")
    flfast.run(*SMALL, *alone, *words, folder=tmp_path / "alone")
    rows, others = (
        read_history(folder / "metrics.csv") for folder in (tmp_path, tmp_path / "alone")
    )
    for row, other in zip(rows, others, strict=True):
        for column in ("new_finetuned/loss", "finetuned/loss", "personal/loss"):
            assert float(row[column]) == pytest.approx(float(other[column]), rel=1e-5), column


@pytest.mark.slow
def test_clients_with_slices_are_timed_and_fine_tuned_with_theirs(tmp_path):
    """Client 0, whose messages are measured for virtual time, has the second member."""
    of = "model.of=[{mlp: {hidden: [8]}}, {mlp: {hidden: [4]}}]"
    slices = ("model=family", of, "model.feature_dim=null", "algorithm=heterofl")
    assign = "model.assign=[mlp-2,mlp,mlp-2,mlp]"
    flfast.run(*SMALL, *slices, *TRIED, assign, folder=tmp_path)
    first, *_, last = read_history(tmp_path / "metrics.csv")
    assert float(last["finetuned/accuracy_mlp-2"]) > float(first["local/accuracy_mlp-2"])
    assert float(last["clock/seconds"]) > 0


@pytest.mark.slow
@pytest.mark.parametrize("place", [0, 1])
def test_virtual_time_is_that_of_the_clients_slice(tmp_path, place):
    """A forward pass of 64 inputs, h units and 10 classes: 2 (64 h + 10 h) operations."""
    of = "model.of=[{mlp: {hidden: [8]}}, {mlp: {hidden: [4]}}]"
    slices = ("model=family", of, "model.feature_dim=null", "algorithm=heterofl", "rounds=1")
    trace, ideal = tmp_path / "devices.csv", "0,inf,inf"
    rows = ["0.01,1000,500" if client == place else ideal for client in range(4)]
    trace.write_text("\n".join(("per_example,down,up", *rows)))
    devices = ("devices=from_trace", f"devices.path={trace}", "local_epochs=3")
    flfast.run(*SMALL, *slices, *devices, "algorithm.masked=false", folder=tmp_path / "run")
    clients = read_rounds(tmp_path / "run" / "clients.csv", 1)
    row = next(r for r in clients if int(r["client_id"]) == place and r["num_examples"])
    hidden, cost = ((8, 1.0), (4, 0.5))[place]
    message = 4 * (64 * hidden + hidden + 10 * hidden + 10)
    expected = 0.01 * 3 * int(row["num_examples"]) * cost + message / 1000 + message / 500
    found = read_history(tmp_path / "run" / "metrics.csv")[-1]["clock/seconds"]
    assert float(found) == pytest.approx(expected)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pace", "buffer"),
    [("buffered", ("pace.buffer=2",)), ("async", ())],
    ids=["buffered", "async"],
)
def test_a_client_with_a_small_model_is_back_first(tmp_path, pace, buffer):
    devices = ("devices=tiers", "devices.shares=[1]", "devices.slowdown=[1]")
    of = "model.of=[{mlp: {hidden: [80]}}, {mlp: {hidden: [8]}}]"
    words = ("model=family", of, "algorithm=lg_fedavg", f"pace={pace}", *buffer)
    flfast.run(*SMALL, *words, *devices, "partition.alpha=100", folder=tmp_path)
    events = read_rows(tmp_path / "events.csv")
    arrived = [int(event["client_id"]) for event in events if event["kind"] == "arrival"]
    assert {*arrived[:2]} == {1, 3}


def test_a_common_model_that_nobody_shares_is_warned_of(tmp_path, caplog):
    words = ("algorithm=local", "model.common=mlp", "rounds=1")
    flfast.run(*SMALL, *FAMILY, *words, folder=tmp_path)
    assert "model.common changes nothing: algorithm=flfast.algorithms.local" in caplog.text


def test_the_servers_examples_have_a_place_among_the_costs(tmp_path):
    words = ("algorithm=lg_fedavg", "aggregation=fltrust", "split.server_examples=50")
    flfast.run(*SMALL, *SAME, *words, "strategy=ddp", "trainer.devices=2", folder=tmp_path)
    assert len(read_history(tmp_path / "metrics.csv")) == 3
