"""What does not go with masks, or with a model of pixels, is refused before training."""

import pytest

import flfast

SHAPES = ("experiment=segmentation", "data.per_client=10", "data.side=16", "strategy=single")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((*SHAPES, "model=mlp"), r"must give logits \[B, 3, 16, 16\]; model=unet does"),
        ((*SHAPES, "model.depth=5"), "model.depth=5 with images of 16 x 16 pixels"),
        pytest.param(
            (*SHAPES, "algorithm=fedlc"),
            "algorithm=fedlc with task=segmentation: it is for class",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            (*SHAPES, "attack=label_flip"),
            "attack=label_flip with task=segmentation",
            marks=pytest.mark.slow,
        ),
        ((*SHAPES, "optimized_metric=val/accuracy"), "measures loss, dice, iou, pixel_accuracy"),
        pytest.param(
            ("model=unet",), "model=unet with task=classification", marks=pytest.mark.slow
        ),
        (("task=segmentation",), "task=segmentation: data=digits are for task=classification"),
    ],
)
def test_mismatches_are_refused_in_one_line(words, message, tmp_path):
    with pytest.raises(flfast.ConfigError, match=message) as error:
        flfast.run(*words, "rounds=1", "callbacks=none", folder=tmp_path)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "metrics.csv").exists()
