"""Arguments of Python users that cannot be run: one message, which names the argument."""

import multiprocessing
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from sampling import others_slow
from torch import nn

import flfast
from flfast.algorithms.contract import Algorithm
from flfast.algorithms.fedavg import fedavg
from flfast.config.command_line import check_environment
from flfast.state.environment import LEAST, integer

INPUTS, TARGETS = torch.randn(60, 5), torch.arange(60) % 3
FRAME = pd.DataFrame(INPUTS.numpy(), columns=list("abcde")).assign(y=TARGETS.numpy())


class Net(nn.Module):
    """A model whose forward in training mode is `train`."""

    def __init__(self, train=None):
        super().__init__()
        self.fc, self.train_forward = nn.Linear(5, 3), train

    def forward(self, x):
        out = self.fc(x)
        return self.train_forward(self, out) if self.training and self.train_forward else out


class MetaBuffer(Net):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(3, device="meta"))


class Data(torch.utils.data.Dataset):
    """Raises at index 17."""

    def __len__(self):
        return 60

    def __getitem__(self, index):
        if index == 17:
            raise OSError("cut off")
        return INPUTS[index], int(TARGETS[index])


class NoLength(Data):
    def __len__(self):
        raise RuntimeError("not yet")


def raising(_net, _out):
    raise RuntimeError("in training only")


def in_place(_net, out):
    out = torch.sigmoid(out)
    out.mul_(2)
    return out


def compiled_in_place():
    net = Net()
    net.compile()
    return net


def not_a_number():
    net = Net()
    nn.init.constant_(net.fc.bias, float("nan"))
    return net


