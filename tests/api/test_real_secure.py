"""Secure aggregation with real clients: the simulator's numbers; the server sees sums only."""

import json
import re
import stat

import pytest
import torch
from deployed_runs import Nodes, assert_equal_runs, deployed, rows_of, simulated, weights, words_of

from flfast.api.deployment import serve
from flfast.channel.secure.keys import derived
from flfast.channel.secure.secret_sharing import combine
from flfast.channel.secure_reduction import Encoding
from flfast.channel.wire import Message, pack, unpack
from flfast.engines.node import Node
from flfast.output.results.table import read_history
from flfast.state.stack import structure
from flfast.state.tree import leaves

pytest.importorskip("cryptography")
STEPS = ("advertise", "share", "train", "unmask")


def at(places, client=1):
    """Change a client's answers: by round, of which kind and how."""

    def between(node, request, answer):
        where = request.facts.get("path") or request.facts.get("position")
        if where is None or node != f"node-{client}":
            return answer
        step, change = places.get(where[0], (None, None))
        return change(answer) if step == request.facts["kind"] else answer

    return between


def lost(_):
    return None


def log_of(folder):
    return (folder / "server" / "train.log").read_text()


def test_masks_give_the_simulators_weights_bit_for_bit(tmp_path):
    words = "secure=masks", "algorithm=scaffold"
    deployed(tmp_path, *words, num=3)
    simulated(tmp_path, *words, num=3)
    assert_equal_runs(tmp_path)
    found, expected = (
        read_history(tmp_path / name / "metrics.csv")[-1] for name in ("server", "sim")
    )
    for column in ("train/loss", "val/accuracy", "comm/up_bytes", "comm/down_bytes"):
        assert found[column] == expected[column], column
    assert not [*tmp_path.rglob("secure.json")]


@pytest.mark.slow
def test_a_client_that_drops_out_leaves_the_mean_of_the_others(tmp_path):
    """In each round at another step. Who drops out after its masked upload is in the mean."""
    words = "rounds=4", "eval_every=4"
    drops = {number: (step, lost) for number, step in enumerate(STEPS, 1)}
    deployed(tmp_path / "masked", *words, "secure=masks", num=4, between=at(drops))
    plain = dict.fromkeys((1, 2, 3), ("train", lost))
    deployed(tmp_path / "plain", *words, num=4, between=at(plain))
    found, expected = (weights(tmp_path / name / "server") for name in ("masked", "plain"))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)
    rows = rows_of(tmp_path / "masked")
    assert [rows[number, 1]["status"] for number in range(1, 5)] == [*["lost"] * 3, "trained"]
    assert {rows[number, 1]["reason"] for number in range(1, 5)} == {"no answer"}


def hexed(change):
    """Change the first key, box or share of an answer."""

    def changed(answer):
        facts = json.loads(json.dumps(unpack(answer).facts))
        part = facts if "mask" in facts else facts.get("boxes") or facts["shares"]
        first = next(iter(part))
        part[first] = change(part[first])
        return pack(Message(facts))

    return changed


def other(text):
    return f"{int(text[:2], 16) ^ 1:02x}{text[2:]}"


DAMAGED = (
    ("advertise", hexed(lambda text: text[2:]), 1, "mask: "),
    ("advertise", hexed(lambda text: "x" + text[1:]), 1, "mask: Value error"),
    ("advertise", hexed(other), 1, "its public keys were changed on the way"),
    ("advertise", hexed(lambda _: "00" * 32), 1, "its public keys are damaged"),
    ("share", hexed(other), 0, "shares or keys of client 1 are damaged"),
    ("share", lambda _: b"x" * 99, 1, "no message of flfast"),
    ("train", lambda answer: answer[:-9], 1, "no message of flfast"),
    ("unmask", hexed(lambda text: text[2:]), 1, "shares."),
)


@pytest.mark.slow
def test_what_is_damaged_is_a_reason(tmp_path):
    """In each round something else. The others go on."""
    words = f"rounds={len(DAMAGED)}", f"eval_every={len(DAMAGED)}", "secure=masks"
    places = {number: case[:2] for number, case in enumerate(DAMAGED, 1)}
    run = deployed(tmp_path, *words, num=3, between=at(places))
    rows = rows_of(tmp_path)
    for number, (step, _, client, reason) in enumerate(DAMAGED, 1):
        found = {k: rows[number, k] for k in range(3)}
        assert found[client]["reason"].startswith(reason), number
        status = {"unmask": "trained", "train": "rejected"}.get(step, "lost")
        assert found[client]["status"] == status, number
        assert [one["reason"] for one in found.values()].count("") == 2, number
    assert "the model is unchanged" not in log_of(tmp_path)
    assert run.folder == tmp_path / "server"


