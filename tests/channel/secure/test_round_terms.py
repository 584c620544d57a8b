"""The graph of neighbours is symmetric, regular and connected."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flfast.channel.secure.round_terms import neighbor_graph


@given(st.integers(1, 40), st.one_of(st.none(), st.integers(2, 45)), st.integers(0, 1000))
def test_the_graph_is_symmetric_regular_and_connected(num, degree, seed):
    graph = neighbor_graph(num, degree, np.random.default_rng(seed))
    wanted = num - 1 if degree is None else min(degree + degree % 2, num - 1)
    reached, new = {0}, {0}
    while new:
        new = {other for k in new for other in graph[k]} - reached
        reached |= new
    assert len(reached) == num
    for k, neighbors in enumerate(graph):
        assert len(neighbors) == wanted
        assert list(neighbors) == sorted(set(neighbors) - {k})
        assert all(k in graph[other] for other in neighbors)


@pytest.mark.parametrize("degree", [None, 4])
def test_the_generator_decides(degree):
    first, again, other = (
        neighbor_graph(20, degree, np.random.default_rng(seed)) for seed in (1, 1, 2)
    )
    assert first == again
    assert (first == other) is (degree is None)
