"""Clients with keys and files of their own give the plain sum, whoever drops out and when."""

import json
from functools import partial
from unittest.mock import ANY

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mutating import mutated

from flfast.channel.secure.client_round import ClientRound
from flfast.channel.secure.masks import masks
from flfast.channel.secure.round_messages import Advertise, Mask, Share, Unmask
from flfast.channel.secure.round_terms import ShortageError
from flfast.channel.secure.server_round import ServerRound
from flfast.channel.wire import Message, pack, read_facts
from flfast.engines.remote import _read
from flfast.state.tree import leaves

PATH = (3, 1)


class Clients:
    """Clients in a folder; each answers by a new object, so that nothing but its file is kept."""

    def __init__(self, folder, num, silent, *, threshold=0.5, neighbors=None):
        make_terms = masks(
            bits=32, max_change=4.0, precision=1e-6, max_weight=None,
            threshold=threshold, neighbors=neighbors,
        ).make_terms  # fmt: skip
        self.make_terms = lambda cohort, path: make_terms(cohort, 0, path)
        self.folder, self.silent = folder, silent
        self.terms = self.make_terms(range(num), PATH)

    def client(self, k):
        return ClientRound(k, self.make_terms, self.folder / f"{k}.json")

    def ask(self, kind, requests, answer):
        methods = {"advertise": "advertise", "share": "share", "unmask": "answer"}
        for k, request in reversed(requests.items()):
            if k in self.silent.get(kind, ()):
                yield k, "no answer"
                continue
            told = type(request).model_validate(json.loads(json.dumps(request.model_dump())))
            found = getattr(self.client(k), methods[kind])(told)
            yield k, answer.model_validate(json.loads(json.dumps(found.model_dump())))

    def sums(self, values, wide):
        """The clients whose masked uploads arrive, and their sums."""
        server, total, arrived = ServerRound(self.terms, PATH, self.ask), 0, []
        for k, mask in server.agree(1.0).items():
            if isinstance(mask, str) or k in self.silent.get("mask", ()):
                continue
            self.client(k).receive(mask)
            tree, _ = self.client(k).mask(mask, values[k], wide[k])
            total = total + np.concatenate([leaf.long().numpy() for leaf in leaves(tree)])
            arrived.append(k)
        if not arrived:
            raise ShortageError
        return arrived, server.unmask(torch.from_numpy(total), arrived, wide.shape[1])


@settings(max_examples=12, deadline=None)
@given(st.data(), st.integers(2, 9), st.sampled_from([None, 4]), st.sampled_from([0.3, 0.6]))
def test_the_sum_is_that_of_those_who_sent_it(tmp_path_factory, data, num, neighbors, threshold):
    silent = {
        kind: data.draw(st.sets(st.integers(0, num - 1), max_size=2))
        for kind in ("advertise", "share", "mask", "unmask")
    }
    folder = tmp_path_factory.mktemp("clients")
    clients = Clients(folder, num, silent, threshold=threshold, neighbors=neighbors)
    rng = np.random.default_rng(0)
    values, wide = rng.uniform(-4, 4, (num, 5)), rng.integers(0, 2**31, (num, 2)) * 1.0
    gone = silent["advertise"] | silent["share"] | silent["mask"]
    try:
        arrived, sums = clients.sums(values, wide)
    except ShortageError:
        # With all others as neighbours, those who answered are enough unless they are too few.
        if neighbors is None:
            assert num - len(gone | silent["unmask"]) < clients.terms.least_shares
        return
    assert {*arrived} <= {*range(num)} - gone
    assert neighbors is not None or len(arrived) == num - len(gone)
    assert np.abs(sums.values - values[arrived].sum(0)).max() < 1e-6
    assert np.array_equal(sums.wide, wide[arrived].sum(0))


@settings(max_examples=30, deadline=None)
@given(st.data(), st.sampled_from(["advertise", "share", "unmask"]))
def test_an_answer_that_is_none_loses_its_client_alone(tmp_path_factory, data, step):
    clients, hostile, before = Clients(tmp_path_factory.mktemp("clients"), 4, {}), 2, {}
    honest = clients.ask

    def ask(kind, requests, answer):
        for k, found in honest(kind, requests, answer):
            message = Message(found.model_dump())
            if (kind, k) == (step, hostile):
                before[k] = message.facts
                message = data.draw(mutated(message))
            yield k, _read(pack(message), partial(read_facts, answer))

    clients.ask = ask
    rng = np.random.default_rng(0)
    values, wide = rng.uniform(-4, 4, (4, 5)), rng.integers(0, 2**31, (4, 2)) * 1.0
    server, total, arrived = ServerRound(clients.terms, PATH, ask), 0, []
    for k, mask in server.agree(1.0).items():
        if isinstance(mask, str):
            assert k == hostile and mask.isprintable() and 0 < len(mask) < 600
            continue
        clients.client(k).receive(mask)
        tree, _ = clients.client(k).mask(mask, values[k], wide[k])
        total = total + np.concatenate([leaf.long().numpy() for leaf in leaves(tree)])
        arrived.append(k)
    sums = server.unmask(torch.from_numpy(total), arrived, wide.shape[1])
    assert {0, 1, 3} <= {*arrived} and {*server.lost} <= {hostile} and before
    assert np.abs(sums.values - values[arrived].sum(0)).max() < 1e-6
    assert np.array_equal(sums.wide, wide[arrived].sum(0))


def test_a_client_does_each_step_once_and_then_has_no_secrets(tmp_path):
    clients = Clients(tmp_path, 3, {})
    client, path = clients.client(0), PATH
    publics = {
        k: clients.client(k).advertise(Advertise(path=path, cohort=[0, 1, 2])) for k in range(3)
    }
    secret = json.loads((tmp_path / "0.json").read_text())["secret"]
    assert (tmp_path / "0.json").stat().st_mode & 0o777 == 0o600
    asked = Share(path=path, publics=publics)
    boxes = {k: clients.client(k).share(asked).boxes for k in range(3)}
    with pytest.raises(ValueError, match="asked twice"):
        client.share(asked)
    mask = Mask(path=path, boxes={k: boxes[k][0] for k in (1, 2)}, max_weight=1.0)
    with pytest.raises(ValueError, match="no shares of neighbours"):
        client.receive(Mask(path=path, boxes={}, max_weight=1.0))
    client.receive(mask)
    with pytest.raises(ValueError, match="asked twice"):
        client.receive(mask)
    with pytest.raises(ValueError, match=r"keys of round and call \(3, 1\), not of \(4, 0\)"):
        client.answer(Unmask(path=(4, 0), arrived=[0, 1, 2]))
    shares = client.answer(Unmask(path=path, arrived=[0, 1]))
    assert shares.shares == {0: ANY, 1: ANY, 2: ANY}
    assert not (tmp_path / "0.json").exists()
    with pytest.raises(ValueError, match="no keys of this round"):
        client.answer(Unmask(path=path, arrived=[0, 2]))
    client.advertise(Advertise(path=path, cohort=[0, 1, 2]))
    assert json.loads((tmp_path / "0.json").read_text())["secret"] != secret


@pytest.mark.parametrize("arrived", [[0], [1, 2], [0, 0]])
def test_a_client_gives_no_shares_for_too_few_uploads(tmp_path, arrived):
    clients = Clients(tmp_path, 3, {})
    clients.client(0).advertise(Advertise(path=PATH, cohort=[0, 1, 2]))
    with pytest.raises(ValueError, match="too few uploads arrived"):
        clients.client(0).answer(Unmask(path=PATH, arrived=arrived))
