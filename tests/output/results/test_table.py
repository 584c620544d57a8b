"""A table that rows are appended to, where its file is damaged."""

import pytest

from flfast.output.results.table import RoundTable, read_rows


@pytest.mark.parametrize("content", ["", "round,loss", "round,loss\n0,1,2\n"])
def test_a_damaged_table_of_before_is_begun_anew_with_a_warning(content, tmp_path, caplog):
    path = tmp_path / "metrics.csv"
    path.write_text(content)
    RoundTable(path, ["round", "loss"]).append([{"round": 3, "loss": 0.5}], round_idx=3)
    assert read_rows(path) == [{"round": "3", "loss": "0.5"}]
    assert "its rows of rounds up to 2 are lost" in caplog.text
