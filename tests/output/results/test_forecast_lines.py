import numpy as np
import pytest

from flfast.output.results.forecast_lines import (
    FORECAST_COLUMNS,
    chosen_clients,
    forecast_charts,
    forecast_rows,
)


def test_the_chosen_clients_are_the_best_the_median_and_the_worst():
    mase = np.array([0.9, np.nan, 0.3, 0.5, 2.0, 0.7])
    assert chosen_clients(mase) == {"best": 2, "median": 5, "worst": 4}
    assert chosen_clients(np.array([np.nan])) == {}


@pytest.mark.parametrize("stride", [1, 2, 5])
def test_windows_follow_each_other_without_overlap(stride, tmp_path):
    series = np.arange(100.0)
    true = np.stack([series[start : start + 4] for start in range(0, 60, stride)])
    rows = [*forecast_rows(("local", "best", "a, b", 0.5), true, true + 1, stride)]
    steps, values, predicted = zip(*(row[4:] for row in rows), strict=True)
    assert list(steps) == list(values) == [v - 1 for v in predicted]
    assert len(set(steps)) == len(steps) == 28
    path = tmp_path / "forecasts.csv"
    lines = [",".join(f'"{cell}"' for cell in row) for row in [FORECAST_COLUMNS, *rows]]
    path.write_text("\n".join(lines) + "\n")
    (chart,) = forecast_charts(path)
    assert chart.title == "a, b, best MASE in local: 0.5"
    assert [list(line.y) for line in chart.lines] == [list(values), list(predicted)]
    path.write_text("\n".join([*lines, '"local","best","x","1","0","inf","2"']) + "\n")
    with pytest.raises(ValueError, match="a number that is not finite"):
        forecast_charts(path)
