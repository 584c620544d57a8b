"""Torchmetrics loads its metrics when they are asked for, and is the same then."""

import os
import subprocess
import sys

import pytest

MODULES = "classification functional functional.classification regression text image wrappers"
PACKAGE = {
    "__about__.py": "__version__ = '1.6'\n__all__ = ['__version__']",
    "__init__.py": "from .__about__ import *\nlate = 1\nfrom .metric import Metric",
    "metric.py": "from torchmetrics import late\nclass Metric: pass",
    "utilities.py": "",
    "collections.py": "class MetricCollection: pass",
}


def run(code, **variables):
    env = os.environ | variables
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_lightning_does_not_wait_for_metrics():
    code = (
        "import sys, flfast, lightning.pytorch, torchmetrics as t\n"
        "early = t.Metric, t.MetricCollection\n"
        "print('torchmetrics.functional' in sys.modules, hasattr(t, '__wrapped__'))\n"
        "print('torchmetrics.functional' in sys.modules, issubclass(t.Accuracy, t.Metric))\n"
        "print((t.Metric, t.MetricCollection) == early, hasattr(t, 'unknown'))\n"
        "print(all(hasattr(t, name) for name in t.__all__))"
    )
    assert run(code) == ["False"] * 3 + ["True"] * 2 + ["False", "True"]


@pytest.mark.slow
@pytest.mark.parametrize("name", MODULES.split())
def test_any_part_may_be_imported_first(name):
    code = (
        f"import flfast, lightning, torchmetrics.{name} as part, torchmetrics\n"
        "assert all(hasattr(part, name) for name in part.__all__)\n"
        "print(torchmetrics.Accuracy.__module__, torchmetrics.classification.Accuracy is "
        "torchmetrics.Accuracy)"
    )
    assert run(code) == ["torchmetrics.classification.accuracy", "True"]


def test_one_whose_classes_need_the_whole_package_is_loaded_whole(tmp_path):
    folder = tmp_path / "torchmetrics"
    folder.mkdir()
    for name, text in PACKAGE.items():
        (folder / name).write_text(text)
    code = "import flfast, torchmetrics as t; print(t.__file__, t.Metric.__module__, t.late)"
    first, *rest = run(code, PYTHONPATH=str(tmp_path))
    assert first == str(folder / "__init__.py")
    assert rest == ["torchmetrics.metric", "1"]
