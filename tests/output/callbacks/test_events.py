"""`events.csv` and `events.png`."""

import numpy as np
import pytest
from sampling import others_slow

from flfast.federation.paces.pace import Event, Turn
from flfast.federation.samplers.cohort import Cohort
from flfast.output.callbacks.events_figure import (
    Bar,
    EventsFigure,
    draw_events,
    events_chart,
    read_bars,
)
from flfast.output.callbacks.events_table import EventsTable
from flfast.output.callbacks.figures import figure
from flfast.output.results.columns import EVENT_COLUMNS
from flfast.output.results.table import iterate_rows, read_rows

PNG = b"\x89PNG"
NOBODY = Cohort(np.arange(0), np.arange(0))


def round_of(number, *events):
    """A round that lasts from 10 (number - 1) to 10 number seconds."""
    step = Event(10.0 * number, "step", -1, number)
    return Turn(NOBODY, events=[*events, step])


TURNS = [
    round_of(
        1,
        Event(0.0, "dispatch", 4, 1),
        Event(0.0, "dispatch", 7, 1),
        Event(0.0, "dispatch", 2, 1),
        Event(10.0, "arrival", 4, 1, 0),
    ),
    round_of(
        2, Event(10.0, "dispatch", 4, 2), Event(13.5, "failure", 7, 1), Event(20.0, "late", 2, 1)
    ),
    round_of(
        3,
        Event(20.0, "dispatch", 9, 3),
        Event(20.0, "dispatch", 7, 3),
        Event(30.0, "arrival", 4, 2, 1),
    ),
]


def play(table, run, turns, first=1):
    for round_idx, turn in enumerate(turns, first):
        table.on_turn(run, turn)
        table.on_round_end(run, {"round": round_idx}, {})


@pytest.fixture
def timed(federation):
    """A run of three rounds with a clock, whose events are written."""
    run = federation()
    run.history = [{"round": 0}, *({"round": r, "clock/seconds": 10.0 * r} for r in (1, 2, 3))]
    play(EventsTable(), run, TURNS)
    return run


def test_the_table_has_a_row_for_every_event(timed):
    path = timed.run_dir / "events.csv"
    rows = read_rows(path)
    assert tuple(path.read_text().splitlines()[0].split(",")) == EVENT_COLUMNS
    assert len(rows) == sum(len(turn.events) for turn in TURNS)
    assert [*rows[0].values()] == ["1", "0.0", "dispatch", "4", "1", ""]
    assert [*rows[4].values()] == ["1", "10.0", "step", "", "1", ""]
    assert [*rows[-2].values()] == ["3", "30.0", "arrival", "4", "2", "1"]


def test_there_is_no_table_without_events(federation):
    run = federation()
    play(EventsTable(), run, [Turn(NOBODY), Turn(NOBODY)])
    EventsFigure(max_clients=30, max_steps=60, dpi=30, formats=["png"]).on_run_end(run)
    assert not list(run.run_dir.iterdir())


def test_a_round_that_fails_has_no_events(timed):
    before = (timed.run_dir / "events.csv").read_text()
    table = EventsTable()
    table.on_turn(timed, TURNS[2])
    assert (timed.run_dir / "events.csv").read_text() == before


def test_a_resumed_run_repeats_no_event(timed):
    before = (timed.run_dir / "events.csv").read_text()
    play(EventsTable(), timed, TURNS[1:], first=2)
    assert (timed.run_dir / "events.csv").read_text() == before


def test_bars_last_from_dispatch_to_whatever_ends_the_work(timed):
    rows = read_rows(timed.run_dir / "events.csv")
    bars, steps = read_bars(rows, max_clients=30, max_steps=60)
    assert steps == [10.0, 20.0, 30.0]
    assert sorted(bars) == sorted(
        [
            Bar(4, 0.0, 10.0, "arrival", 0),
            Bar(7, 0.0, 13.5, "failure"),
            Bar(2, 0.0, 20.0, "late"),
            Bar(4, 10.0, 30.0, "arrival", 1),
            Bar(9, 20.0),
            Bar(7, 20.0),
        ]
    )


