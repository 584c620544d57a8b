"""Local epochs in calls: the same examples in the same steps, whatever the batching."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flfast.datamodules.batches import local_epoch
from flfast.engines.fused.run.step_schedule import CHUNK_EXAMPLES, epoch_chunks
from flfast.state.plan import Batching, batch_limit

batchings = st.builds(
    Batching,
    batch_size=st.one_of(st.just(-1), st.integers(1, 40), st.integers(200, 700)),
    accumulate=st.integers(1, 4),
    micro_batch=st.one_of(st.none(), st.integers(1, 50)),
    last_batch=st.sampled_from(["keep", "drop", "pad"]),
    drop_single=st.booleans(),
    limit=st.one_of(st.just(1.0), st.floats(0.1, 1.0), st.integers(1, 5)),
).map(lambda b: b if b.batch_size > 0 else b._replace(accumulate=1))
sizes = st.one_of(st.integers(1, 60), st.integers(500, 1500))
cuts = st.one_of(st.none(), st.integers(1, 30))
thorough = settings(max_examples=200)


def steps_of(chunks):
    """Micro-batches (start, stop, share) by local step, in the order of their calls."""
    steps, current = [], []
    for chunk in chunks:
        for span in chunk.spans:
            if span.kind == "apply":
                steps.append(current)
                current = []
                continue
            for i in range(span.num):
                start = chunk.start + span.offset + i * span.size
                current.append((start, start + span.real, span.weight))
                if span.kind == "whole":
                    steps.append(current)
                    current = []
    assert not current, "a gradient is left that no step applies"
    return steps


def expected_steps(num_examples, batching, num_steps):
    epoch = local_epoch(num_examples, batching)
    parts = [
        (start, stop, scale / epoch.accumulate)
        for (start, stop), scale in zip(epoch.bounds, epoch.scales, strict=True)
    ]
    steps = [parts[i : i + epoch.accumulate] for i in range(0, len(parts), epoch.accumulate)]
    assert len(steps) == epoch.num_steps
    return steps[:num_steps]


@thorough
@given(sizes, batchings, cuts, st.booleans())
def test_the_steps_are_those_of_the_local_epoch(num_examples, batching, num_steps, exact):
    chunks = epoch_chunks(num_examples, batching, num_steps=num_steps, exact=exact)
    expected = expected_steps(num_examples, batching, num_steps)
    assert steps_of(chunks) == expected
    assert sum(chunk.num_steps for chunk in chunks) == len(expected)
    for step in expected:
        assert abs(sum(share for _, _, share in step) - 1) < 1e-12


@thorough
@given(sizes, batchings, cuts, st.booleans())
def test_every_position_is_made_ready_once_and_in_order(num_examples, batching, num_steps, exact):
    chunks = epoch_chunks(num_examples, batching, num_steps=num_steps, exact=exact)
    position = 0
    for chunk in chunks:
        assert chunk.start == position
        position = chunk.stop
    expected = expected_steps(num_examples, batching, num_steps)
    assert position == expected[-1][-1][1]


@thorough
@given(sizes, batchings, cuts, st.booleans())
def test_every_call_finds_its_rows(num_examples, batching, num_steps, exact):
    for chunk in epoch_chunks(num_examples, batching, num_steps=num_steps, exact=exact):
        rows = chunk.stop - chunk.start + chunk.padding
        reach = max(span.offset + span.num * span.size for span in chunk.spans)
        assert reach <= rows
        assert not chunk.padding or reach == rows, "no more padding than needed"
        for span in chunk.spans:
            assert span.real <= span.size
            assert span.num == 1 or span.real == span.size, "padding would be the next step's"
            assert span.size == span.real or not exact
        assert not exact or not chunk.padding


@thorough
@given(sizes, batchings, cuts)
def test_padding_is_less_than_a_quarter(num_examples, batching, num_steps):
    for chunk in epoch_chunks(num_examples, batching, num_steps=num_steps, exact=False):
        for span in chunk.spans:
            assert 4 * (span.size - span.real) < max(span.real, 1)
            whole = span.real in {batching.batch_size, batching.micro_batch}
            assert span.size == span.real or not whole


@thorough
@given(sizes, batchings, cuts, st.booleans())
def test_chunks_fit_in_a_cache_or_hold_one_batch(num_examples, batching, num_steps, exact):
    chunks = epoch_chunks(num_examples, batching, num_steps=num_steps, exact=exact)
    largest = max(span.real for chunk in chunks for span in chunk.spans)
    assert all(chunk.stop - chunk.start <= max(CHUNK_EXAMPLES, largest) for chunk in chunks)


def test_equal_steps_are_one_call():
    (chunk,) = epoch_chunks(109, Batching(10), num_steps=None, exact=False)
    assert [(span.num, span.size, span.real) for span in chunk.spans] == [(10, 10, 10), (1, 10, 9)]
    assert chunk.padding == 1


@pytest.mark.parametrize("batch_size", [50, 100, 500, -1])
def test_clients_of_many_sizes_share_few_programs(batch_size):
    found = {
        span.size
        for size in range(1, 1025)
        for chunk in epoch_chunks(size, Batching(batch_size), num_steps=None, exact=False)
        for span in chunk.spans
    }
    assert len(found) <= 4 * math.log2(max(found))  # four sizes from one power of two to the next


def test_a_limit_of_one_batch_is_not_all_of_them():
    one, all_of_them = (
        epoch_chunks(20, Batching(2, limit=batch_limit(limit)), num_steps=None, exact=True)[
            -1
        ].stop
        for limit in (1, 1.0)
    )
    assert (one, all_of_them) == (2, 20)
