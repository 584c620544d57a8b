"""Three nodes on one machine: SuperLink and SuperNodes as processes, with TLS and authentication.

    python examples/flower/local.py FOLDER algorithm=scaffold rounds=3
    python examples/flower/local.py FOLDER --kill 1 ...    # node 1 is killed in round 2
    python examples/flower/local.py FOLDER --node 0=data.path=/srv/0.csv --node 1=... ...

Settings are those of `python -m flfast.train`. The folder gets the app, keys, logs and the run.
All processes are gone afterwards. On several machines the same commands run there, see
docs/deployment.md; keys are made where they stay.
"""

import argparse
import datetime
import ipaddress
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

BIN = Path(sys.executable).parent
HOST = "127.0.0.1"
DAY = datetime.timedelta(days=1)
RESTART_S, MOST_RESTARTS = 5, 60
"""Pause before a node that ended is started again, and how often that is done."""


def write_key(path: Path, key: ec.EllipticCurvePrivateKey, form: PrivateFormat) -> None:
    """Write a private key that only its owner can read."""
    path.touch(mode=0o600)
    path.write_bytes(key.private_bytes(Encoding.PEM, form, NoEncryption()))


def write_certificates(folder: Path, host: str) -> None:
    """Write `ca.crt`, and `server.crt` and `server.key` of the SuperLink at an address."""
    now = datetime.datetime.now(datetime.timezone.utc)
    authority = ec.generate_private_key(ec.SECP384R1())

    def certificate(name: str, key: ec.EllipticCurvePrivateKey, *, ca: bool) -> x509.Certificate:
        def named(text: str) -> x509.Name:
            return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, text)])

        address = x509.IPAddress(ipaddress.ip_address(host))
        return (
            x509.CertificateBuilder()
            .subject_name(named(name))
            .issuer_name(named("flfast example CA"))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - DAY)
            .not_valid_after(now + DAY)
            .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName([address]), critical=False)
            .sign(authority, hashes.SHA256())
        )

    own = ec.generate_private_key(ec.SECP384R1())
    issued = {
        "ca": certificate("flfast example CA", authority, ca=True),
        "server": certificate(host, own, ca=False),
    }
    for name, found in issued.items():
        (folder / f"{name}.crt").write_bytes(found.public_bytes(Encoding.PEM))
    write_key(folder / "server.key", own, PrivateFormat.TraditionalOpenSSL)


def write_node_keys(folder: Path, number: int) -> None:
    """Write `node-K.key`, which stays with the node, and `node-K.pub`, which is registered."""
    key = ec.generate_private_key(ec.SECP384R1())
    write_key(folder / f"node-{number}.key", key, PrivateFormat.OpenSSH)
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    (folder / f"node-{number}.pub").write_bytes(public)


