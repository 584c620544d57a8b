"""A stack reads every client's examples in the order in which it alone would read them."""

from itertools import pairwise

import numpy as np
import pytest

from flfast.engines.fused.run.stack_schedule import StackOrder, local_steps, stack_spans
from flfast.state.plan import Batching

SIZES = [23, 23, 11, 9, 4, 1]


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize(("epochs", "steps"), [(1, None), (3, None), (None, 7)])
@pytest.mark.parametrize("last", ["keep", "drop", "pad"])
def test_a_stack_reads_the_examples_of_its_clients(make_data, epochs, steps, last, exact):
    data, batching = make_data(SIZES), Batching(5, last_batch=last)
    counts = [local_steps(n, batching, epochs=epochs, steps=steps) for n in SIZES]
    clients = [data.client(k, batching=batching) for k in range(len(SIZES))]
    order, read = StackOrder(clients, counts), [[] for _ in SIZES]
    for span in stack_spans(order.sizes, batching, exact=exact):
        indices, sizes = order.indices(span)
        assert indices.shape == (span.num, span.width, span.size)
        for step, column in np.ndindex(sizes.shape):
            own = indices[step, column]
            read[span.place + column] += own[: sizes[step, column]].tolist()
            assert set(own) <= set(clients[span.place + column].indices)
    assert order.seen.tolist() == [len(own) for own in read]
    for k, (own, count) in enumerate(zip(read, counts, strict=True)):
        alone, cuts = data.client(k, batching=batching), range(0, len(own), count.epoch)
        expected = [alone.next_order()[: b - a] for a, b in pairwise([*cuts, len(own)])]
        assert own == np.concatenate(expected).tolist()
