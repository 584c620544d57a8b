import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from flfast.state.call_states import CallStates, OldCallError, Position
from flfast.state.store import ClientStates


def value(states):
    found = states.get(0)
    return 0 if found is None else int(found["calls"])


@given(
    steps=st.lists(st.tuples(st.integers(1, 3), st.integers(0, 2), st.booleans()), max_size=8),
)
def test_a_call_starts_from_the_state_before_it_however_often_it_is_made(tmp_path_factory, steps):
    """The state counts the calls before it: a server that goes back finds the count of then."""
    kept, states = CallStates(tmp_path_factory.mktemp("states")), ClientStates()
    counts = {0: 0}  # calls up to the end of each round
    round_idx, oldest, launch = 0, 0, 1
    for num_calls, lag, goes_back in steps:
        if goes_back:
            round_idx, launch = oldest, launch + 1
            counts = {number: count for number, count in counts.items() if number <= oldest}
        round_idx += 1
        for number in range(num_calls):
            for _ in range(2):  # the message comes twice
                kept.load(states, before=Position(round_idx, number, launch))
                assert value(states) == counts[round_idx - 1] + number
                states.put(0, {"calls": torch.tensor(value(states) + 1)})
                kept.save(states, after=Position(round_idx, number, launch), oldest=oldest)
            if number:
                with pytest.raises(OldCallError):
                    kept.load(states, before=Position(round_idx, number - 1, launch))
        counts[round_idx] = counts[round_idx - 1] + num_calls
        oldest = max(oldest, round_idx - lag)
    assert len([*kept.positions()]) <= 3 * 5  # calls of a round, and rounds to go back