def test_too_few_clients_or_wrong_shares_are_rounds_without_a_step(tmp_path):
    """In each round at another step; in the last, a share has other bits."""
    places = {number: (step, lost) for number, step in enumerate(STEPS, 1)}
    places[5] = "unmask", hexed(other)
    words = "rounds=5", "eval_every=5", "secure=masks", "secure.threshold=1.0"
    deployed(tmp_path, *words, num=3, between=at(places))
    reasons = (
        *["0 of 3 uploads arrived; 3 are needed"] * 2,
        "2 of 3 uploads arrived; 3 are needed",
        "2 clients with shares of client 0 arrived; 3 are needed",
        "(masks are left in the sum|shares of client)",
    )
    log = log_of(tmp_path)
    for number, reason in enumerate(reasons, 1):
        assert re.search(f"round {number}: {reason}.*; the model is unchanged", log), number
    others = rows_of(tmp_path)[1, 0]
    assert others["reason"] == "2 of 3 clients exchanged keys, too few to mask its upload"


def test_a_client_masks_whatever_it_is_asked_and_once(tmp_path):
    nodes = Nodes(words_of("rounds=1", "secure=masks", num=3), 3, tmp_path)
    asked = []

    def hears(node, request, answer):
        asked.append((node, request))
        return answer

    nodes.between = hears
    serve(*nodes.words, num_clients=3, network=nodes, folder=tmp_path / "server")
    (request,) = [one for node, one in asked if one.facts["kind"] == "train" and node == "node-1"]
    bare = {name: fact for name, fact in request.facts.items() if name != "mask"}
    for facts, why in ((request.facts, "no keys of this round"), (bare, "Field required")):
        with pytest.raises(ValueError, match=why):
            nodes.clients[1].answer(pack(Message(facts, request.trees)))


def test_the_server_gets_no_upload_and_no_secret(tmp_path, monkeypatch):
    """All bytes that reach the server, against what clients keep and would have sent."""
    heard, kept, plain, words, modes = [], {}, {}, {}, set()
    masked = Node._masked

    def spied(node, sent, mask, algorithm):
        file = node._folder / "secure.json"
        modes.add(stat.S_IMODE(file.stat().st_mode))
        kept[node._client_id] = bytes.fromhex(json.loads(file.read_text())["secret"])
        plain[node._client_id] = sent.upload
        vectors = Encoding(algorithm.parts, mask.max_weight).vectors(0, sent.upload, sent.weight)
        terms = node._engine.channel.secure.make_terms(range(4), 0, (1, 0))
        words[node._client_id] = terms.masked(terms.packed(terms.encode(0, *vectors)[0]), 1)
        return masked(node, sent, mask, algorithm)

    monkeypatch.setattr(Node, "_masked", spied)

    def hears(node, request, answer):
        if (node, request.facts["kind"]) == ("node-2", "train"):
            return None
        heard.append((int(node[-1]), request.facts["kind"], answer))
        return answer

    deployed(tmp_path, "rounds=1", "secure=masks", num=4, between=hears)
    assert len(plain) == len(kept) == 4
    assert modes == {0o600}
    uploads = {k: unpack(answer) for k, kind, answer in heard if kind == "train"}
    assert sorted(uploads) == [0, 1, 3]
    for k, message in uploads.items():
        assert message.trees.keys() == {"upload"}
        assert message.facts["weight"] == 0.0
        found, own = message.trees["upload"], words[k]
        assert structure(found) == structure(own)
        for name, leaf in own["masked"].items():
            assert (found["masked"][name] == leaf).float().mean() < 0.01, name
    assert_not_said(b"".join(answer for *_, answer in heard), plain.values(), kept.values())
    # Of client 2, which dropped out, the server gets shares of the key; of others, of the seed.
    shares = {k: unpack(answer).facts["shares"] for k, kind, answer in heard if kind == "unmask"}
    assert len(shares) == 3
    for about in range(4):
        own = [bytes.fromhex(one[str(about)]) for one in shares.values()]
        purpose = "mask key" if about == 2 else "self mask"
        assert combine([k + 1 for k in shares], own) == derived(kept[about], purpose, length=32)


def assert_not_said(said, uploads, secrets):
    for leaf in (leaf for upload in uploads for leaf in leaves(upload)):
        row = leaf.flatten()
        assert row[row != 0][:2].numpy().tobytes() not in said
    derivations = "mask key", "share key", "self mask"
    for secret in secrets:
        for found in (secret, *(derived(secret, one, length=32) for one in derivations)):
            assert found not in said
            assert found.hex().encode() not in said
