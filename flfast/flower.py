"""Runs an experiment on real clients with Flower: its messages, nothing of its strategies.

    server.py:  app = flfast.flower.server_app("algorithm=scaffold", "rounds=20")
    client.py:  app = flfast.flower.client_app("algorithm=scaffold", "rounds=20")

`python -m flfast.flower init FOLDER key=value ...` writes such an app. Needs `flfast[flower]`.
"""

import argparse
import logging
import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flfast.config.errors import ConfigError
from flfast.state.extras import import_extra

if TYPE_CHECKING:
    from flwr.app import Context, Message
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp

log = logging.getLogger("flfast.flower")  # as `python -m`, too

_RECORD, _DATA, _ERROR = "flfast", "data", "error"
_POLL_S = 1.0
"""Seconds between two looks for answers and nodes."""
_DEFAULTS: Mapping[str, Any] = {"num-clients": 0, "folder": "", "settings": "", "timeout-s": 3600}


def client_app(*overrides: str) -> "ClientApp":
    """The app of every client.

    Its node's config has `client-id`, the client's number from 0; `folder`, for what the client
    keeps; and perhaps `settings`, further overrides of this node, such as `data.path=site.csv`.
    Overrides are as on the command line; those of the server.

    Raises:
        ValueError: if Flower is not installed.
    """
    app = import_extra("flwr.clientapp", extra="flower", by="flfast.flower").ClientApp()

    @app.train()
    def answer(message: "Message", context: "Context") -> "Message":
        from flwr.app import Message

        try:
            found: bytes | str = _answer(message, context, overrides)
        except ValueError as error:  # settings and messages; others are Flower's to tell
            found = str(error)
        return Message(_content(found), reply_to=message)

    return app


def _answer(message: "Message", context: "Context", overrides: Sequence[str]) -> bytes:
    from flfast.api.deployment import Client  # imports torch

    config = context.node_config
    if "client-id" not in config or "folder" not in config:
        raise ConfigError(
            "--node-config: has no client-id or no folder; allowed: "
            "--node-config 'client-id=0 folder=\"/var/lib/flfast\"'"
        )
    request = _bytes_of(message)
    if isinstance(request, str):
        raise ConfigError(request)
    settings = _words(str(config.get("settings", "")))
    client_id, folder = int(config["client-id"]), Path(str(config["folder"]))
    return Client(*overrides, *settings, client_id=client_id, folder=folder).answer(request)


def server_app(*overrides: str) -> "ServerApp":
    """The app of the server.

    The app's config has `num-clients`; `folder`, that of the run; `timeout-s`, the seconds after
    which a client's answer is not waited for; and perhaps `settings`, further overrides. Overrides
    are as on the command line.

    Raises:
        ValueError: if Flower is not installed.
    """
    app = import_extra("flwr.serverapp", extra="flower", by="flfast.flower").ServerApp()

    @app.main()
    def main(grid: "Grid", context: "Context") -> None:
        from flfast.api.deployment import serve  # imports torch

        config = {**_DEFAULTS, **context.run_config}
        num_clients, folder = int(config["num-clients"]), str(config["folder"])
        if num_clients < 1 or not folder:
            raise ConfigError(
                "[tool.flwr.app.config]: has no num-clients or no folder; allowed: "
                "--run-config 'num-clients=3 folder=\"/srv/run\"'"
            )
        logging.getLogger("httpx").setLevel(logging.WARNING)  # a line for each look at messages
        network = GridNetwork(grid, timeout_s=float(config["timeout-s"]))
        network.wait_for(num_clients)
        words = [*overrides, *_words(str(config["settings"]))]
        serve(*words, num_clients=num_clients, network=network, folder=folder)
        log.info("finished: %s", folder)

    return app


class GridNetwork:
    """Asks nodes by Flower's messages; see `Network` in `api/deployment.py`."""

    def __init__(self, grid: "Grid", *, timeout_s: float) -> None:
        self._grid, self._timeout_s = grid, timeout_s

    def wait_for(self, num: int) -> None:
        """Wait until so many nodes are there.

        Raises:
            ConfigError: if they do not come in time.
        """
        end, said = time.monotonic() + self._timeout_s, -1
        while len(found := self.nodes()) < num:
            if len(found) != said:
                said = len(found)
                log.info("%d of %d nodes are here", said, num)
            if time.monotonic() > end:
                raise ConfigError(f"{len(found)} of {num} nodes came in {self._timeout_s:g} s")
            time.sleep(_POLL_S)

    def nodes(self) -> Sequence[str]:
        """See `Network`."""
        return sorted(map(str, self._grid.get_node_ids()))

    def ask(self, requests: Mapping[str, bytes]) -> Iterator[tuple[str, bytes | str]]:
        """See `Network`."""
        from flwr.app import Message

        start = time.monotonic()
        end = start + self._timeout_s
        waiting: dict[str, str] = {}
        for node, data in requests.items():  # one by one: SuperLinks bound what is sent at once
            message = Message(
                _content(data), dst_node_id=int(node), message_type="train", ttl=self._timeout_s
            )
            (number,) = self._grid.push_messages([message])
            if number:
                waiting[number] = node
            else:
                yield node, "the message was not accepted"
        while waiting and time.monotonic() < end:
            for reply in self._grid.pull_messages(list(waiting)):
                found = waiting.pop(reply.metadata.reply_to_message_id, None)
                if found is not None:  # otherwise a second answer
                    yield found, _bytes_of(reply)
            if waiting:
                time.sleep(_POLL_S)
        num, seconds = len(requests), time.monotonic() - start
        log.info("%d of %d nodes answered in %.0f s", num - len(waiting), num, seconds)
        for node in waiting.values():
            yield node, f"no answer in {self._timeout_s:g} s"


