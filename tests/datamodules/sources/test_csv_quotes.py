"""Quoted values with line breaks are read, however long they are."""

import csv
import io

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flfast.datamodules.sources.csv_quotes import strict_rows

WORDS = st.text(" ,\n\"abc'", max_size=30) | st.just("Dear all,\nI am, well")


@settings(max_examples=25, deadline=None)
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


def read(text):
    return [*strict_rows(io.StringIO(text, newline=""))]


ROWS = ["1,x,0.5", "2,y,0.25", "3,z,0.75", "4,v,1.5", "5,w,2.5", "6,u,3.5"]
WORDS_ONLY = ["Ulm,x,no", "Bonn,y,yes", "Essen,z,no", "Aachen,v,no", "Trier,w,yes", "Kiel,u,no"]


@settings(max_examples=25, deadline=None)
@given(
    rows=st.sampled_from([ROWS, WORDS_ONLY]),
    column=st.integers(0, 2),
    end=st.sampled_from(["\n", "\r\n"]),
    data=st.data(),
)
def test_stray_quotes_that_pair_up_are_refused_with_their_line(rows, column, end, data):
    lines = [line.split(",") for line in rows]
    least = 3 if rows is WORDS_ONLY else 2  # line breaks that are no chance
    start = data.draw(st.integers(0, len(lines) - 1 - least))
    stop = data.draw(st.integers(start + least, len(lines) - 1))
    lines[start][column] = '"' + lines[start][column]
    lines[stop][column] += '"'
    text = end.join(["id,city,y", *map(",".join, lines)])
    with pytest.raises(ValueError, match=rf"^line {start + 2}: .*look like rows; remove a stray"):
        read(text)


@pytest.mark.parametrize(
    "text",
    [
        "Dear all,\nI am well",
        "Main St, 5\nBerlin",
        "Price: 12,5\nEuro",
        "red,green\nblue,yellow\nblack",
        "one\ntwo\nthree\nfour\nfive\nsix",
        "a,b,c\n" * 20,
        "1,2\n3,4\n5,6\n7,8\n",
        "roses, red\nviolets, blue\nsugar, sweet\nand so, are you",
    ],
)
@pytest.mark.parametrize("columns", [("{}", "1"), ("7", "{}"), ("7", "{}", "a"), ("{}", "b", "c")])
def test_quoted_texts_that_people_write_are_read_as_they_are(text, columns):
    rows = [[column.format(value) for column in columns] for value in (text, "x", text)]
    file = io.StringIO()
    csv.writer(file).writerows([["h"] * len(columns), *rows])
    assert read(file.getvalue())[1:] == rows
