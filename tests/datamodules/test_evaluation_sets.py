"""A share of the examples: of each client, of every set, the same ones in each pass."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from flfast.datamodules.evaluation_sets import EvaluationDataModule, _drawn
from flfast.engines.evaluation.metrics import set_metrics
from flfast.federation.table_rows import client_columns

NAMES = [("global", "local", "val"), ("personal", "personal_val")]


@given(
    st.lists(st.integers(0, 9) | st.just(100), min_size=1, max_size=8),
    st.integers(1, 100),
    st.integers(0, 99),
)
def test_each_group_keeps_its_share_rounded_up(sizes, percent, seed):
    fraction = percent / 100
    groups = np.repeat(np.arange(len(sizes)), sizes)
    indices = np.random.default_rng(seed).permutation(800)[: len(groups)]
    kept, owners = _drawn(indices, groups, fraction, seed)
    assert set(zip(kept, owners, strict=True)) <= set(zip(indices, groups, strict=True))
    found = np.bincount(owners, minlength=len(sizes))
    assert found.tolist() == [-(-percent * size // 100) for size in sizes]
    fewer, _ = _drawn(indices, groups, fraction / 2, seed)
    assert set(fewer) <= set(kept), "a smaller share is a part of a larger one"
    again, _ = _drawn(indices, groups, fraction, seed)
    assert (again == kept).all()


@pytest.mark.parametrize("names", NAMES)
def test_a_pass_has_that_share_of_each_set_and_all_clients(make_data, names):
    data = make_data([20, 31, 47], split=(0.2, 0.3), num_test=40)
    whole, part = (EvaluationDataModule(data, names, fraction=p) for p in (1.0, 0.4))
    assert part.sets.keys() == whole.sets.keys()
    for name, found in part.sets.items():
        sizes, kept = (np.bincount(1 + s.group, minlength=4) for s in (whole.sets[name], found))
        assert kept.tolist() == np.ceil(0.4 * sizes).astype(int).tolist()
    assert set(part.indices) <= set(whole.indices)


def test_a_set_knows_the_clients_that_have_examples_and_no_others(make_data):
    """So that measuring a few examples does not take as long as the population is large."""
    data = make_data([20, 1, 31, 1, 47], split=(0.2, 0.3))
    found = EvaluationDataModule(data, ("local",)).sets["local"]
    assert found.groups.tolist() == [0, 2, 4]
    assert (found.groups[found.place] == found.group).all()
    scores = {"loss": torch.arange(len(found.positions)).float()}
    scores |= {"scores": torch.eye(3)[found.place], "targets": torch.from_numpy(found.place)}
    metrics = set_metrics(data.examples.task_type, scores, found)
    assert {name: len(value) for name, value in metrics.values.items()}.keys() >= {"loss"}
    assert {len(value) for value in metrics.values.values()} == {3}
    rows = dict(client_columns("local", metrics))
    assert rows.keys() == {0, 2, 4}
    for client, row in rows.items():
        expected = scores["loss"][torch.from_numpy(found.group == client)].mean()
        assert row["local/loss"] == pytest.approx(float(expected))
