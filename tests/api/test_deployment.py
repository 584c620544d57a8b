"""Deployments: numbers of the simulator, and what goes wrong in the field."""

import pickle
import re
from functools import partial
from importlib.util import find_spec

import numpy as np
import pytest
import torch
from client_files import NUM_CLIENTS, hf_numbers, image_folder
from deployed_runs import (
    SMALL,
    Nodes,
    assert_equal_runs,
    deployed,
    rows_of,
    simulated,
    unchanged,
    weights,
    words_of,
)

import flfast
from flfast import flower
from flfast.api.deployment import Client, serve
from flfast.channel.wire import MalformedError, Message, pack, unpack
from flfast.config.errors import ConfigError
from flfast.output.results.table import read_history

NOISE = "sampler=cyclic", "privacy.epsilon=null", "privacy.noise_multiplier=1.0"
MANY = (
    (("algorithm=ditto",), 2),
    (("algorithm=ifca",), 2),
    (("algorithm=fedproto",), 5),
    (("algorithm=fedex_lora", "adapter=lora"), 2),
    (("algorithm=rolora", "adapter=lora"), 2),
    (("algorithm=fedavg", "privacy=local"), 2),
    (("algorithm=fedavg", "privacy=central", "privacy.clip_norm=0.05", *NOISE), 3),
    (("algorithm=fedavg", "privacy=dp_ftrl", "privacy.clip_norm=0.05", *NOISE), 3),
    (("algorithm=fedavg", "privacy=central", "compression=quantize", *NOISE), 3),
    (("algorithm=fedavg", "sampler.fraction=0.5"), 5),
    (("schedule=growing_batch", "rounds=12", "eval_every=12"), 2),
    (("algorithm=fedavg", "compression=topk"), 2),
    (("algorithm=fedavg", "engine=fused", "engine.stack=1"), 2),
    (("algorithm=fedavg", "local_optimizer_state=keep", "optimizer.momentum=0.9"), 2),
)


@pytest.mark.parametrize(
    ("overrides", "num"),
    [
        (("algorithm=scaffold", "compression=quantize"), 2),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in MANY),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, tuple) else None,
)
def test_a_deployment_gives_the_simulators_weights_bit_for_bit(tmp_path, overrides, num):
    deployed(tmp_path, *overrides, num=num)
    simulated(tmp_path, *overrides, num=num)
    assert_equal_runs(tmp_path)
    found, expected = (
        read_history(tmp_path / name / "metrics.csv")[-1] for name in ("server", "sim")
    )
    for column in ("train/loss", "local/loss", "val/accuracy", "comm/up_bytes", "comm/down_bytes"):
        assert found[column] == expected[column], column


def test_a_server_that_is_killed_and_resumed_goes_on_bit_for_bit(tmp_path):
    words = words_of("algorithm=scaffold", "compression=topk", "eval_every=2")
    nodes = Nodes(words, 2, tmp_path)

    def dies(_, request, answer):  # in round 2, after a client has trained
        if request.facts.get("position", [0])[0] == 2:
            raise KeyboardInterrupt
        return answer

    run = partial(serve, *words, num_clients=2, network=nodes, folder=tmp_path / "server")
    nodes.between = dies
    with pytest.raises(KeyboardInterrupt):
        run()
    nodes.between = unchanged
    run("resume=auto")
    simulated(tmp_path, *words[len(SMALL) + 1 :])
    assert_equal_runs(tmp_path)


def with_facts(**facts):
    def change(answer):
        message = unpack(answer)
        return pack(Message({**message.facts, **facts}, message.trees))

    return change


def with_upload(change):
    def changed(answer):
        facts, trees = unpack(answer)
        return pack(Message(facts, {**trees, "upload": change(trees["upload"])}))

    return changed


def scaled(upload):
    return {"params": {k: v * torch.inf for k, v in upload["params"].items()}, "buffers": {}}


