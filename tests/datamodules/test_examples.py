import logging

import numpy as np
import pytest
import torch

from flfast.datamodules.examples import Examples, check_num_classes, warn_of_equal_targets
from flfast.datamodules.transforms import BatchTransform


def examples(targets, *, num_classes, task="classification", is_test=None):
    return Examples(
        inputs=torch.zeros(len(targets), 2),
        targets=targets,
        num_classes=num_classes,
        input_shape=(2,),
        transform=BatchTransform(),
        is_test=is_test,
        task=task,
    )


@pytest.mark.parametrize(
    ("task", "equal", "different"),
    [
        ("classification", [3, 3, 3], [3, 3, 1]),
        ("regression", [[0.5, 1], [0.5, 1], [0.5, 1]], [[0.5, 1], [0.5, 1], [0.5, 2]]),
        ("multilabel", [[0, 1], [0, 1], [0, 1]], [[0, 1], [0, 1], [1, 1]]),
        ("language", [[2, -100], [-100, 2], [2, 2]], [[2, -100], [-100, 2], [2, 1]]),
    ],
)
def test_equal_training_targets_are_said(task, equal, different, caplog):
    caplog.set_level(logging.WARNING)
    classes = 2 if task in {"regression", "multilabel"} else 4
    warn_of_equal_targets(examples(torch.tensor(different), num_classes=classes, task=task))
    assert not caplog.messages
    # What is only in the test set cannot be learned.
    tests = np.array([False, False, True])
    warn_of_equal_targets(
        examples(torch.tensor(different), num_classes=classes, task=task, is_test=tests)
    )
    warn_of_equal_targets(examples(torch.tensor(equal), num_classes=classes, task=task))
    assert len(caplog.messages) == 2
    assert all("training targets are equal" in message for message in caplog.messages)


def test_labels_that_are_names_are_refused():
    assert check_num_classes(999, 10, "key") == 1000
    assert check_num_classes(4999, 5000, "key") == 5000
    with pytest.raises(ValueError, match=r"key: the largest label is 3000000 for 10 examples; al"):
        check_num_classes(3_000_000, 10, "key")


def test_augmented_images_with_masks_are_refused():
    given = {"inputs": torch.zeros(2, 1, 4, 4), "targets": torch.zeros(2, 4, 4, dtype=torch.uint8)}
    Examples(**given, num_classes=2, task="segmentation")
    for transform in (BatchTransform(random_crop=1), BatchTransform(random_flip=True)):
        with pytest.raises(ValueError, match=r"leave their masks as they are; allowed"):
            Examples(**given, num_classes=2, task="segmentation", transform=transform)


def test_scores_of_too_many_classes_are_refused_before_memory_is_taken():
    labels, is_test = torch.arange(1000), np.arange(1000) >= 100
    with pytest.raises(ValueError, match=r"a score of 2,000,000,000 classes for each of 900 test"):
        examples(labels, num_classes=2_000_000_000, is_test=is_test)
