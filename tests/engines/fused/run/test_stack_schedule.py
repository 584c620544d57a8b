"""Stacks: every client takes exactly its steps, in its order, and little is padding."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flfast.datamodules.batches import local_epoch
from flfast.engines.fused.run.stack_schedule import (
    SMALL_BATCH,
    group_clients,
    local_steps,
    stack_spans,
)
from flfast.state.plan import Batching

batchings = st.builds(
    Batching,
    batch_size=st.one_of(st.just(-1), st.integers(1, 12), st.integers(30, 90)),
    accumulate=st.just(1),
    micro_batch=st.none(),
    last_batch=st.sampled_from(["keep", "drop", "pad"]),
    drop_single=st.booleans(),
    limit=st.one_of(st.just(1.0), st.floats(0.1, 1.0), st.integers(1, 5)),
)
lengths = st.one_of(
    st.tuples(st.integers(1, 4), st.none()), st.tuples(st.none(), st.integers(1, 30))
)
cohorts = st.lists(st.integers(1, 150), min_size=1, max_size=9)
thorough = settings(max_examples=100)


def steps_of(cohort, batching, length):
    epochs, steps = length
    return [local_steps(n, batching, epochs=epochs, steps=steps) for n in cohort]


def table(sizes):
    longest = max(map(len, sizes))
    return np.stack([np.pad(own, (0, longest - len(own))) for own in sizes], axis=1)


@thorough
@given(st.integers(1, 150), batchings, lengths)
def test_steps_are_those_of_the_local_epochs(num_examples, batching, length):
    epochs, steps = length
    found = local_steps(num_examples, batching, epochs=epochs, steps=steps)
    epoch = local_epoch(num_examples, batching)
    once = [stop - start for start, stop in epoch.bounds]
    expected = (once * (epochs or steps))[: steps or None]
    assert found.sizes.tolist() == expected
    assert found.epoch == sum(once) and found.total == sum(expected)


@thorough
@given(cohorts, batchings, lengths, st.integers(1, 10))
def test_every_client_is_in_one_stack_that_narrows(cohort, batching, length, width):
    sizes = [own.sizes for own in steps_of(cohort, batching, length)]
    stacks = group_clients(sizes, width)
    assert sorted(place for stack in stacks for place in stack) == list(range(len(cohort)))
    for stack in stacks:
        assert len(stack) <= width
        numbers = [len(sizes[place]) for place in stack]
        assert numbers == sorted(numbers, reverse=True)


@thorough
@given(cohorts, batchings, lengths, st.integers(2, 10), st.booleans())
def test_every_client_takes_its_steps_in_their_order(cohort, batching, length, width, exact):
    sizes = [own.sizes for own in steps_of(cohort, batching, length)]
    for stack in group_clients(sizes, width):
        own = [sizes[place] for place in stack]
        taken = [0] * len(own)
        for span in stack_spans(table(own), batching, exact=exact):
            for place in range(span.place, span.place + span.width):
                assert span.step == taken[place], "a step is lost, doubled or out of turn"
                steps = own[place][span.step : span.step + span.num]
                assert len(steps) == span.num
                assert (steps == span.size).all() if exact else (steps <= span.size).all()
                taken[place] += span.num
        assert taken == [len(steps) for steps in own]


@thorough
@given(cohorts, batchings, lengths, st.integers(2, 10))
def test_padding_is_bounded_but_in_last_and_in_small_batches(cohort, batching, length, width):
    sizes = [own.sizes for own in steps_of(cohort, batching, length)]
    for stack in group_clients(sizes, width):
        own = [sizes[place] for place in stack]
        largest = max(int(steps.max()) for steps in own)
        for span in stack_spans(table(own), batching, exact=False):
            assert span.size <= max(1.25 * largest, 1)
            for steps in own[span.place : span.place + span.width]:
                assert span.size <= max(2.5 * steps.max(), 1.25 * 2 * SMALL_BATCH)


def test_equal_clients_are_one_call_and_one_more_for_the_rest():
    sizes = [own.sizes for own in steps_of([43, 43, 43], Batching(10), (2, None))]
    padded = list(stack_spans(table(sizes), Batching(10), exact=False))
    assert padded == [(0, 10, 0, 3, 10)]
    exact = list(stack_spans(table(sizes), Batching(10), exact=True))
    assert exact == [(0, 4, 0, 3, 10), (4, 1, 0, 3, 3), (5, 4, 0, 3, 10), (9, 1, 0, 3, 3)]


@pytest.mark.parametrize(("width", "stacks"), [(1, [[0], [1], [2]]), (2, [[2, 0], [1]])])
def test_a_stack_of_one_leaves_the_order_alone(width, stacks):
    sizes = [np.array([10, 10]), np.array([10]), np.array([10, 10, 3])]
    assert group_clients(sizes, width) == stacks