def free_ports(num: int) -> list[int]:
    """Ports that nobody listens on."""
    sockets = [socket.create_server((HOST, 0)) for _ in range(num)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def here(_: str) -> list[str]:
    """Words in front of a command that runs on this machine."""
    return []


class Deployment:
    """The processes of a deployment in a folder; each is the leader of a session of its own.

    Args:
        folder: for the app, keys and logs.
        num_nodes: number of SuperNodes.
        host: address of the SuperLink.
        on: words in front of the command of `superlink`, `app` or `node-K`, such as `ip netns`.
    """

    def __init__(
        self,
        folder: Path,
        num_nodes: int,
        host: str = HOST,
        on: Callable[[str], list[str]] = here,
    ) -> None:
        self.folder, self.num_nodes, self.host, self.on = folder, num_nodes, host, on
        self.restarts, self.settings = 0, dict[int, str]()
        self.port, *self.node_ports = free_ports(1 + num_nodes)
        self.environment = {
            **os.environ,
            "FLWR_HOME": str(folder / "home"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
        }
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, *command: str) -> None:
        """Start a process that writes to `NAME.log`."""
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [*self.on(name), *command],
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self.environment,
                start_new_session=True,
            )

    def register(self, number: int, timeout_s: float = 120) -> None:
        """Tell the SuperLink of a node's key, once it listens.

        Raises:
            CalledProcessError: if that fails for so long.
        """
        key = str(self.folder / f"node-{number}.pub")
        command = [*self.on("app"), "flwr", "supernode", "register", key, "lab"]
        end = time.monotonic() + timeout_s
        while True:
            late = time.monotonic() > end
            done = subprocess.run(command, env=self.environment, capture_output=True, check=late)
            if not done.returncode:
                return
            self.check()
            time.sleep(1)

    def start_server(self) -> None:
        """Start the SuperLink, and tell `flwr` of it."""
        self.start(
            "superlink",
            "flower-superlink",
            f"--ssl-ca-certfile={self.folder / 'ca.crt'}",
            f"--ssl-certfile={self.folder / 'server.crt'}",
            f"--ssl-keyfile={self.folder / 'server.key'}",
            f"--database={self.folder / 'superlink.db'}",
            *("--enable-supernode-auth", "--disable-runtime-dependency-installation"),
            *("--host", self.host, "--port", str(self.port)),
        )
        home = self.folder / "home"
        home.mkdir(exist_ok=True)
        (home / "config.toml").write_text(
            f'[superlink.lab]\naddress = "{self.host}:{self.port}"\n'
            f'root-certificates = "{self.folder / "ca.crt"}"\n'
        )

    def start_node(self, number: int) -> None:
        """Start a SuperNode, the client of that number."""
        kept, settings = self.folder / f"client-{number}", self.settings.get(number, "")
        config = f'client-id={number} folder="{kept}" settings="{settings}"'
        self.start(
            f"node-{number}",
            "flower-supernode",
            f"--root-certificates={self.folder / 'ca.crt'}",
            f"--auth-supernode-private-key={self.folder / f'node-{number}.key'}",
            *("--superlink", f"{self.host}:{self.port}", "--host", HOST),
            *("--port", str(self.node_ports[number]), "--node-config", config),
        )

    def check(self) -> None:
        """Start nodes again that have ended, as a service does; see to all other processes.

        A node that was killed is refused until the SuperLink has missed it for some time.

        Raises:
            RuntimeError: naming a process that ended, or a node that does not stay, and its log.
        """
        for name, process in list(self.processes.items()):
            if not process.poll():
                continue
            if not name.startswith("node-") or self.restarts > MOST_RESTARTS:
                raise RuntimeError(f"{name} ended: see {self.folder / f'{name}.log'}")
            self.restarts += 1
            time.sleep(RESTART_S)
            self.start_node(int(name.removeprefix("node-")))

    def kill(self, name: str) -> None:
        """Kill a process and all that it started, at once."""
        process = self.processes.pop(name)
        with suppress(psutil.NoSuchProcess):
            family = psutil.Process(process.pid)
            for member in (family, *family.children(recursive=True)):
                with suppress(psutil.NoSuchProcess):
                    member.kill()
        process.wait()

    def end(self) -> None:
        """End all processes."""
        for name in list(self.processes):
            self.kill(name)


@contextmanager
def deployed(deployment: Deployment, words: Sequence[str]) -> Iterator[None]:
    """Context in which the app, keys and nodes of a deployment are there."""
    folder = deployment.folder
    folder.mkdir(parents=True)
    write_certificates(folder, deployment.host)
    try:
        app = str(folder / "app")
        subprocess.run([sys.executable, "-m", "flfast.flower", "init", app, *words], check=True)
        deployment.start_server()
        for number in range(deployment.num_nodes):
            write_node_keys(folder, number)
            deployment.register(number)
            deployment.start_node(number)
        yield
    finally:
        deployment.end()


def run(
    deployment: Deployment, watch: Callable[[int], None] = lambda rows: None, timeout_s: int = 600
) -> None:
    """Run the app to its end; `watch` is told the number of rounds that are over, with round 0.

    Raises:
        CalledProcessError: if the app fails.
    """
    folder = deployment.folder / "run"
    config = {
        "num-clients": deployment.num_nodes,
        "folder": str(folder),
        "timeout-s": timeout_s,
    }
    values = " ".join(
        f'{key}="{value}"' if isinstance(value, str) else f"{key}={value}"
        for key, value in config.items()
    )
    app, table = deployment.folder / "app", folder / "metrics.csv"
    deployment.start("app", "flwr", "run", str(app), "lab", "--stream", "--run-config", values)
    process = deployment.processes["app"]
    while process.poll() is None:
        time.sleep(0.2)
        deployment.check()
        watch(table.read_text().count("\n") - 1 if table.exists() else 0)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, process.args)


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="a new folder")
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--node", action="append", default=[], help="K=SETTINGS of node K alone")
    parser.add_argument("--kill", type=int, help="a node that is killed in round 2")
    parser.add_argument("--timeout-s", type=int, default=600, help="seconds for one answer")
    given, words = parser.parse_known_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # ends all processes, too
    folder = given.folder.absolute()
    start, killed = time.monotonic(), list[int]()
    deployment = Deployment(folder, given.nodes)
    for text in given.node:
        number, _, settings = text.partition("=")
        deployment.settings[int(number)] = settings

    def watch(rows: int) -> None:
        if given.kill is not None and rows >= 2 and not killed:  # rounds 0 and 1 are over
            killed.append(given.kill)
            deployment.kill(f"node-{given.kill}")
            print(f"killed node {given.kill}", flush=True)
            deployment.start_node(given.kill)

    with deployed(deployment, words):
        run(deployment, watch, given.timeout_s)
    print(f"{folder / 'run'}: {time.monotonic() - start:.0f} s")


if __name__ == "__main__":
    main()
