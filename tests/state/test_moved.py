"""Old dotted paths give what has moved: in programs, in configs, and in folders of runs."""

import ast
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml

import flfast
from flfast.state.moved import _moves, new_path, old_targets, renamed

PACKAGE = Path(flfast.__file__).parent


@pytest.mark.parametrize("old", sorted(_moves()))
def test_an_old_path_leads_to_a_module_that_exists(old):
    assert not (PACKAGE.parent / old.replace(".", "/")).with_suffix(".py").exists()
    assert find_spec(new_path(old)) is not None


def test_every_option_of_a_merged_file_is_in_its_contract():
    for path in Path(PACKAGE.parent, "conf").glob("*/*.yaml"):
        target = str(yaml.safe_load(path.read_text("utf-8") or "{}").get("_target_", ""))
        if target.startswith("flfast."):
            module, _, name = target.rpartition(".")
            file = PACKAGE.parent / f"{module.replace('.', '/')}.py"
            defined = {getattr(node, "name", "") for node in ast.parse(file.read_text()).body}
            assert name in defined, f"{path}: {target}"


def test_targets_are_renamed_wherever_they_stand():
    config = {
        "attack": {"_target_": "flfast.attacks.sign_flip.sign_flip", "fraction": 0.1},
        "callbacks": {"all": [{"_target_": "flfast.callbacks.curves.Curves"}]},
        "optimizer": {"_target_": "torch.optim.SGD"},
        "note": "flfast.attacks.sign_flip",
    }
    assert dict(old_targets(config)) == {
        "attack": "flfast.attacks.sign_flip.sign_flip",
        "callbacks.all.0": "flfast.callbacks.curves.Curves",
    }
    assert renamed(config) == {
        "attack": {"_target_": "flfast.channel.attacks.sign_flip.sign_flip", "fraction": 0.1},
        "callbacks": {"all": [{"_target_": "flfast.output.callbacks.curves.Curves"}]},
        "optimizer": {"_target_": "torch.optim.SGD"},
        "note": "flfast.attacks.sign_flip",
    }


@pytest.mark.slow
def test_a_program_imports_the_moved_module_itself_and_is_told_once():
    program = (
        "import flfast.algorithms.algorithm as old, flfast.algorithms.contract.algorithm as new\n"
        "from flfast.attacks.attack import Attack\n"
        "from flfast.channel.attacks.attack import Attack as Moved\n"
        "assert old is new and Attack is Moved, (old, new)\n"
        "assert new.__spec__.name == new.__name__ == 'flfast.algorithms.contract.algorithm'\n"
    )
    process = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert process.returncode == 0, process.stderr
    assert process.stderr.count("is flfast.algorithms.contract.algorithm now") == 1
