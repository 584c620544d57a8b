"""Messages that nobody honest sends, both ways: they are refused, and the others go on."""

import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from deployed_runs import Nodes, deployed, rows_of, simulated, weights, words_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mutating import mutated

from flfast.algorithms.contract import Algorithm
from flfast.api.deployment import serve
from flfast.channel.channel import Channel
from flfast.channel.privacy.noise_sources import independent_noise
from flfast.channel.privacy.privacy import NO_PRIVACY, Privacy
from flfast.channel.sent import Sender, Sent
from flfast.channel.sides import ServerSide
from flfast.channel.wire import LARGEST, MalformedError, Message, message_of, pack, sent_of, unpack
from flfast.config.errors import ConfigError
from flfast.datamodules.fetching import Loading
from flfast.datamodules.remote_data import RemoteData
from flfast.datamodules.splits import Split
from flfast.engines.evaluation.metrics import summary
from flfast.engines.evaluation.remote_metrics import joined_metrics, metrics_of
from flfast.output.results.table import read_history
from flfast.setup.real_clients import Greeting
from flfast.state.tree import leaves, tree_map
from flfast.state.vector import clipped, learned_norm

STEPS = "advertise", "share", "train", "unmask"
UPLOAD = {
    "params": {"w": torch.linspace(-1, 1, 6).view(2, 3), "b": torch.zeros(3)},
    "buffers": {"n": torch.tensor(4), "mean": torch.ones(3)},
}
SENT = Sent(UPLOAD, b"", 5.0, 5, 4, 20, 0.5)
CENTRAL = Privacy("central", 1.0, central_noise=independent_noise, expected_clients=2.0)
IN_FEW = settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])


def shown(text):
    """Whether a text may be printed: in one line, bounded, without control characters."""
    return text.isprintable() and len(text) < 600


@given(message=mutated(message_of(SENT)), privacy=st.sampled_from((NO_PRIVACY, CENTRAL)))
@IN_FEW
def test_an_upload_is_refused_or_in_its_ranges(message, privacy):
    server = ServerSide(Algorithm("fedavg"), Channel(privacy=privacy))
    try:
        sent = sent_of(unpack(pack(message)))
    except MalformedError as error:
        assert shown(str(error))
        return
    expected = tree_map(lambda leaf: leaf.to("meta"), UPLOAD)
    arrival = server.from_outside(Sender(0, 1), sent, expected, 5)
    assert shown(arrival.reason) and arrival.up_bytes < 1e4
    if arrival.upload is None:
        assert arrival.status == "rejected" and arrival.reason
        return
    assert sent.weight == (1.0 if privacy is CENTRAL else sent.num_examples) <= 5
    assert all(leaf.double().abs().max() <= LARGEST for leaf in leaves(arrival.upload))
    assert math.isfinite(sent.loss_sum / max(sent.num_seen, 1))
    if privacy is CENTRAL:
        assert learned_norm(arrival.upload, ()) <= 1 + 1e-6


class Recorded:
    """Messages of a deployment: requests and answers of the first client, by kind.

    `secrets` is what its file for the keys of a round holds before each kind of request.
    """

    def __init__(self, folder, *words, num=2):
        self.nodes = Nodes(words_of(*words, num=num), num, folder, between=self._keep)
        self.requests, self.answers, self.secrets = {}, {}, {}
        self.file, self._held = folder / "client-0" / "states" / "secure.json", None
        serve(*self.nodes.words, num_clients=num, network=self.nodes, folder=folder / "server")
        self.before = set(folder.rglob("*"))

    def _keep(self, node, request, answer):
        if node == "node-0":
            kind = request.facts["kind"]
            self.requests[kind], self.answers[kind] = request, unpack(answer)
            self.secrets[kind] = self._held
            self._held = self.file.read_text() if self.file.exists() else None
        return answer


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    return Recorded(tmp_path_factory.mktemp("recorded"), "algorithm=scaffold")


@pytest.fixture(scope="module")
def masked(tmp_path_factory):
    pytest.importorskip("cryptography")
    words = "secure=masks", "rounds=1"
    return Recorded(tmp_path_factory.mktemp("masked"), *words, num=3)


