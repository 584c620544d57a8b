import pytest
from matplotlib.figure import Figure

from flfast.output.callbacks.curves import draw_curves
from flfast.output.results.lines import run_charts


@pytest.mark.parametrize(
    ("name", "headline", "title"),
    [("accuracy", "accuracy", "Accuracy"), ("mae", "loss", "Mean absolute error")],
)
def test_every_task_has_lines_on_both_axes_and_the_spread_of_its_headline(name, headline, title):
    rows = [
        {"round": n, f"local/{name}": 0.3, "local/loss": 0.5}
        | {f"local/{headline}_std": 0.1, f"local/{headline}_worst10": 0.9}
        for n in range(3)
    ]
    picture = Figure()
    draw_curves(picture, run_charts([rows]))
    first, loss = picture.axes
    assert first.get_title() == title
    spread, other = (first, loss) if headline == name else (loss, first)
    assert (len(spread.lines), len(spread.collections)) == (2, 1)
    assert (len(other.lines), len(other.collections)) == (1, 0)
