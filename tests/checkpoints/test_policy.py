"""When a checkpoint is due, and which round was best."""

from hypothesis import given
from hypothesis import strategies as st

from flfast.checkpoints.policy import Policy, best_round


def rows(*values, metric="val/loss"):
    return [{"round": r} | ({} if v is None else {metric: v}) for r, v in enumerate(values)]


@given(every=st.integers(1, 5), rounds=st.integers(1, 12))
def test_every_nth_round_and_the_last_one_leave_a_checkpoint(every, rounds):
    policy = Policy(every, 1, None)
    history = rows(*[None] * (rounds + 1))
    due = [
        r
        for r in range(rounds + 1)
        if policy.due(history[: r + 1], rounds=rounds, affordable=False)
    ]
    assert due == sorted({*range(every, rounds + 1, every), rounds})


def test_auto_asks_what_it_costs_and_none_is_none():
    history = rows(None, None, None)
    auto, none = Policy("auto", 1, None), Policy(0, 1, None)
    assert auto.due(history, rounds=9, affordable=True)
    assert not auto.due(history, rounds=9, affordable=False)
    assert auto.due(history, rounds=2, affordable=False)
    assert not none.due(history, rounds=2, affordable=True)


def test_a_new_best_round_leaves_a_checkpoint():
    policy = Policy("auto", 1, "val/loss")
    for num, due in ((2, True), (3, False), (4, True), (5, False)):
        history = rows(9.0, 3.0, 3.0, 2.0, None)[:num]
        assert policy.due(history, rounds=99, affordable=False) == due


def test_the_best_accuracy_is_the_highest_and_what_is_not_a_number_is_never_best():
    nan = float("nan")
    history = rows(0.99, 0.5, nan, 0.7, 0.7, metric="val/accuracy")
    assert best_round(history, "val/accuracy") == 3
    assert best_round(rows(1.0, nan), "val/loss") is None
    assert best_round(history, None) is None
