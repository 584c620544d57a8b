"""The table of docs/privacy.md is what its command prints."""

import pytest
from pages import ROOT
from sampling import others_slow

from docs.banded_noise import BANDS, CASES, line

PAGE = (ROOT / "docs" / "privacy.md").read_text()


def test_every_case_is_in_the_table():
    rows = [row for row in PAGE.splitlines() if row.count("|") == len(BANDS) + 6]
    shown = [tuple(map(int, row.split("|")[1:3])) for row in rows[2:]]
    assert shown == [*CASES]


@pytest.mark.parametrize(
    "case", others_slow([(case,) for case in CASES if case[0] <= 100], [(CASES[0],)]), ids=str
)
def test_a_line_of_the_table(case):
    assert line(*case) in PAGE