WORDS = [
    (({"rounds": 3},), {}, 'of type dict; allowed: texts, "rounds=3"'),
    (({"optimizer": {"lr": None}},), {}, 'allowed: texts, "optimizer.lr=null"'),
    ((["rounds=3"],), {}, "is of type list; allowed: texts, such as 'rounds=5'"),
    ((3,), {}, "3 is of type int; allowed: texts"),
    (("",), {}, "'' is no setting"),
    (("rounds",), {}, "'rounds' is no setting"),
    ((), {"rounds": 3}, 'rounds=: no argument of flfast.run, and settings are texts; write "rou'),
    ((), {"optimizer.lr": 0.1}, 'write "optimizer.lr=0.1"'),
    ((), {"foldr": "x"}, "did you mean folder=?"),
    ((), {"folder": 3}, "folder=3: allowed: a path"),
    ((), {"folder": ""}, "folder='': allowed: a path"),
    ((), {"folder": "a\0b"}, "folder='a\\x00b': allowed: a path"),
    ((), {"model": "mlp"}, "model='mlp' is a text, not an object; write \"model=mlp\""),
    ((), {"data": "mnist"}, 'write "data=mnist"'),
    ((), {"algorithm": "fedprox"}, 'write "algorithm=fedprox"'),
    ((), {"test_data": "mnist"}, "test_data='mnist' is a text, not an object; allowed: examples"),
]
DATA = [
    ({}, "data= is of type dict; allowed: (inputs, targets)"),
    (dict, "data=builtins.dict: gives a dict; allowed: an Examples"),
    (lambda: None, "gives a NoneType; allowed: an Examples of flfast"),
    (lambda: 1 / 0, "ZeroDivisionError: division by zero"),
    ((INPUTS, None), "data=: targets: NoneType; allowed: integers from 0"),
    ((INPUTS.to_sparse(), TARGETS), "data=: inputs: torch.sparse_coo; allowed: dense"),
    ((INPUTS, TARGETS.to_sparse()), "data=: targets: torch.sparse_coo; allowed: dense"),
    ((INPUTS.to("meta"), TARGETS), "data=: inputs: on the device meta; allowed: dense"),
    ((INPUTS, TARGETS.to("meta")), "data=: targets: on the device meta; allowed: dense"),
    ((INPUTS[:, :0], TARGETS), "data=: an input has shape [0]"),
    (Data(), "data=: item 17: OSError: cut off"),
    (NoLength(), "data=: its length: RuntimeError: not yet"),
]
FRAMES = [
    (FRAME.set_axis(list("aabcdy"), axis=1), {"target": "y"}, "column a is there twice"),
    (FRAME[["y"]], {"target": "y"}, "an input has shape [0]"),
    (FRAME, {"target": ["y"]}, "target=['y']: allowed: the name of one column"),
    (FRAME, {"target": "y", "client": "y"}, "target and client are both 'y'; allowed: two"),
]
MODELS = [
    (lambda: nn.Linear(5, 3, device="meta"), ": weight is on meta; allowed: cpu"),
    (MetaBuffer, ": mean is on meta; allowed: cpu"),
    (lambda: torch.jit.script(nn.Linear(5, 3)), "compiled by torch.jit; allowed: the nn.Module"),
    (lambda: torch.jit.trace(Net(), INPUTS[:2]), "compiled by torch.jit; allowed: the nn.Module"),
    (lambda: torch.compile(Net()), "compiled by torch.compile; allowed: the nn.Module itself"),
    (compiled_in_place, "compiled by torch.compile; allowed: the nn.Module itself"),
    (not_a_number, "fc.bias has NaN or infinity; allowed: finite weights"),
    (lambda: Net(raising), "training mode, inputs of shape [5]: model="),
    (lambda: Net(raising), "RuntimeError: in training only\n"),
    (lambda: Net(in_place), "modified by an inplace operation"),
    (lambda: Net(lambda net, out: None), "gives a NoneType for 2 examples; it must give logits"),
    (lambda: Net(lambda net, out: (out,)), "gives a tuple for 2 examples; it must give logits"),
    (lambda: Net(lambda net, out: out.detach()), "the outputs have no gradient"),
]
MADE = [(*case, by) for case in MODELS for by in ("module", "function")]
ALGORITHMS = [
    (lambda: None, "gives a NoneType; allowed: an Algorithm of flfast"),
    (lambda: 1 / 0, "ZeroDivisionError: division by zero"),
    (lambda steps: None, "missing 1 required positional argument: 'steps'"),
    (
        lambda: Algorithm("bare", server_state=lambda weights: {"buffers": {}}),
        "its server state has no params; allowed: the initial weights beside what it adds",
    ),
    (fedavg, "fedavg() missing 1 required keyword-only argument: 'weighting'"),
]
SURROUNDINGS = [
    (torch.inference_mode, "inside torch.inference_mode(): nothing can be trained"),
    (lambda: torch.autocast("cpu"), "inside torch.autocast()"),
    (lambda: torch.device("meta"), "torch's default device is meta; allowed: cpu"),
]
ENVIRONMENTS = [
    *(
        ({name: value}, f"{name}={value}: must be an integer >= ")
        for name in LEAST
        for value in ("x", "-1", "", "1.5", "²")
    ),
    ({"RANK": "5", "WORLD_SIZE": "2"}, "RANK=5 with WORLD_SIZE=2: must be less than WORLD_SIZE"),
    ({"RANK": "0", "WORLD_SIZE": "1"}, "MASTER_ADDR is missing"),
]


@pytest.fixture
def refusal(quick):
    """The message of a run that is refused."""

    def refusal(*overrides, **given):
        with pytest.raises(flfast.ConfigError) as raised:
            quick(*overrides, **given)
        return str(raised.value)

    return refusal


@pytest.mark.parametrize(("overrides", "given", "message"), WORDS)
def test_arguments_that_are_none_are_named(refusal, tmp_path, overrides, given, message):
    assert message in refusal(*overrides, **given)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("data", "message"), DATA)
def test_data_that_cannot_be_read_are_named(quick, data, message):
    with pytest.raises(flfast.ConfigError, match=re.escape(message)):
        quick(data=data, model=Net())


@pytest.mark.parametrize(("frame", "columns", "message"), FRAMES)
def test_columns_that_cannot_be_read_are_named(refusal, frame, columns, message):
    assert message in refusal(data=frame, **columns)