FIELD = {
    "no answer": (lambda answer: None, "lost", "no answer"),
    "an error": (lambda answer: "the disk is full", "lost", "the disk is full"),
    "noise": (lambda answer: b"\x00" * 100, "rejected", "no message of flfast: "),
    "half": (lambda answer: answer[: len(answer) // 2], "rejected", "no message of flfast: "),
    "a pickle": (pickle.dumps, "rejected", "no message of flfast: "),
    "a weight below 0": (with_facts(weight=-1.0), "rejected", "weight: Input should be"),
    "a weight of NaN": (with_facts(weight=float("nan")), "rejected", "weight: Input should be"),
    "a count that is text": (with_facts(num_steps="7"), "rejected", "num_steps: Input should be"),
    "other leaves": (with_upload(lambda upload: {"params": {}}), "rejected", "leaves of other"),
    "infinity": (with_upload(scaled), "rejected", "NaN or infinity on arrival"),
    "divergence": (with_facts(is_finite=False), "rejected", "NaN or infinity"),
}


def test_what_goes_wrong_in_the_field_has_a_row_and_the_run_goes_on(tmp_path):
    cases = list(FIELD.values())

    def between(node, request, answer):
        k = int(node.removeprefix("node-"))
        concerned = request.facts.get("position") == [1, 0, 1] and k < len(cases)
        return cases[k][0](answer) if concerned else answer

    deployed(tmp_path, "eval_every=2", num=len(cases) + 1, between=between)
    found = rows_of(tmp_path)
    for k, (case, (_, status, reason)) in enumerate(FIELD.items()):
        assert found[1, k]["status"] == status, case
        assert found[1, k]["reason"].startswith(reason), case
        assert found[2, k]["status"] == "trained", case
    assert found[1, len(cases)]["status"] == "trained"


@pytest.mark.slow
def test_a_round_ends_with_its_first_uploads(tmp_path):
    """Nodes answer in the order 2, 1, 0; node 1 has nothing in round 2, so node 0 is in time."""

    def second(node, request, answer):
        concerned = request.facts.get("position", [0])[0] == 2 and node == "node-1"
        return "the disk is full" if concerned else answer

    def others(node, request, answer):
        place = request.facts.get("position", [0])[0], node
        return None if place in {(1, "node-0"), (2, "node-1")} else answer

    words = ("eval_every=2",)
    deployed(tmp_path / "first", *words, "pace.keep_first=2", num=3, between=second)
    deployed(tmp_path / "all", *words, num=3, between=others)
    found, expected = (weights(tmp_path / name / "server") for name in ("first", "all"))
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    rows = rows_of(tmp_path / "first")
    assert [rows[1, k]["status"] for k in range(3)] == ["late", "trained", "trained"]
    assert [rows[2, k]["status"] for k in range(3)] == ["trained", "lost", "trained"]
    row, other = (
        read_history(tmp_path / name / "server" / "metrics.csv")[1] for name in ("first", "all")
    )
    for column in ("cohort/clients", "cohort/dropped", "comm/up_bytes", "comm/down_bytes"):
        assert row[column] == other[column], column


@pytest.mark.parametrize(
    ("server", "client", "message"),
    [
        (["optimizer.lr=0.1"], [], "client 1 (node node-1): not the server's optimizer.lr"),
        pytest.param(
            [],
            ["algorithm=fedprox"],
            "client 0 (node node-0): not the server's algorithm._target_",
            marks=pytest.mark.slow,
        ),
        (
            [],
            ["data=synthetic", "task=auto"],
            "client 1 (node node-1): not the server's data._target_",
        ),
        (["faults=simulated"], [], "faults=simulated: only a simulation has this"),
        pytest.param(
            ["secure=masks"], [], "not the server's secure._target_", marks=pytest.mark.slow
        ),
        (["pace.deadline=3"], [], "pace.deadline=3"),
        (["mode=centralized"], [], "mode=centralized: only a simulation has this"),
        (["privacy=local"], [], "privacy.secure=False: only a simulation has this"),
        (["bn=recalibrate"], [], "bn=recalibrate: only a simulation has this"),
        (["privacy=central", "privacy.adaptive_quantile=0.5"], [], "adaptive_quantile=0.5: only"),
        pytest.param(
            [],
            ["model=family", "algorithm=local"],
            "node node-0: model=family: real clients have",
            marks=pytest.mark.slow,
        ),
        (["strategy=ddp"], [], "strategy.name=ddp: only a simulation has this"),
        (["batch_size=auto"], [], "batch_size=auto: allowed in a deployment: a number"),
    ],
)
def test_what_does_not_fit_is_refused_before_round_1(tmp_path, server, client, message):
    asked = []

    def seen(_, request, answer):
        asked.append(request.facts["kind"])
        return answer

    nodes = Nodes(words_of(*client), 2, tmp_path, between=seen)
    with pytest.raises(ConfigError, match=re.escape(message)):
        serve(*words_of(*server), num_clients=2, network=nodes, folder=tmp_path / "server")
    assert {*asked} <= {"greeting"}
    assert not (tmp_path / "server").exists()


@pytest.mark.slow
def test_a_client_that_comes_back_elsewhere_goes_on(tmp_path):
    nodes = Nodes(words_of("algorithm=scaffold", "eval_every=2"), 2, tmp_path, fresh=True)

    def moves(_, request, answer):
        if request.facts.get("position", [0])[0] == 1:
            nodes.names[1] = "node-7"  # seen from the next call on
        return answer

    nodes.between = moves
    serve(*nodes.words, num_clients=2, network=nodes, folder=tmp_path / "server")
    simulated(tmp_path, "algorithm=scaffold")
    assert_equal_runs(tmp_path)


def test_clients_have_numbers_of_their_own(tmp_path):
    nodes = Nodes(words_of(), 2, tmp_path)
    nodes.clients[1] = nodes.client(0)
    with pytest.raises(ConfigError, match=r"client-id=0, as node node-\d has; allowed: a number"):
        serve(*nodes.words, num_clients=2, network=nodes, folder=tmp_path / "server")


def test_a_client_trains_on_its_own_data_as_in_a_simulation_with_all(tmp_path):
    header, whole = "a,b,target,part", ["a,b,target,part,site"]
    words = tuple(word for word in words_of() if not word.startswith("partition"))
    words = *words, "partition=whole", "data=table", "data.is_test=part", "data.standardise=none"
    words = *words, "optimizer.lr=0.01", "batch_size=7"
    nodes = Nodes(words, 2, tmp_path)
    for k in range(2):
        rows = [f"{2 * i + k},{2 * i + 1 + k},{i % 2},{int(i % 9 == 0)}" for i in range(60)]
        (tmp_path / f"{k}.csv").write_text("\n".join([header, *rows]))
        whole += [f"{row},{k}" for row in rows]
        nodes.words = (*words, f"data.path={tmp_path / f'{k}.csv'}")
        nodes.clients[k] = nodes.client(k)
    (tmp_path / "whole.csv").write_text("\n".join(whole))
    serve(*words, num_clients=2, network=nodes, folder=tmp_path / "server")
    path = f"data.path={tmp_path / 'whole.csv'}"
    simulated = *words, "data.owner=site", path, "partition=natural", "strategy=single"
    flfast.run(*simulated, folder=tmp_path / "sim")
    assert_equal_runs(tmp_path)
    found, expected = (
        read_history(tmp_path / name / "metrics.csv")[-1] for name in ("server", "sim")
    )
    for column in ("train/loss", "local/accuracy", "val/accuracy"):
        assert found[column] == expected[column], column


@pytest.mark.slow
@pytest.mark.parametrize("write", [hf_numbers, image_folder])
def test_weights_are_those_of_a_simulation_with_all_files(tmp_path, write):
    rng = np.random.default_rng(0)
    files = write(tmp_path / "files", rng, np.repeat([2, 0, 1], 30)[rng.permutation(90)])
    words = tuple(word for word in words_of("batch_size=7") if not word.startswith("partition"))
    images = {"data.mean=[0.5]", "data.std=[0.5]", "data.image_size=null"}
    words = *words, *(sorted(images) if write is image_folder else ())
    nodes = Nodes(words, NUM_CLIENTS, tmp_path)
    for k in range(NUM_CLIENTS):
        nodes.words = (*files.words(k), "partition=whole", *words)
        nodes.clients[k] = nodes.client(k)
    serve(*nodes.words, num_clients=NUM_CLIENTS, network=nodes, folder=tmp_path / "server")
    simulated = *files.words("all"), "partition=natural", "strategy=single", *words
    flfast.run(*simulated, folder=tmp_path / "sim")
    assert_equal_runs(tmp_path)


def test_no_bytes_are_a_message_by_chance():
    good = pack(Message({"a": 1}, {"t": {"x": torch.ones(2)}}))
    for data in (b"", b"x", good[:-1], good[:20], good + b"x", pickle.dumps({"a": 1})):
        with pytest.raises(MalformedError):
            unpack(data)


def test_a_client_that_does_not_greet_is_named(tmp_path):
    def silent(node, _, answer):
        return None if node == "node-1" else answer

    with pytest.raises(ConfigError, match=r"clients \[1\] of 3 do not answer"):
        deployed(tmp_path, num=3, between=silent)


def test_a_greeting_that_is_none_is_named(tmp_path):
    with pytest.raises(ConfigError, match="node node-0: no message of flfast"):
        deployed(tmp_path, between=lambda node, _, answer: b"x" if node == "node-0" else answer)


@pytest.mark.parametrize("noise", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_nobody_takes_the_place_of_a_node_that_is_here(tmp_path, noise):
    nodes = Nodes(words_of("algorithm=scaffold", "eval_every=2"), 2, tmp_path)

    def joins(node, request, answer):
        if request.facts.get("position", [0])[0] == 1 and len(nodes.names) == 2:
            nodes.names.append("node-0-too")
            nodes.clients.append(Client(*nodes.words, client_id=0, folder=tmp_path / "other"))
        return b"noise" if noise and node == "node-0-too" else answer

    nodes.between = joins
    serve(*nodes.words, num_clients=2, network=nodes, folder=tmp_path / "server")
    assert not (tmp_path / "other" / "states").exists()
    simulated(tmp_path, "algorithm=scaffold")
    assert_equal_runs(tmp_path)


def test_without_checkpoints_a_client_keeps_one_state_to_go_back_to(tmp_path):
    deployed(tmp_path, "algorithm=scaffold", "checkpoint.every=0", "rounds=4", "eval_every=4")
    assert len([*(tmp_path / "client-0").rglob("*.state")]) == 2


@pytest.mark.skipif(find_spec("flwr") is not None, reason="Flower is installed")
@pytest.mark.parametrize("app", [flower.client_app, flower.server_app], ids=["client", "server"])
def test_without_flower_its_extra_is_named(app):
    with pytest.raises(ValueError, match=r"is not installed .* 'flfast\[flower\]'"):
        app("rounds=1")
