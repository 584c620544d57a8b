"""Descriptions of charts, and that a page and a picture show the same of them."""

import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from flfast.output.callbacks.figures import COLOURS, draw_charts
from flfast.output.report.drawn import drawn
from flfast.output.results.charts import VIEW_COLOURS, Line, LineChart, Look, RowChart


def rows(lengths):
    names = [f"row {n}" for n in range(len(lengths))]
    series = [Look("train", "global"), Look("test", "local")]
    return RowChart("Sizes", "examples", names, "client", series, "{:g}".format).stacked(lengths)


def test_stacked_bars_follow_each_other_and_nothing_is_no_bar():
    chart = rows([[2.0, 3.0], [0.0, 1.0]])
    assert [(m.row, m.series, m.low, m.high) for m in chart.marks] == [
        (0, 0, 0, 2),
        (0, 1, 2, 5),
        (1, 1, 0, 1),
    ]
    assert chart.ends == (0, 5)
    assert chart.marks[1].tip == "row 0, test: 3"
    assert chart.table.rows == [["row 0", "2", "3"], ["row 1", "0", "1"]]


def test_nothing_to_show_is_no_chart_of_a_page():
    assert drawn(rows([[0.0, 0.0]])) is None
    assert (
        drawn(LineChart("", [Line("", [], []), Line("", [1], [float("nan")])], "x", "y")) is None
    )


@pytest.mark.parametrize("view", VIEW_COLOURS)
def test_a_view_has_one_colour_whatever_the_number_of_its_line(view):
    lines = [Line("other", [0, 1], [1, 2]), Line("own", [0, 1], [1, 3], view=view)]
    for number in (0, 1):
        chart = LineChart("", lines if number else lines[::-1], "x", "y")
        look, _ = drawn(chart).legend[number]
        assert look.split()[0] == f"c{VIEW_COLOURS.index(view)}"
        picture = Figure()
        draw_charts(picture, [chart])
        assert to_hex(picture.axes[0].lines[number].get_color()) == COLOURS[view].lower()


def test_a_line_beside_another_one_of_its_view_has_other_dashes():
    for view in VIEW_COLOURS:
        lines = [Line("", [0], [1], view=view), Line("", [0], [1], view=view, thin=True)]
        looks = [look.split()[:2] for look, _ in drawn(LineChart("", lines, "x", "y")).legend]
        assert looks[0][0] == looks[1][0] and looks[0][1] != looks[1][1]


def test_dollars_in_names_are_no_formula(tmp_path):
    name = r"A$\nope{$"
    for chart in (LineChart(name, [Line("", [0, 1], [1, 2])], "x", "B" + name), rows([[1.0]])):
        picture = Figure()
        draw_charts(picture, [chart._replace(title=name)])
        picture.savefig(tmp_path / "picture.png")


def test_bars_of_a_picture_are_in_the_rows_of_the_page():
    chart = rows([[2.0, 3.0], [0.0, 1.0]])
    picture = Figure()
    legend = draw_charts(picture, [chart])
    (axes,) = picture.axes
    assert [*legend] == ["train", "test"]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["row 0", "row 1"]
    boxes = [shape.get_extents() for c in axes.collections[1:] for shape in c.get_paths()]
    assert [(round(b.x0), round(b.x1)) for b in boxes] == [(0, 2), (2, 5), (0, 1)]
    tips = drawn(chart).svg.count("data-tip")
    assert tips == len(chart.marks) == len(boxes)
