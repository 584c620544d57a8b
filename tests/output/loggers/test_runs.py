"""Real runs that log to TensorBoard, W&B and MLflow; a resumed run continues the same record."""

import os
import shutil
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest

from flfast import train

# Forked runs inherit that warnings are errors; those of other libraries are not ours.
pytestmark = pytest.mark.filterwarnings("ignore")
TINY = ("batch_size=100", "local_epochs=1", "trainer.devices=1", "engine=eager", "callbacks=quiet")
RANKS = ("strategy=ddp", "trainer.devices=2")
ROUNDS = [0, 1, 2, 3]


@pytest.fixture
def record(start):
    """Train two rounds and then, resumed, a third one; returns the run folder."""

    def record(logger, *overrides):
        for rounds in (2, 3):
            words = (f"logger={logger}", f"rounds={rounds}", *TINY, *overrides)
            command = start(train.main, *words, "hydra.run.dir=run", "resume=auto")
            code, said = command.end()
            assert code == 0, said
        return command.folder / "run"

    return record


@pytest.mark.slow  # TensorBoard takes seconds to import
def test_tensorboard(record):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(record("tensorboard") / "tensorboard")).Reload()
    assert [event.step for event in events.Scalars("val/accuracy")] == ROUNDS


def records(path):
    """Records of a file that W&B wrote offline: a log of LevelDB after seven bytes."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, place, parts = path.read_bytes(), 7, b""
    while place + 7 <= len(data):
        left = 32768 - place % 32768
        if left < 7:  # a header never lies across blocks
            place += left
            continue
        length, kind = struct.unpack_from("<HB", data, place + 4)
        parts += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in {1, 4}:  # whole, or the last part
            yield Record.FromString(parts)
            parts = b""


@pytest.mark.slow
def test_wandb_offline(record):
    pytest.importorskip("wandb")
    folder = record("wandb", "logger.wandb.offline=true", *RANKS)
    found = [r for path in sorted(folder.glob("wandb/*run-*/*.wandb")) for r in records(path)]
    assert len({r.run.run_id for r in found if r.HasField("run")}) == 1
    rows = [{item.key or item.nested_key[0] for item in r.history.item} for r in found]
    assert sum("val/accuracy" in row for row in rows) == len(ROUNDS)


@pytest.mark.slow
def test_wandb_without_a_key_names_the_way_without_an_account(start, tmp_path):
    pytest.importorskip("wandb")
    env = {"HOME": str(tmp_path), "WANDB_API_KEY": "", "NETRC": str(tmp_path / "none")}
    command = start(train.main, "logger=wandb", "rounds=1", *TINY, env=env)
    code, said = command.end()
    assert code == 2
    (line,) = (line for line in said.splitlines() if "logger=wandb: UsageError" in line)
    assert "No API key" in line
    assert "logger.wandb.offline=true" in line


@pytest.fixture(scope="module")
def database(tmp_path_factory):
    """An empty MLflow database; this process has imported what opens it.

    MLflow takes seconds for either, which forked runs and the server then need not.
    """
    mlflow = pytest.importorskip("mlflow")
    path = tmp_path_factory.mktemp("mlflow") / "empty.db"
    mlflow.MlflowClient(f"sqlite:///{path}").search_experiments()
    return path


@pytest.fixture
def server(tmp_path, database):
    """Address of an MLflow server on SQLite."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    store = f"sqlite:///{shutil.copy(database, tmp_path / 'mlflow.db')}"
    words = ("server", "--backend-store-uri", store, "--port", str(port), "--workers", "1")
    with (tmp_path / "server.log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "mlflow", *words],
            stdout=log,
            stderr=log,
            cwd=tmp_path,
            env={**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"},
        )
    end = time.monotonic() + 120
    while time.monotonic() < end:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                break
        time.sleep(0.2)
    yield f"http://127.0.0.1:{port}"
    process.terminate()
    process.wait()


def tracked(uri):
    """Steps of a metric of each run in an MLflow store."""
    from mlflow import MlflowClient

    client = MlflowClient(uri)
    experiment = client.get_experiment_by_name("flfast")
    runs = client.search_runs([experiment.experiment_id])
    histories = [client.get_metric_history(run.info.run_id, "val/accuracy") for run in runs]
    return [sorted(metric.step for metric in history) for history in histories]


@pytest.mark.slow
@pytest.mark.usefixtures("database")
def test_mlflow_in_the_run_folder(record):
    folder = record("mlflow", *RANKS)
    assert tracked(f"sqlite:///{folder}/mlflow.db") == [ROUNDS]


@pytest.mark.slow
def test_mlflow_on_a_server(record, server):
    folder = record("mlflow", f"logger.mlflow.tracking_uri={server}")
    assert tracked(server) == [ROUNDS]
    assert not (Path(folder) / "mlflow.db").exists()