@pytest.mark.filterwarnings("ignore:.*torch.jit")
@pytest.mark.parametrize(("make", "message", "by"), others_slow(MADE, MADE[::4] + MADE[3::4]))
def test_models_that_cannot_be_trained_are_named(refusal, make, message, by):
    given = make() if by == "module" else lambda: make()
    words = ("partition.num_clients=4",)
    assert message in refusal(*words, data=(INPUTS, TARGETS), model=given)


def test_lazy_layers_need_a_function_or_a_batch(quick, refusal):
    words, data = ("partition.num_clients=4",), (INPUTS, TARGETS)
    lazy = nn.Sequential(nn.LazyLinear(3))
    assert "0.weight has no values yet" in refusal(*words, data=data, model=lazy)
    unused = lambda: nn.ModuleDict({"never": nn.LazyLinear(3)})  # noqa: E731
    assert "model=" in refusal(*words, data=data, model=unused)
    quick(*words, data=data, model=lambda: nn.Sequential(nn.LazyLinear(3)))
    lazy(INPUTS)
    quick(*words, data=data, model=lazy)


@pytest.mark.parametrize(("make", "message"), ALGORITHMS)
def test_algorithms_that_are_none_are_named(refusal, make, message):
    found = refusal(algorithm=make)
    assert found.startswith("algorithm=")
    assert message in found


@pytest.mark.parametrize(("context", "message"), SURROUNDINGS)
def test_modes_of_torch_that_change_a_run_are_refused(refusal, tmp_path, context, message):
    with context():
        assert message in refusal()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_another_default_dtype_is_refused(refusal, dtype):
    torch.set_default_dtype(dtype)
    try:
        assert f"torch's default dtype is {dtype}; allowed: torch.float32" in refusal()
    finally:
        torch.set_default_dtype(torch.float32)


def test_gradients_may_be_off(quick):
    first = quick(folder="a")
    with torch.no_grad():
        second = quick(folder="b")
    columns = ["global/loss", "global/accuracy", "train/loss"]
    assert first.history[columns].equals(second.history[columns])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("strategy=ddp", "trainer.devices=2"), "trainer.devices=2 in a daemonic process"),
        (("loader.num_workers=1",), "loader.num_workers=1 in a daemonic process"),
    ],
)
def test_a_daemonic_process_cannot_start_others(refusal, monkeypatch, words, message):
    monkeypatch.setitem(multiprocessing.process.current_process()._config, "daemon", 1)
    assert message in refusal(*words)


@pytest.mark.parametrize(("variables", "message"), ENVIRONMENTS)
def test_an_environment_of_no_launcher_is_named(refusal, monkeypatch, variables, message):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(flfast.ConfigError, match=re.escape(message)):
        check_environment()
    if "RANK" in variables:  # and a run asks
        assert message in refusal()
    for name, value in variables.items():  # as do all places that read it
        if not value.isdecimal() or not value.isascii():
            with pytest.raises(ValueError, match=re.escape(message)):
                integer(name, 1)


@pytest.mark.parametrize("folder", ["nowhere", ".", 3, None, [], "a\0b"])
def test_a_folder_without_a_run_is_refused(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(flfast.ConfigError, match=re.escape(f"flfast.Run({folder!r}): ")):
        flfast.Run(folder)


def test_inputs_that_fail_in_training_name_their_index(quick):
    class Later(Data):
        reads = 0

        def __getitem__(self, index):
            Later.reads += 1
            if Later.reads > 60 + 30:
                raise OSError("the disk is gone")
            return INPUTS[index], int(TARGETS[index])

    with pytest.raises(flfast.ConfigError, match=r"data=: item \d+: OSError: the disk is gone"):
        quick("partition.num_clients=4", data=Later(), model=Net())


@pytest.mark.parametrize("targets", [np.arange(60) % 3, list(np.arange(60) % 3)])
def test_the_same_words_run_when_they_are_right(quick, targets, tmp_path):
    run = quick("partition.num_clients=4", data=(INPUTS, targets), model=Net(), folder=Path("run"))
    assert flfast.Run(str(tmp_path / "run")).folder == run.folder
