import sys

import pytest
import torch
from models_by_name import make_inputs, make_model
from safetensors.torch import save_file

NAME = "test_efficientnet"


def make(**options):
    return make_model("timm", options={"name": NAME, **options})


@pytest.mark.slow
def test_weights_come_from_a_file_without_the_network(tmp_path):
    published = make_model("timm", num_classes=1000, seed=5)
    save_file(published.state_dict(), tmp_path / "weights.safetensors")
    model = make(pretrained_path=str(tmp_path / "weights.safetensors"))
    kept = dict(model.named_parameters())
    head = {"classifier.weight", "classifier.bias"}
    assert all(torch.equal(kept[n], p) for n, p in published.named_parameters() if n not in head)
    assert kept["classifier.weight"].shape[0] == 3
    assert "state_dict" not in model.pretrained_cfg


def test_options_reach_timm():
    model = make(name="test_vit", options={"img_size": 32, "depth": 1})
    assert model(make_inputs("timm", 2)).shape == (2, 3)
    assert len(model.blocks) == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"name": "resnt18"},
            r"model.name=resnt18: timm has no such model; did you mean resnet18",
        ),
        ({"name": "?"}, r"model.name=\?: timm has no such model; see timm.list_models\(\)"),
        (
            {"download": True, "pretrained_path": "w.pt"},
            r"model.download=true with .*=w.pt: set one",
        ),
        ({"pretrained_path": "missing.pt"}, r"model.pretrained_path=missing.pt"),
    ],
)
def test_what_cannot_be_built_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        make(**options)


def test_the_extra_is_named_if_it_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(ValueError, match=r"pip install 'flfast\[timm\]'"):
        make()