@pytest.mark.parametrize("kind", ["train", "evaluate", "greeting"])
@given(data=st.data())
@settings(IN_FEW, max_examples=18, deadline=None)
def test_an_order_is_refused_or_answered_and_nothing_is_written_elsewhere(recorded, kind, data):
    folder = recorded.nodes.folder
    order = data.draw(mutated(recorded.requests[kind]))
    try:
        unpack(recorded.nodes.clients[0].answer(pack(order)))
    except ValueError as error:
        assert not isinstance(error, UnicodeError)
        assert kind != "greeting" or shown(str(error))
    states = folder / "client-0" / "states"
    for path in {*folder.rglob("*")} - recorded.before:
        assert path.is_relative_to(states), path
        assert path.name.endswith(".state") or path.parent == states, path
        path.unlink() if path.is_file() else None
    assert not (folder.parent / "tmp").exists()


@pytest.mark.parametrize("kind", STEPS)
@given(data=st.data())
@settings(IN_FEW, max_examples=40, deadline=None)
def test_an_order_to_hide_an_upload_is_refused_or_answered(masked, kind, data):
    order = data.draw(mutated(masked.requests[kind]))
    if held := masked.secrets[kind]:
        masked.file.write_text(held)
    try:
        unpack(masked.nodes.clients[0].answer(pack(order)))
    except ValueError as error:
        assert not isinstance(error, UnicodeError)
        assert len(str(error)) < 600
    finally:
        masked.file.unlink(missing_ok=True)


@pytest.mark.parametrize(
    ("kind", "field", "values"),
    [
        *(
            (kind, "path", ([-1, 0], [2**200, 0], [1, True], ["1", 0], [1], None))
            for kind in STEPS
        ),
        ("advertise", "cohort", ([0, -1], [0, 2**32], [0, 0], [1, 2], {}, [*range(2**16 + 1)])),
        ("share", "publics", ({}, {"0": {}}, {"-1": None}, {"9" * 5000: {}}, [])),
        ("train", "mask", ({}, [], None, {"max_weight": 1.0})),
        ("unmask", "arrived", ([], [0], [1, 2], [0, -1], [0, 2**64], "012", None)),
    ],
)
def test_an_order_to_hide_an_upload_has_ranges(masked, kind, field, values):
    facts, trees = masked.requests[kind]
    place = facts["mask"] if (kind, field) == ("train", "path") else facts
    for value in values:
        if held := masked.secrets[kind]:
            masked.file.write_text(held)
        changed = {**place, field: value}
        changed = changed if place is facts else {**facts, "mask": changed}
        with pytest.raises(ValueError, match=r"\S") as raised:
            masked.nodes.clients[0].answer(pack(Message(changed, trees)))
        assert len(str(raised.value)) < 600
    masked.file.unlink(missing_ok=True)


@given(data=st.data(), num=st.integers(1, 40))
@settings(IN_FEW, max_examples=80)
def test_an_evaluation_is_refused_or_in_its_ranges(recorded, data, num):
    known = Greeting.model_validate(recorded.answers["greeting"].facts)
    sizes = {name: np.array([most, num]) for name, most in known.sizes.items()}
    remote = RemoteData(
        known.examples, sizes, seed=0, split=Split(val=0.1, test=0.1), loading=Loading(10)
    )
    remote.setup()
    honest = recorded.answers["evaluate"]
    read = partial(metrics_of, remote, remote.examples.task_type, 0)
    expected = read(honest)
    try:
        found = read(unpack(pack(data.draw(mutated(honest)))))
    except MalformedError as error:
        assert shown(str(error))
        return
    for name in found.keys() & expected.keys():
        row = summary(joined_metrics([found[name]]))
        sent = float(found[name].values["loss"])  # not finite where a model diverged
        assert math.isfinite(row["loss"]) == math.isfinite(sent)
        assert math.isnan(row["accuracy"]) or 0 <= row["accuracy"] <= 1 + 1e-6
        most = sizes["val" if name in {"val", "personal_val"} else "test"][0]
        assert 0 < found[name].num_examples <= most


