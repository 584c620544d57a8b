"""The tables of published results are those of the rows and of the record that is kept."""

import pytest
from pages import ROOT

from docs import verdicts
from flfast.commands.conformance.row_files import LEVELS, read_rows

ROWS = [row for level in LEVELS for row in read_rows(level)]


@pytest.mark.parametrize("name", ["conformance", "reproductions"])
def test_tables_are_up_to_date(name):
    text = (ROOT / "docs" / f"{name}.md").read_text("utf-8")
    assert verdicts.page(text, verdicts.kept()) == text


def test_what_holds_is_known_to_hold():
    record = verdicts.kept()
    wrong = [row.name for row in ROWS if record.get(row.name, {}).get("holds") == (not row.holds)]
    assert not wrong


def test_every_claim_of_a_row_that_ran_has_its_line():
    record = verdicts.kept()
    for row in ROWS:
        if row.name in record:
            assert len(record[row.name]["claims"]) == len(row.claims), row.name


def test_a_row_that_was_not_run_has_no_numbers():
    row = ROWS[0]
    assert "| not run |" in verdicts.rows_table([row], {})
    assert verdicts.claims_table([row], {}).count("\n") == 1
