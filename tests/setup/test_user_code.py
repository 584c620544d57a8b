"""Own models and optimizers that fail: one message with the setting, the code and the line."""

import textwrap
from pathlib import Path

import pytest
import torch
from sampling import others_slow

from flfast.config.errors import ConfigError
from flfast.setup import launch
from flfast.setup.user_code import named, own_failure, place

OWN = """
    import math

    import torch
    from torch import nn


    class Net(nn.Module):
        def __init__(self, input_shape, num_classes):
            super().__init__()
            self.fc = nn.Linear(math.prod(input_shape), num_classes)

        def forward(self, x):
            return self.fc(x.flatten(1))


    class GivesATuple(Net):
        def forward(self, x):
            return super().forward(x), x


    class GivesADict(Net):
        def forward(self, x):
            return {"logits": super().forward(x)}


    class MissesAKey(Net):
        def forward(self, x):
            return {}["logits"]


    class HasNoParameters(nn.Module):
        def forward(self, x):
            return torch.zeros(len(x), 10)


    class IsNoModule:
        pass


    class Quits(Net):
        def __init__(self):
            raise SystemExit(0)


    class FailsInTraining(Net):
        def forward(self, x):
            if self.training:
                raise KeyError("later")
            return super().forward(x)


    def hides_its_classes(**kwargs):
        return nn.Sequential(nn.Flatten(), nn.Linear(64, kwargs.get("num_classes", 1000)))


    class FailsInAnEpoch(Net):
        calls = 0

        def forward(self, x):
            self.calls += self.training
            if self.calls > 3:
                raise KeyError("in an epoch")
            return super().forward(x)


    def no_optimizer(params, lr):
        return None


    class FailsInItsStep(torch.optim.SGD):
        def step(self, closure=None):
            return self.missing
"""
OWN = textwrap.dedent(OWN).lstrip()


def line(text):
    """Number of the first line of `own.py` that has a text."""
    return next(number for number, found in enumerate(OWN.splitlines(), 1) if text in found)


def forward_of(name):
    return f"own.py, line {line(f'class {name}') + 1})"


CASES = {
    ("model", "GivesATuple"): (
        "model=own.GivesATuple: forward (",
        f"{forward_of('GivesATuple')} gives a tuple for 2 examples; it must give logits [B, 10]",
    ),
    ("model", "GivesADict"): (forward_of("GivesADict"), "gives a dict for 2 examples"),
    ("model", "MissesAKey"): (
        "inputs of shape [1, 8, 8]: model=own.MissesAKey: KeyError: 'logits'",
        f'own.py", line {line("return {}")}, in forward',
        'return {}["logits"]',
    ),
    ("model", "HasNoParameters"): ("model=own.HasNoParameters: has no parameters to train",),
    ("model", "hides_its_classes"): ("gives [2, 1000]", "set +model.num_classes=10"),
    ("model", "IsNoModule"): ("gives a IsNoModule; allowed: a torch.nn.Module",),
    ("model", "Quits"): (
        "model=own.Quits: SystemExit: 0",
        f"line {line('raise SystemExit')}, in __init__",
    ),
    ("model", "FailsInTraining"): (
        "training mode, inputs of shape [1, 8, 8]: model=own.FailsInTraining: KeyError: 'later'",
        f"line {line('later')}, in forward",
    ),
    ("model", "FailsInAnEpoch"): (
        "KeyError in your own code: 'in an epoch'",
        f"line {line('in an epoch')}, in forward",
    ),
    ("optimizer", "no_optimizer"): (
        "optimizer=own.no_optimizer: gives a NoneType; allowed: a torch.optim.Optimizer",
    ),
    ("optimizer", "FailsInItsStep"): (
        "optimizer=own.FailsInItsStep: AttributeError: ",
        f"line {line('self.missing')}, in step",
    ),
}
TORCH = {
    "torch.optim.SparseAdam": "optimizer=torch.optim.SparseAdam: RuntimeError: ",
}


@pytest.fixture
def own(tmp_path, monkeypatch):
    (tmp_path / "own.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)


def refusal(flfast_run, capsys, *overrides):
    with pytest.raises(SystemExit) as stopped:
        flfast_run("rounds=1", "callbacks=none", *overrides)
    assert stopped.value.code == 2
    return capsys.readouterr().err


ALONE = [(*case, 1) for case in CASES]


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize(
    ("group", "name", "ranks"),
    [
        *others_slow(ALONE, [case for case in ALONE if case[1] != "GivesADict"]),
        ("model", "Quits", 2),
        pytest.param("model", "FailsInAnEpoch", 2, marks=pytest.mark.slow),
    ],
)
def test_own_code_that_fails_is_named(flfast_run, capfd, group, name, ranks):
    words = (f"{group}=custom", f"{group}._target_=own.{name}", f"trainer.devices={ranks}")
    found = refusal(flfast_run, capfd, *words)
    for part in CASES[group, name]:
        assert part in found
    assert "Traceback" not in found
    assert len(found.splitlines()) < 15


@pytest.mark.parametrize("target", TORCH)
def test_optimizers_of_torch_that_cannot_train_are_named(flfast_run, capsys, target):
    found = refusal(flfast_run, capsys, "optimizer=custom", f"optimizer._target_={target}")
    assert TORCH[target] in found
    assert len(found.splitlines()) < 5


def test_messages_of_ours_stay_as_they_are(flfast_run, capsys):
    found = refusal(flfast_run, capsys, "model=cnn")
    assert "needs images of at least 16x16" in found
    assert "ValueError" not in found


def test_errors_of_libraries_have_no_lines():
    with pytest.raises(ConfigError) as refused, named("optimizer", "torch.optim.SGD"):
        torch.optim.SGD([])
    text = "optimizer=torch.optim.SGD: ValueError: optimizer got an empty parameter list"
    assert str(refused.value).startswith(text)


def test_places_of_code():
    assert place(refusal).endswith(f"test_user_code.py, line {refusal.__code__.co_firstlineno})")
    assert place(torch.zeros) == ""
    assert own_failure(ValueError("raised nowhere")) is None


def test_a_rank_that_is_killed_as_it_notes_its_error_leaves_no_empty_note(tmp_path):
    """Ranks fail together; the launcher kills the second one once the first has ended."""

    def killed(path, *_, **__):
        path.touch()
        raise SystemExit

    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit):
        patch.setattr(Path, "write_text", killed)
        launch._note_refusal(tmp_path, "KeyError")
    assert not (tmp_path / launch.REFUSAL).exists()
    launch._note_refusal(tmp_path, "KeyError")
    launch._note_refusal(tmp_path, "of the other rank")
    assert (tmp_path / launch.REFUSAL).read_text(encoding="utf-8") == "of the other rank"
