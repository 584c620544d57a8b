"""A hint appears once, in the round after which evaluation has taken longer than training."""

from hypothesis import given
from hypothesis import strategies as st

from flfast.federation.evaluation_hint import evaluation_hint

SECONDS = st.floats(0, 60)


@given(st.lists(st.tuples(SECONDS, SECONDS), max_size=12))
def test_it_appears_where_evaluation_becomes_the_longer_one(spent):
    rows = [{"round": 0, "time/eval_s": 99.0}]
    longer = False
    for training, evaluation in spent:
        rows.append({"time/train_s": training, "time/eval_s": evaluation})
        before = longer
        total = [sum(row[key] for row in rows[1:]) for key in ("time/train_s", "time/eval_s")]
        longer = total[1] > total[0] and total[1] >= 30
        said = evaluation_hint(rows)
        assert bool(said) == (longer and not before)
        assert not said or ("eval_every=" in said and "eval_examples=" in said)


def test_rounds_without_evaluation_and_long_runs_are_quiet():
    rows = [{}, {"time/train_s": 1.0}]
    assert not evaluation_hint(rows)
    assert not evaluation_hint([*rows * 60, {"time/train_s": 1.0, "time/eval_s": 1e6}])
