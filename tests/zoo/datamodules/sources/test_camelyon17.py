import csv

import pytest
import torch

from flfast.zoo.datamodules.sources.camelyon17 import Camelyon17

COLUMNS = ["patient", "node", "x_coord", "y_coord", "tumor", "slide", "center", "split"]
ROWS = [
    ("004", 4, 3328, 21792, 1, 0, 0, 0),
    ("004", 4, 3200, 22272, 0, 0, 0, 1),
    ("030", 1, 6000, 100, 1, 9, 1, 0),
    ("041", 0, 6001, 101, 0, 12, 2, 0),
    ("041", 0, 6002, 101, 1, 12, 2, 1),
    ("099", 4, 7000, 900, 0, 49, 4, 0),
]


@pytest.fixture
def load(tmp_path, in_memory):
    settings = {"root": str(tmp_path), "test_centers": [2], "image_size": None}
    return lambda **changes: Camelyon17(**settings | in_memory | changes).load()


@pytest.fixture
def write(tmp_path):
    """Write metadata.csv with a nameless column of numbers in front, as pandas does."""

    def table(rows=ROWS, columns=COLUMNS):
        with (tmp_path / "metadata.csv").open("w", newline="") as file:
            csv.writer(file).writerows(
                [["", *columns], *([number, *row] for number, row in enumerate(rows))]
            )

    return table


@pytest.fixture
def images(write, save_images):
    """The patches of the table; returns their pixels."""
    write()
    found = []
    for patient, node, x, y, *_ in ROWS:
        where = f"patient_{patient}_node_{node}"
        found.append(save_images(f"patches/{where}", [f"patch_{where}_x_{x}_y_{y}.png"]))
    return torch.cat([torch.from_numpy(pixels) for pixels in found]).permute(0, 3, 1, 2)


def test_hospitals_are_clients_and_one_is_the_test_set(images, load):
    examples = load()
    assert torch.equal(examples.inputs, images)
    assert examples.targets.tolist() == [1, 0, 1, 0, 1, 0]
    assert examples.is_test.tolist() == [False, False, False, True, True, False]
    assert examples.owner.tolist() == [0, 0, 1, -1, -1, 2]
    assert examples.client_names == ("0", "1", "4")
    assert examples.num_classes == 2


@pytest.mark.usefixtures("images")
def test_without_test_hospitals_each_tests_on_its_own_split(load):
    examples = load(test_centers=[])
    assert examples.is_test.tolist() == [False, True, False, False, True, False]
    assert examples.owner.tolist() == [0, 0, 1, 2, 2, 3]


@pytest.mark.usefixtures("images")
def test_a_table_without_leading_zeros_names_the_same_files(load, write):
    write([(int(patient), *row) for patient, *row in ROWS])
    assert len(load().inputs) == 6


@pytest.mark.usefixtures("images")
def test_missing_and_broken_files_are_named(load, write, tmp_path):
    with pytest.raises(ValueError, match=r"test_centers=\[7\]; allowed: of 0, 1, 2, 4: \[7\]"):
        load(test_centers=[7])
    write([("005", *ROWS[0][1:])])
    with pytest.raises(ValueError, match=r"patient_005_node_4_x_3328_y_21792\.png is not a read"):
        load(test_centers=[])
    write(columns=[*COLUMNS[:-1], "fold"])
    with pytest.raises(ValueError, match=r"metadata\.csv lacks split"):
        load()
    write([])
    with pytest.raises(ValueError, match=r"metadata\.csv lacks rows"):
        load()
    write([(*ROWS[0][:-1], "train")])
    with pytest.raises(ValueError, match=r"metadata\.csv: tumor, center and split must be"):
        load()
    (tmp_path / "metadata.csv").unlink()
    with pytest.raises(ValueError, match=r"data\.root=\S+ has no readable metadata\.csv"):
        load()
