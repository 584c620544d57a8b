"""docs/models.md lists every model, with the parameters that it has."""

import re

import pytest
import torch
import yaml
from hydra.utils import get_method
from models_by_name import NAMES, make_model
from pages import ROOT, page

OTHERS = page("howto") + page("pfllib")
TEXT = (ROOT / "docs" / "models.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| `(\w+)` \|[^|]*\|[^|]*\|([^|]*)\|$", TEXT, flags=re.MULTILINE)
TABLE = {name: params for name, params in ROWS if name in {*NAMES, "custom"}}
BUILT = {
    "digits_cnn": {"shape": (3, 28, 28), "num_classes": 10},
    "mlp": {"shape": (1, 28, 28), "num_classes": 10},
    "lenet": {"shape": (1, 28, 28), "num_classes": 10},
    "pfl_cnn": {"shape": (3, 32, 32), "num_classes": 10},
    "resnet18": {"shape": (3, 32, 32), "num_classes": 10},
    "vgg11": {"shape": (3, 32, 32), "num_classes": 10},
    "cnn1d": {"shape": (9, 128), "num_classes": 6},
    "lstm": {"shape": (80,), "task": "language", "num_tokens": 90},
    "transformer": {"shape": (80,), "task": "language", "num_tokens": 90},
}


def test_every_model_is_listed():
    assert set(TABLE) == {*NAMES, "custom"}


@pytest.mark.parametrize("name", BUILT)
def test_the_number_of_parameters_is_true(name):
    with torch.device("meta"):
        model = make_model(name, options={}, **BUILT[name])
    assert f"{sum(p.numel() for p in model.parameters()):,}" in TABLE[name]


BUILDERS = re.findall(r"_target_=(torchvision\S+)((?:[\\\s]+\+model\.\w+=[\w.]+)*)", OTHERS)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("target", "keys"), BUILDERS)
def test_builders_of_torchvision_have_as_many_outputs_as_there_are_classes(target, keys):
    options = dict(re.findall(r"\+model\.(\w+)=([\w.]+)", keys))
    with torch.device("meta"):
        model = get_method(target)(**{key: yaml.safe_load(v) for key, v in options.items()})
        assert model.eval()(torch.zeros(2, 3, 32, 32)).shape == (2, 10)  # of CIFAR-10
