import numpy as np
import pytest
import torch

from flfast.zoo.datamodules.sources.har import SIGNALS, har

SUBJECTS = {"train": [1, 3, 3, 1, 6], "test": [2, 2, 4]}
LABELS = {"train": [5, 1, 6, 2, 3], "test": [4, 4, 1]}


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "UCI HAR Dataset"


@pytest.fixture
def written(folder, rng):
    """Returns the signals [8, 9, 128] as they are printed."""
    printed = []
    for part, labels in LABELS.items():
        (folder / part / "Inertial Signals").mkdir(parents=True)
        values = rng.standard_normal((len(labels), len(SIGNALS), 128))
        for channel, signal in enumerate(SIGNALS):
            path = folder / part / "Inertial Signals" / f"{signal}_{part}.txt"
            np.savetxt(path, values[:, channel], fmt="%16.7e", delimiter="")
        np.savetxt(folder / part / f"y_{part}.txt", labels, fmt="%d")
        np.savetxt(folder / part / f"subject_{part}.txt", SUBJECTS[part], fmt="%d")
        printed.append(values)
    return np.concatenate(printed)


@pytest.mark.parametrize(
    ("test_subjects", "owner", "tests"),
    [("published", [0, 1, 1, 0, 2, -1, -1, -1], 3), ("none", [0, 2, 2, 0, 4, 1, 1, 3], None)],
)
def test_windows_have_nine_channels_and_subjects_are_clients(
    test_subjects, owner, tests, written, tmp_path
):
    examples = har(root=str(tmp_path), test_subjects=test_subjects)
    assert torch.allclose(examples.inputs, torch.from_numpy(written).float(), atol=1e-6)
    assert examples.inputs.dtype == torch.float32
    assert examples.targets.tolist() == [4, 0, 5, 1, 2, 3, 3, 0]
    assert examples.owner.tolist() == owner
    assert examples.client_names == tuple("136" if tests else "12346")
    assert (examples.num_classes, examples.input_shape) == (6, (9, 128))
    if tests is None:
        assert examples.is_test is None
    else:
        assert examples.is_test.tolist() == [False] * 5 + [True] * tests


@pytest.mark.usefixtures("written")
@pytest.mark.parametrize(
    ("path", "content", "message"),
    [
        ("test/y_test.txt", None, r"data\.root=\S+ lacks .*y_test\.txt; point data\.root to"),
        ("train/y_train.txt", "1\n2\n", "has 2 activities from 1 to 2, subject_train.txt 5 subj"),
        ("train/y_train.txt", "1\n2\n7\n1\n1\n", "activities from 1 to 7"),
        ("train/subject_train.txt", "", r"subject_train\.txt is empty"),
        ("train/subject_train.txt", "<html>", r"subject_train\.txt is not a table of numbers"),
        (
            "test/Inertial Signals/total_acc_z_test.txt",
            "1.0 2.0\n3.0 4.0\n",
            r"total_acc_z_test\.txt has 2 rows of 2 numbers; allowed: 3 rows, as y_test\.txt",
        ),
    ],
)
@pytest.mark.filterwarnings("ignore:loadtxt")
def test_missing_and_broken_files_are_named(path, content, message, folder, tmp_path):
    (folder / path).unlink() if content is None else (folder / path).write_text(content)
    with pytest.raises(ValueError, match=message):
        har(root=str(tmp_path), test_subjects="published")
