"""docs/partitions.md names every partition, and its picture can be drawn."""

import re

import numpy as np
import pytest

from docs.partitions import PANELS, PICTURE, ROOT, draw, panels

PAGE = (ROOT / "docs" / "partitions.md").read_text(encoding="utf-8")


def test_every_partition_has_a_row_and_all_that_divide_by_themselves_a_panel():
    options = {path.stem for path in (ROOT / "conf" / "partition").glob("*.yaml")}
    assert set(re.findall(r"^\| `(\w+)`", PAGE, flags=re.MULTILINE)) == options
    assert {words.split()[0] for words in PANELS} == options - {"from_file", "whole"}


def test_panels_hold_every_example():
    for panel in panels():
        assert len(panel.owner) == len(panel.labels) == 1797
        assert (np.bincount(panel.owner) > 0).all()


@pytest.mark.slow
def test_the_picture_can_be_drawn(tmp_path):
    draw(tmp_path / "partitions.png")
    header = (tmp_path / "partitions.png").read_bytes()[:24]
    assert header == PICTURE.read_bytes()[:24]  # format and size
