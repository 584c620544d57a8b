"""`flfast.run` in programs of their own: ranks, Hydra apps, Ctrl-C."""

import os
import runpy
import signal
import time
from functools import partial
from itertools import product

import pytest
from sampling import others_slow
from tables import assert_same_numbers, rows, timeless

import flfast
from flfast.output.results.outcome import outcome

QUICK = "'rounds=2', 'local_epochs=1', 'batch_size=100', 'engine=eager', 'callbacks=none'"


def program(start, folder, text, *arguments):
    """Start a script as `python script.py` would, in a fork."""
    path = folder / "script.py"
    path.write_text(text)
    return start(partial(runpy.run_path, str(path), run_name="__main__"), *arguments)


RANKS = f"""
import flfast, torch
from torch import nn

class Net(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.fc = nn.Linear(64, num_classes)

    def forward(self, x):
        return self.fc(x.flatten(1))

if __name__ == "__main__":
    torch.manual_seed(3)
    net = Net(10)
    for name, devices in (("one", 1), ("two", 2)):
        words = ({QUICK}, f"trainer.devices={{devices}}", "callbacks=files")
        words = (*words, "callbacks.curves=null", "callbacks.partition_report=null")
        run = flfast.run(*words, folder=name, model=net)
        assert len(run.history) == 3
        assert torch.isfinite(run.model(torch.zeros(2, 1, 8, 8))).all()
        assert not torch.equal(run.model.fc.weight, net.fc.weight)
    try:
        flfast.run(*words, "threads=2", folder="spawned", model=lambda num_classes: net)
    except flfast.ConfigError as error:
        print(error)
"""


@pytest.mark.slow
def test_ranks_of_a_script_give_the_numbers_of_one_process(start, tmp_path):
    command = program(start, tmp_path, RANKS)
    code, errors = command.end()
    assert code == 0, errors
    one, two = (rows(command.folder / name) for name in ("one", "two"))
    assert two[1]["plan/strategy"] == "ddp/clients"
    assert_same_numbers(two, one)
    refusal = (command.folder / "stdout").read_text().strip().splitlines()[-1]
    assert "model=__main__.<lambda>: cannot be pickled for ranks that are spawned" in refusal


APP = f"""
import hydra, flfast
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import OmegaConf

@hydra.main(version_base="1.2", config_path=None)
def app(config):
    before = HydraConfig.get().runtime.output_dir, GlobalHydra.instance().hydra
    version = hydra.version.getbase()
    run = flfast.run({QUICK}, "trainer.devices=1", f"seed={{config.seed}}", folder="nested")
    assert (HydraConfig.get().runtime.output_dir, GlobalHydra.instance().hydra) == before
    assert hydra.version.getbase() == version
    assert len(run.history) == 3

app()
"""


@pytest.mark.slow
def test_a_run_inside_another_hydra_app(start, tmp_path, flfast_run):
    command = program(start, tmp_path, APP, "+seed=4", "hydra.run.dir=app")
    code, errors = command.end()
    assert code == 0, errors
    words = ("rounds=2", "local_epochs=1", "batch_size=100", "engine=eager", "callbacks=none")
    assert timeless(command.folder / "nested") == timeless(flfast_run(*words, "seed=4"))


STOPPED = """
import signal, flfast
words = ("rounds=9999", "local_epochs=1", "callbacks=none", "eval_every=9999", "trainer.devices=1")
before = signal.getsignal(signal.SIGINT)
try:
    flfast.run(*words, "model=logistic", folder="run")
except flfast.RunStopped as stopped:
    assert isinstance(stopped, KeyboardInterrupt)
    assert signal.getsignal(signal.SIGINT) is before
    print(stopped)
"""


@pytest.mark.slow
def test_ctrl_c_ends_a_run_after_its_round_with_a_checkpoint(start, tmp_path):
    command = program(start, tmp_path, STOPPED)
    table = command.folder / "run" / "metrics.csv"
    end = time.monotonic() + 120
    while not (table.exists() and table.read_text().count("\n") > 3):
        assert time.monotonic() < end
        time.sleep(0.05)
    os.kill(command.pid, signal.SIGINT)
    code, errors = command.end()
    assert code == 0, errors
    assert "'resume=auto', folder='" in (command.folder / "stdout").read_text()
    assert list((command.folder / "run" / "checkpoints").iterdir())
    done = int(rows(command.folder / "run")[-1]["round"])
    words = (f"rounds={done + 1}", "local_epochs=1", "callbacks=none", "eval_every=9999")
    words = (*words, "trainer.devices=1", "model=logistic", "resume=auto")
    again = flfast.run(*words, folder=command.folder / "run")
    assert list(again.history["round"]) == list(range(done + 2))


LOOP = """
import os, signal, sys
import flfast
from torch import nn

name, moment, *handled = sys.argv[1:]
signal.signal(signal.SIGINT, signal.default_int_handler)  # jobs of a background shell ignore it
if handled:
    signal.signal(getattr(signal, name), lambda *_: print("told") or sys.exit(5))

def net(num_classes):
    if moment == "setup":
        os.kill(os.getpid(), getattr(signal, name))
    return nn.Sequential(nn.Flatten(), nn.Linear(64, num_classes))

sends = "+callbacks.sends._target_=ranks_that_fail.Signals"
words = ("local_epochs=1", "batch_size=100", "engine=eager", "trainer.devices=1")
words = (*words, "rounds=1", "callbacks=none", "partition.num_clients=2", sends)
words = (*words, f"+callbacks.sends.name={name}", f"+callbacks.sends.moment={moment}")
for seed in (1, 2):
    flfast.run(*words, f"seed={seed}", folder=f"run-{seed}", model=net)
    print("went on")
"""
NAMES = ("SIGTERM", "SIGINT", "SIGUSR1")
MOMENTS = ("setup", "1", "end")


CASES = [
    case
    for case in product(NAMES, MOMENTS, (False, True))
    if case[0] != "SIGUSR1" or not case[2]  # such a handler stays while the run lasts
]
QUICK_CASES = [("SIGINT", "end", True)]


@pytest.mark.parametrize(("name", "moment", "handled"), others_slow(CASES, QUICK_CASES))
def test_a_signal_that_comes_too_late_for_a_run_reaches_the_program(
    start, tmp_path, name, moment, handled
):
    """The program does what the signal would have made it do between its runs."""
    command = program(start, tmp_path, LOOP, name, moment, *["handled"] * handled)
    code, errors = command.end()
    said = (command.folder / "stdout").read_text()
    served = moment == "setup"  # by `RunStopped`, before round 1
    assert outcome(command.folder / "run-1") == ("stopped" if served else "finished"), errors
    assert not (command.folder / "run-2").exists()
    assert "went on" not in said
    assert ("told" in said) is (handled and not served)
    usual = 5 if handled else -getattr(signal, name)
    # Such an exception ends a program.
    assert code == (1 if served or (name == "SIGINT" and not handled) else usual), errors
