"""`masks.png` and `masks.csv`: test images, their masks and predictions."""

import csv
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from flfast.output.callbacks.mask_samples import MaskSamples
from flfast.zoo.datamodules.sources.synthetic_shapes import SyntheticShapes


class Nothing(nn.Module):
    """Logits that say: background, or with a bias another class."""

    def __init__(self, kind=0):
        super().__init__()
        self.bias = nn.Parameter(10 * torch.eye(3)[kind])

    def forward(self, images):
        return self.bias.view(1, 3, 1, 1).expand(len(images), 3, *images.shape[2:])


@pytest.fixture
def federation(tmp_path):
    options = {"num_clients": 2, "per_client": 2, "test_per_client": 2, "side": 16}
    examples = SyntheticShapes(**options, scanner=0.0, noise=0.0, dice_weight=1.0, seed=0).load()
    tests = np.flatnonzero(examples.is_test)

    def eval_loader(indices):
        for place in indices.tolist():  # batches of one
            part = slice(place, place + 1)
            yield SimpleNamespace(inputs=examples.inputs[part], targets=examples.targets[part])

    own = SimpleNamespace(indices=tests, owner=lambda: examples.owner[tests])
    return SimpleNamespace(
        run_dir=tmp_path,
        title="a run",
        algorithm=SimpleNamespace(evaluate_server=True),
        engine=SimpleNamespace(site=SimpleNamespace(model=Nothing())),
        data=SimpleNamespace(
            examples=examples, central_test=tests, splits={"test": own}, eval_loader=eval_loader
        ),
        weights=lambda: Nothing(kind=1).state_dict(),
    )


def draw(federation, *, num_images=3):
    callback = MaskSamples(num_images=num_images, dpi=50, formats=["png"])
    callback.on_run_end(federation)


def test_the_table_has_the_servers_dice_of_images_of_every_client(federation):
    draw(federation)
    text = (federation.run_dir / "masks.csv").read_text(encoding="utf-8")
    rows = [*csv.DictReader(text.splitlines())]
    assert [row["example"] for row in rows] == ["2", "6", "7"]
    assert [row["client_id"] for row in rows] == ["0", "1", "1"]
    for row in rows:
        mask = federation.data.examples.targets[int(row["example"])]
        # All pixels are predicted as class 1, so that the other class has no overlap.
        own, other = (mask == 1).sum().item(), (mask == 2).any().item()
        assert float(row["dice"]) == pytest.approx(2 * own / (own + 256) / (1 + other), abs=1e-5)
    with Image.open(federation.run_dir / "masks.png") as picture:
        width, height = picture.size
    assert width > 200
    assert height == 310


@pytest.mark.parametrize("reason", ["no tests", "no server", "another task"])
def test_nothing_is_drawn_without_images_model_or_masks(federation, reason):
    if reason == "no tests":
        federation.data.central_test = np.zeros(0, np.int64)
    elif reason == "no server":
        federation.algorithm.evaluate_server = False
    else:
        federation.data.examples = SimpleNamespace(task_type=SimpleNamespace(name="regression"))
    draw(federation)
    assert not [*federation.run_dir.iterdir()]


@pytest.mark.parametrize(
    ("dtype", "sent"), [(torch.float64, torch.float64), (torch.bfloat16, torch.float32)]
)
def test_images_are_predicted_in_the_precision_of_the_model(federation, dtype, sent):
    model = nn.Conv2d(1, 3, kernel_size=1).to(dtype)
    federation.weights = lambda: {"bias": torch.zeros(3, dtype=sent)}  # the rest is frozen
    federation.engine.site.model = model
    draw(federation)
    assert (federation.run_dir / "masks.png").exists()
