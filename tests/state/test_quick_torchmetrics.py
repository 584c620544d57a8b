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


@pytest.mark.slow
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


def test_one_that_can_is_loaded_when_more_is_asked_for(tmp_path):
    code = (
        "import flfast, torchmetrics as t; early = 'late' in vars(t), t.Metric\n"
        "print(early[0], hasattr(t, '__wrapped__') or hasattr(t, '_mock_name'))\n"
        "print('late' in vars(t))\n"
        "print(t.late, t.Metric is early[1], hasattr(t, 'unknown'))"
    )
    folder = written(tmp_path, {**PACKAGE, "metric.py": "class Metric: pass"})
    assert run(code, PYTHONPATH=str(folder)) == ["False"] * 3 + ["1", "True", "False"]


def written(folder, package):
    (folder / "torchmetrics").mkdir()
    for name, text in package.items():
        (folder / "torchmetrics" / name).write_text(text)
    return folder


def test_one_whose_classes_need_the_whole_package_is_loaded_whole(tmp_path):
    folder = written(tmp_path, PACKAGE) / "torchmetrics"
    code = "import flfast, torchmetrics as t; print(t.__file__, t.Metric.__module__, t.late)"
    first, *rest = run(code, PYTHONPATH=str(tmp_path))
    assert first == str(folder / "__init__.py")
    assert rest == ["torchmetrics.metric", "1"]
