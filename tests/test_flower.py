"""Flower's apps in this process, with its own messages; `.ci/flower` has the processes."""

import sys
import time

import pytest
import torch

import flfast
from flfast import flower
from flfast.channel.wire import Message, pack

flwr = pytest.importorskip("flwr.app")

SMALL = (
    *("engine=eager", "model=logistic", "rounds=2", "local_epochs=1", "eval_every=2"),
    *("partition.num_clients=2", "callbacks=files", "~callbacks.partition_report"),
)

GREETING = pack(Message({"kind": "greeting", "clients": 2}))


def metadata(node, reply_to=""):
    return flwr.Metadata(
        run_id=1,
        message_id=f"{node}-{time.monotonic_ns()}",
        src_node_id=1,
        dst_node_id=node,
        reply_to_message_id=reply_to,
        group_id="",
        created_at=time.time(),
        ttl=60.0,
        message_type="train",
    )


def context(node_config=(), run_config=()):
    return flwr.Context(
        run_id=1,
        node_id=1,
        node_config=dict(node_config),
        state=flwr.RecordDict(),
        run_config=dict(run_config),
    )


class Grid:
    """SuperLink and SuperNodes of this process: each message is answered when it is asked for."""

    def __init__(self, app, configs):
        self.app, self.configs, self.waiting = app, configs, {}

    def get_node_ids(self):
        return list(self.configs)

    def push_messages(self, messages):
        for message in messages:
            self.waiting[message.metadata.message_id] = message
        return [message.metadata.message_id for message in messages]

    def pull_messages(self, numbers):
        for number in numbers:
            message = self.waiting.pop(number, None)
            if message is not None:
                node = message.metadata.dst_node_id
                yield self.app(message, context(self.configs[node]))


@pytest.fixture
def messages(monkeypatch):
    """Messages can be made outside of a run of Flower."""

    def make(content, **kwargs):
        known = (
            {"metadata": metadata(kwargs["dst_node_id"])} if "dst_node_id" in kwargs else kwargs
        )
        return flwr.Message(content, **known)

    class Module:
        def __getattr__(self, name):
            return make if name == "Message" else getattr(flwr, name)

    monkeypatch.setitem(sys.modules, "flwr.app", Module())


@pytest.mark.slow
@pytest.mark.usefixtures("messages")
def test_the_apps_give_the_simulators_weights(tmp_path):
    configs = {
        10 + k: {"client-id": k, "folder": str(tmp_path / str(k)), "settings": "threads=1"}
        for k in range(2)
    }
    grid = Grid(flower.client_app(*SMALL), configs)
    settings = {"num-clients": 2, "folder": str(tmp_path / "server"), "timeout-s": 60}
    flower.server_app(*SMALL)(grid, context(run_config=settings))
    flfast.run(*SMALL, "strategy=single", folder=tmp_path / "sim")
    found, expected = (
        torch.load(tmp_path / name / "model.pt", weights_only=True) for name in ("server", "sim")
    )
    assert all(torch.equal(found[name], expected[name]) for name in expected)


@pytest.mark.parametrize(
    ("config", "words", "asked", "message"),
    [
        ({}, (), GREETING, "--node-config: has no client-id or no folder"),
        (
            {"client-id": 0, "folder": "x"},
            ("faults=simulated",),
            GREETING,
            "only a simulation has",
        ),
        ({"client-id": 0, "folder": "x"}, (), b"noise", "no message of flfast"),
        ({"client-id": 2, "folder": "x"}, (), GREETING, "client 2 of 2 clients"),
    ],
)
def test_what_a_client_refuses_is_its_answer(config, words, asked, message):
    content = flower._content(asked)
    message_in = flwr.Message(content, metadata=metadata(1))
    answer = flower.client_app(*SMALL, *words)(message_in, context(config))
    assert message in flower._bytes_of(answer)


def test_a_server_without_a_folder_is_refused():
    with pytest.raises(flfast.ConfigError, match="has no num-clients or no folder"):
        flower.server_app(*SMALL)(Grid(None, {}), context())


def test_the_app_that_is_written_is_one(tmp_path, monkeypatch, capsys):
    folder = tmp_path / "my app"
    monkeypatch.setattr(sys, "argv", ["flower", "init", str(folder), *SMALL])
    flower.main()
    assert "wrote pyproject.toml" in capsys.readouterr().out
    monkeypatch.syspath_prepend(folder)
    from app import client, server

    assert type(client.app).__name__ == "ClientApp"
    assert type(server.app).__name__ == "ServerApp"
    with pytest.raises(SystemExit, match="2"):
        flower.main()  # the folder is there
    assert "is not empty" in capsys.readouterr().err
