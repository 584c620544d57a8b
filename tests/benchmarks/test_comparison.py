from benchmarks.comparison import compare, notes, table
from benchmarks.summary import Spread


def run(*train_s, eval_s=1.0, start=10.0, loss=2.0):
    rounds = [{"train_s": s, "eval_s": eval_s} for s in train_s]
    return {"rounds": rounds, "startup_s": start, "loss": loss}


def entry(before, now):
    return {"workload": {"name": "W1"}, "measured": {"flfast@abc": before, "flfast": now}}


PAIRS = [("flfast@abc", "flfast")]


def test_ratios_are_those_of_pairs():
    # The machine is twice as slow in the second repeat, for both.
    before, now = [run(3.0), run(7.0, eval_s=1.0)], [run(1.0), run(3.0, eval_s=1.0)]
    (found,) = compare(entry(before, now), PAIRS)
    assert found.ratio["whole"] == Spread(4 / 2, 2.0, 8 / 4)
    assert found.ratio["train"] == Spread(7 / 3, (3 + 7 / 3) / 2, 3.0)
    assert found.seconds["train"] == (5.0, 2.0)
    assert found.least == 4 / 2
    assert table([found]).row_count == 1


def test_a_verdict_needs_all_pairs():
    def verdict(*before):
        return compare(entry([run(s) for s in before], [run(1.0), run(1.0)]), PAIRS)[0].verdict

    assert verdict(3.0, 4.0) == "faster"
    assert verdict(0.5, 0.4) == "slower"
    assert verdict(0.5, 4.0) == "within the spread"
    assert verdict(3.0) == "one pair"  # the call ended before the second


def test_what_did_not_run_is_not_compared():
    assert compare(entry([], [run(1.0)]), PAIRS) == []
    assert compare(entry([run(1.0)], []), PAIRS) == []


def test_other_numbers_are_said():
    same = compare(entry([run(1.0)], [run(1.0, loss=2.0001)]), PAIRS)
    assert notes(same) == []
    (said,) = notes(compare(entry([run(1.0)], [run(1.0, loss=2.1)]), PAIRS))
    assert "the loss is 2 with flfast@abc and 2.1 with flfast" in said
    assert notes(compare(entry([run(1.0, loss=None)], [run(1.0, loss=None)]), PAIRS)) == []
