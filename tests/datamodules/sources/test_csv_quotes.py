"""Quoted values with line breaks are read, however long they are."""

import csv
import io

from hypothesis import given, settings
from hypothesis import strategies as st

from flfast.datamodules.sources.csv_quotes import strict_rows

WORDS = st.text(" ,\n\"abc'", max_size=30) | st.just("Dear all,\nI am, well")


@settings(max_examples=50, deadline=None)
@given(
    texts=st.lists(WORDS, min_size=1, max_size=6),
    before=st.lists(st.sampled_from(["x", "7"]), max_size=2),
    behind=st.lists(st.sampled_from(["x", "7"]), max_size=2),
)
def test_whatever_text_without_numbers_a_table_quotes_is_read_back(texts, before, behind):
    rows = [["h"] * (len(before) + 1 + len(behind))]
    rows += [[*before, text, *behind] for text in texts]
    file = io.StringIO()
    csv.writer(file, quoting=csv.QUOTE_ALL).writerows(rows)
    assert [*strict_rows(io.StringIO(file.getvalue(), newline=""))] == rows


def test_a_text_may_be_longer_than_the_limit_of_pythons_reader():
    before = csv.field_size_limit()
    lines = ["text,target\n", f"{'a' * 200_000},1\n"]
    assert [len(row[0]) for row in strict_rows(lines)] == [4, 200_000]
    assert csv.field_size_limit() == before