def _words(settings: str) -> list[str]:
    """Settings with spaces between them; within quotes, which stay, a space is a part of a value.

    >>> _words("threads=2 data.path='/srv/site 0.csv'")
    ['threads=2', "data.path='/srv/site 0.csv'"]
    """
    return re.findall(r"""(?:[^\s"']|"[^"]*"|'[^']*'|["'])+""", settings)


def _content(content: bytes | str) -> Any:
    """A message's content: bytes as an array, which Flower sends in chunks; or an error's text."""
    from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

    if isinstance(content, str):
        return RecordDict({_RECORD: ConfigRecord({_ERROR: content})})
    array = Array(dtype="uint8", shape=(len(content),), stype=_RECORD, data=content)
    return RecordDict({_RECORD: ArrayRecord({_DATA: array})})


def _bytes_of(message: "Message") -> bytes | str:
    """The bytes of a message, or why there are none. Nothing of it is deserialized here."""
    from flwr.app import ArrayRecord, ConfigRecord

    if message.has_error():
        return f"error {message.error.code}: {message.error.reason}"
    record = message.content.get(_RECORD)
    if isinstance(record, ConfigRecord) and isinstance(record.get(_ERROR), str):
        return str(record[_ERROR])[:1000]
    if isinstance(record, ArrayRecord) and _DATA in record:
        return bytes(record[_DATA].data)
    return "no message of flfast"


_PYPROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "{name}"
version = "1.0.0"
dependencies = ["flfast[flower]"]

[tool.hatch.build.targets.wheel]
packages = ["app"]

[tool.flwr.app]
publisher = "{name}"

[tool.flwr.app.components]
serverapp = "app.server:app"
clientapp = "app.client:app"

[tool.flwr.app.config] # change them with: flwr run . NAME --run-config 'num-clients=5'
num-clients = 3
folder = "{folder}" # of the run, on the server
timeout-s = 3600 # seconds after which a client's answer is not waited for
settings = "" # of the server alone, such as "resume=auto"
"""
_SETTINGS = '''"""Settings of server and clients, as of `python -m flfast.train`."""

SETTINGS = (
{words})
'''
_APP = '''"""The {side} of the experiment."""

from app.settings import SETTINGS

from flfast.flower import {side}_app

app = {side}_app(*SETTINGS)
'''


def init(folder: Path, words: Sequence[str]) -> None:
    """Write the app of an experiment.

    Raises:
        ConfigError: if the folder is not empty, or a setting cannot be run on real clients.
    """
    from flfast.api.deployment import checked

    checked(words)
    if folder.exists() and any(folder.iterdir()):
        raise ConfigError(f"{folder}: is not empty; allowed: a new folder")
    (folder / "app").mkdir(parents=True)
    name = re.sub("[^A-Za-z0-9]+", "-", folder.resolve().name).strip("-") or "app"
    run = folder.resolve() / "run"
    texts = {
        "pyproject.toml": _PYPROJECT.format(name=name, folder=run.as_posix()),
        "app/__init__.py": '"""An experiment of flfast on real clients."""\n',
        "app/settings.py": _SETTINGS.format(words="".join(f"    {word!r},\n" for word in words)),
        **{f"app/{side}.py": _APP.format(side=side) for side in ("server", "client")},
    }
    for file, text in texts.items():
        (folder / file).write_text(text, encoding="utf-8")
    sys.stdout.write(f"{folder}: wrote {', '.join(texts)}\n")


def main() -> None:
    """Run the command. Exit code 2 for a wrong setting."""
    parser = argparse.ArgumentParser(prog="python -m flfast.flower", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("init", help="write the app of an experiment")
    one.add_argument("folder", type=Path, help="a new folder")
    one.add_argument("settings", nargs="*", help="as of python -m flfast.train")
    given = parser.parse_args()
    try:
        init(given.folder, given.settings)
    except (ConfigError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(2)


if __name__ == "__main__":
    main()