def test_only_the_first_clients_and_steps_are_read(timed):
    rows = iterate_rows(timed.run_dir / "events.csv")
    bars, steps = read_bars(rows, max_clients=2, max_steps=2)
    assert {bar.client for bar in bars} == {4, 7}
    assert steps == [10.0, 20.0]
    assert [row["round"] for row in rows] == ["3"] * 4, "rows that were not needed"


@pytest.mark.parametrize(("max_clients", "max_steps"), [(30, 60), (1, 60), (30, 1)])
def test_the_run_folder_has_a_picture_of_the_events(timed, max_clients, max_steps):
    EventsFigure(max_clients=max_clients, max_steps=max_steps, dpi=30, formats=["png"]).on_run_end(
        timed
    )
    assert (timed.run_dir / "events.png").read_bytes().startswith(PNG)


@pytest.mark.parametrize(
    ("text", "new"),
    [("30.0", "nan"), ("13.5", "x"), ("late,2", "late,"), ("kind", "sort"), (",late,2,1,", "")],
)
def test_a_table_that_cannot_be_read_is_no_picture_and_a_warning(timed, caplog, text, new):
    path = timed.run_dir / "events.csv"
    path.write_text(path.read_text().replace(text, new, 1))
    EventsFigure(max_clients=30, max_steps=60, dpi=30, formats=["png"]).on_run_end(timed)
    assert "events.png is not drawn" in caplog.text
    assert not (timed.run_dir / "events.png").exists()


def test_a_torn_last_line_is_left_out(timed):
    path = timed.run_dir / "events.csv"
    rows = read_rows(path)
    with path.open("a") as file:
        file.write("4,3")
    assert list(iterate_rows(path)) == rows


@pytest.mark.parametrize("most", others_slow([0, 40], [0]))
def test_any_staleness_and_any_number_of_bars_can_be_drawn(tmp_path, most):
    bars = [
        Bar(k, float(r), r + 0.5, ("arrival", "failure", "late")[k % 3], r % (most + 1))
        for k in range(30)
        for r in range(300)
    ]
    bars += [Bar(k, 300.0) for k in range(5)]
    steps = [float(r) for r in range(1, 301)]
    with figure(tmp_path / "events.png", size=(11, 8), dpi=30, title="") as picture:
        draw_events(picture, events_chart(bars, steps))
    assert (tmp_path / "events.png").read_bytes().startswith(PNG)


def test_events_without_any_time_can_be_drawn(tmp_path):
    bars = [Bar(3, 0.0, 0.0, "arrival")]
    with figure(tmp_path / "events.png", size=(11, 3), dpi=30, title="") as picture:
        draw_events(picture, events_chart(bars, [0.0]))
    assert (tmp_path / "events.png").exists()


PACES = {
    "sync": (
        "pace.deadline=20",
        "pace.keep_first=4",
        "devices.hazard=0.01",
        "sampler.dropout=0.2",
    ),
    "buffered": ("pace.buffer=2",),
    "async": ("devices.hazard=0.01",),
}
RANKS = [("sync", 2), ("buffered", 3), ("async", 2)]


@pytest.mark.slow
@pytest.mark.parametrize(("pace", "size"), RANKS)
def test_any_number_of_ranks_writes_the_same_events(flfast_run, pace, size):
    words = ("experiment=quick", "model=logistic", "callbacks=none", "rounds=6", "eval_every=6")
    words = (*words, "engine=eager", "batch_size=-1")
    table = "+callbacks.events={_target_: flfast.output.callbacks.events_table.EventsTable}"
    words = (*words, table, f"pace={pace}", *PACES[pace], "devices=lognormal")
    alone, ranks = (
        (flfast_run(*words, *own, run_dir=f"run-{len(own)}") / "events.csv").read_text()
        for own in ((), ("strategy=ddp", f"trainer.devices={size}"))
    )
    assert alone.count("step") == 6
    assert alone.count("arrival") >= 6
    assert ranks == alone