def test_a_state_is_written_nowhere_else(recorded, tmp_path):
    facts, trees = recorded.requests["train"]
    position = [f"../../../../{tmp_path}/x", 0, 1]
    with pytest.raises(MalformedError, match="position"):
        recorded.nodes.clients[0].answer(pack(Message({**facts, "position": position}, trees)))
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("sizes", {"train": 2**31, "val": 0, "test": 0}, "sizes.train: Input should be less"),
        ("client", -1, "client: Input should be greater"),
        ("client", True, "client: Input should be a valid integer"),
        ("flfast", "\x1b[31m" * 9999, "flfast is"),
        ("settings", {"\x1b[31m" * 9999: "x"}, "not the server's"),
        ("examples", None, "examples: "),
    ],
)
def test_a_greeting_out_of_range_is_a_line_before_round_1(
    tmp_path, recorded, field, value, reason
):
    facts = recorded.answers.get("greeting", Message({})).facts
    changed = pack(Message({**facts, field: value}))

    def between(node, _, answer):
        return changed if node == "node-0" else answer

    nodes = Nodes(recorded.nodes.words, 2, tmp_path, between=between)
    nodes.clients = recorded.nodes.clients
    with pytest.raises(ConfigError) as raised:
        serve(*nodes.words, num_clients=2, network=nodes, folder=tmp_path / "server")
    assert reason in str(raised.value)
    assert "node-0" in str(raised.value)
    assert all(shown(line) for line in str(raised.value).splitlines())
    assert not (tmp_path / "server").exists()


def with_upload(change):
    def changed(message):
        upload = change(message.trees["upload"])
        return message._replace(trees={**message.trees, "upload": upload})

    return changed


def with_facts(**facts):
    return lambda message: message._replace(facts={**message.facts, **facts})


def with_values(**values):
    """Metrics of all sets of an evaluation, changed."""

    def changed(message):
        sets = message.facts["sets"]
        found = {
            name: {**one, "values": {**one["values"], **values}} for name, one in sets.items()
        }
        return with_facts(sets=found)(message)

    return changed


def with_counts(**counts):
    def changed(message):
        sets = {name: {**one, **counts} for name, one in message.facts["sets"].items()}
        return with_facts(sets=sets)(message)

    return changed


def filled(value):
    return with_upload(lambda upload: tree_map(lambda leaf: torch.full_like(leaf, value), upload))


TRAIN = {
    "a heavy client": with_facts(weight=1e39),
    "a client that is the model": with_facts(weight=1e30),
    "a weight that is not its count": with_facts(weight=7.0),
    "too many examples": with_facts(num_examples=10**6, weight=1e6),
    "a tensor as upload": with_upload(lambda _: torch.zeros(3)),
    "leaves as dicts": with_upload(lambda upload: {"params": {"w": upload}, "buffers": {}}),
    "large numbers": filled(3e38),
    "content of bf16": lambda message: message._replace(
        trees={**message.trees, "message": {"content": torch.zeros(3, dtype=torch.bfloat16)}}
    ),
    "an endless loss": with_facts(loss_sum=1e300),
    "an escape": lambda _: "\x1b[2J" + "x" * 100_000,
}
EVALUATE = (
    with_values(accuracy=99.0),
    with_values(accuracy=-5.0),
    with_values(accuracy=math.inf),
    with_values(more=1.0),
    with_counts(num_examples=2**40, weight=2.0**40),
    with_counts(weight=1e300),
    with_counts(headline="loss"),
    lambda message: Message({"sets": {"val": {}}}),
    lambda message: Message({"sets": []}),
    lambda _: "\x1b[2J" + "x" * 100_000,
)


def hostile(node, request, answer):
    """Client k has the k-th of these answers, in all rounds; the last two are honest."""
    k = int(node.removeprefix("node-"))
    changes = {"train": [*TRAIN.values()], "evaluate": EVALUATE}.get(request.facts["kind"], ())
    if k >= len(changes):
        return answer
    found = changes[k](unpack(answer))
    return found if isinstance(found, str) else pack(found)


def silent(node, request, answer):
    k = int(node.removeprefix("node-"))
    return None if k < len(TRAIN) and request.facts["kind"] != "greeting" else answer


@pytest.mark.slow
def test_hostile_clients_are_as_if_they_were_lost(tmp_path):
    num = len(TRAIN) + 2
    deployed(tmp_path / "hostile", "rounds=1", num=num, between=hostile)
    deployed(tmp_path / "lost", "rounds=1", num=num, between=silent)
    found, expected = (weights(tmp_path / name / "server") for name in ("hostile", "lost"))
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    row, other = (
        read_history(tmp_path / name / "server" / "metrics.csv")[-1]
        for name in ("hostile", "lost")
    )
    for column in other:
        if column.startswith(("train/loss", "val/", "local/")):
            assert row[column] == other[column] and math.isfinite(float(row[column])), column
    rows = rows_of(tmp_path / "hostile")
    for k, case in enumerate(TRAIN):
        status = "lost" if case == "an escape" else "rejected"
        assert rows[1, k]["status"] == status and shown(rows[1, k]["reason"]), case
    log = (tmp_path / "hostile" / "server" / "train.log").read_text()
    assert "\x1b" not in log and max(map(len, log.splitlines())) < 1000


@pytest.mark.parametrize("sizes", ["[16, 16]", "[16, 16, 16]"], ids=["large", "nan"])
def test_a_model_that_has_diverged_is_measured_as_in_the_simulator(tmp_path, sizes):
    words = ("model=mlp", f"model.hidden={sizes}", "rounds=1", "optimizer.lr=5e13")
    words = (*words, "local_epochs=null", "local_steps=1")
    deployed(tmp_path, *words)
    simulated(tmp_path, *words)
    row, expected = (
        read_history(tmp_path / name / "metrics.csv")[-1] for name in ("server", "sim")
    )
    names = [name for name in expected if name.startswith(("val/", "local/", "train/loss"))]
    assert {"val/loss", "val/accuracy", "local/loss", "local/accuracy"} <= {*names}
    for name in (name for name in names if not name.endswith("/auc")):  # no mean over examples
        value, other = float(row[name]), float(expected[name])
        assert value == pytest.approx(other, nan_ok=True, rel=1e-6), name
    assert not float(expected["local/loss"]) < 1e30


@pytest.mark.slow
@pytest.mark.parametrize("name", ["central", "dp_ftrl"])
def test_the_server_clips_what_arrives(tmp_path, name):
    """An upload that is not clipped counts as one that is; others are those of the simulator."""
    noise = "privacy.epsilon=null", "privacy.noise_multiplier=1.0", "sampler=cyclic"
    words = f"privacy={name}", *noise, "privacy.clip_norm=0.05", "rounds=1"
    longer = with_upload(lambda upload: tree_map(lambda leaf: 1e6 * leaf, upload))

    def between(node, request, answer):
        concerned = request.facts["kind"] == "train" and node == "node-0"
        return pack(longer(unpack(answer))) if concerned else answer

    deployed(tmp_path, *words, between=between)
    simulated(tmp_path, *words)
    found, expected = (weights(tmp_path / name) for name in ("server", "sim"))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert rows_of(tmp_path)[1, 0]["reason"] == "clipped"


@given(
    values=st.lists(st.floats(-1e6, 1e6, width=32), min_size=6, max_size=6),
    dtype=st.sampled_from((torch.float32, torch.float64, torch.bfloat16, torch.float16)),
    limit=st.floats(1e-3, 1e3),
)
def test_what_a_client_has_clipped_is_not_clipped_again(values, dtype, limit):
    upload = {
        "params": {"w": torch.tensor(values, dtype=torch.float64).clamp(-6e4, 6e4).to(dtype)}
    }
    channel = Channel(privacy=replace(CENTRAL, clip_norm=limit))
    upload, is_clipped = clipped(upload, (), limit)
    sent = SENT._replace(upload=upload, weight=1.0, is_clipped=is_clipped)
    expected = tree_map(lambda leaf: leaf.to("meta"), upload)
    arrival = ServerSide(Algorithm("fedavg"), channel).from_outside(
        Sender(0, 1), sent, expected, 5
    )
    assert arrival.upload is upload and arrival.reason == ("clipped" if is_clipped else "")


def test_a_stranger_who_does_not_greet_is_left_out(tmp_path, caplog):
    nodes = Nodes(words_of("rounds=1"), 2, tmp_path)
    nodes.names.append("node-9")
    nodes.clients.append(nodes.client(1))
    nodes.between = lambda node, _, answer: b"\x1b[31m" if node == "node-9" else answer
    serve(*nodes.words, num_clients=2, network=nodes, folder=tmp_path / "server")
    assert "node-9: no message of flfast: SafetensorError; it is left out" in caplog.text
