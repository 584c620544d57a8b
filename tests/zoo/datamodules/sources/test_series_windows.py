"""Windows stay within their part, and nothing of the test part is in training."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from flfast.datamodules.federated import FederatedDataModule
from flfast.datamodules.fetching import Loading
from flfast.datamodules.partitions.natural import natural
from flfast.datamodules.splits import Split
from flfast.zoo.datamodules.sources.loads import Loads
from flfast.zoo.datamodules.sources.series_windows import WindowSource, naive_error, windows_of

CUT = WindowSource(window=5, horizon=3, stride=1, season=2, test_fraction=0.25, loss="mse")


def numbered(lengths):
    """Series whose first column names client and step, and whose second one is noise."""
    rng = np.random.default_rng(0)
    steps = [np.arange(n) + 1000.0 * k for k, n in enumerate(lengths)]
    return [np.stack([own, rng.normal(size=len(own))], axis=1) for own in steps]


def made(series, cut=CUT, num_targets=1):
    names = [f"s{k}" for k in range(len(series))]
    return windows_of(series, names, ["a", "b"], num_targets=num_targets, cut=cut)


def steps_of(examples, row):
    """The steps of the window and of the future of an example, from its first column."""
    mean, std = examples.targets[row, -3:-1, 0].double()
    values = torch.cat([examples.inputs[row, 0], examples.targets[row, :-3, 0]])
    return (values * std + mean).round().long().numpy()


def data_of(examples, split, group_size=1):
    options = {"seed": 0, "split": split, "loading": Loading(eval_batch_size=4)}

    def partition(num_examples, owner):
        if group_size is None:
            return np.arange(num_examples) % 2
        return natural(num_examples, owner=owner, group_size=group_size, rest="smaller")

    data = FederatedDataModule(lambda: examples, partition, **options)
    data.setup()
    return data


def split_of(examples, val):
    return data_of(examples, Split(val, 0.0)).splits


@given(
    st.lists(st.integers(24, 60), min_size=1, max_size=3),
    st.integers(1, 6),
    st.integers(1, 4),
    st.integers(1, 5),
    st.sampled_from([0.0, 0.2, 0.4]),
)
def test_windows_are_whole_and_parts_share_no_step(lengths, window, horizon, stride, val):
    cut = WindowSource(
        window=window, horizon=horizon, stride=stride, season=2, test_fraction=0.4, loss="mse"
    )
    assume(all(0.4 * n + 0.5 >= window + horizon + 1 for n in lengths))
    examples = made(numbered(lengths), cut)
    splits = split_of(examples, val)
    for client, length in enumerate(lengths):
        train_end = length - int(0.4 * length + 0.5)
        seen = {}
        for name, split in splits.items():
            seen[name] = set()
            for row in split.indices_of(client).tolist():
                steps = steps_of(examples, row)
                assert (np.diff(steps) == 1).all() and len(steps) == window + horizon
                assert (steps[0] - 1000 * client - (name == "test") * train_end) % stride == 0
                assert (steps >= 1000 * client + train_end).all() == (name == "test")
                assert (steps < 1000 * client + train_end).all() == (name != "test")
                seen[name] |= set(steps.tolist())
        assert not seen["val"] & seen["train"]
        assert not seen["val"] or min(seen["val"]) > max(seen["train"])
        expected = (length - train_end - window - horizon) // stride + 1
        assert len(splits["test"].indices_of(client)) == expected


def test_scaling_and_naive_error_see_no_test_value():
    series = numbered([40, 44])
    changed = [own.copy() for own in series]
    for own in changed:
        own[-len(own) // 4 :] *= 1e3
    first, second = made(series), made(changed)
    train = ~first.is_test & ~first.unused
    assert torch.equal(first.inputs[train], second.inputs[train])
    assert torch.equal(first.targets[train], second.targets[train])
    own = series[1][:33]
    facts = first.targets[np.flatnonzero(first.owner == 1)[0], -3:, 0].numpy()
    naive = np.mean([abs(own[t, 0] - own[t - 2, 0]) for t in range(2, 33)])
    std = own[:, 0].std()
    assert facts == pytest.approx([own[:, 0].mean(), std, naive / std], rel=1e-6)
    assert naive_error(own, 2, np.ones(len(own), bool))[0] == pytest.approx(naive)


@given(
    st.sampled_from([(0.25, 0.2, 0.0), (0.0, 0.2, 0.3), (0.0, 0.0, 0.3), (0.25, 0.0, 0.0)]),
    st.sampled_from([1, 2, 3, 9]),
    st.sampled_from([1, 2, None]),
    st.integers(0, 9),
)
def test_no_held_out_value_scales_what_is_trained_on(shares, stride, group_size, seed):
    test_fraction, val, test = shares
    cut = replace(CUT, test_fraction=test_fraction, stride=stride)
    series = [np.random.default_rng(seed).normal(size=(n, 2)) for n in (80, 90)]
    before = data_of(made(series, cut), Split(val, test), group_size)
    train = before.splits["train"].indices
    seen = [np.zeros(len(own), bool) for own in series]
    first = np.searchsorted(before.examples.owner, [0, 1])
    for index in train:
        client = before.examples.owner[index]
        start = (index - first[client]) * stride
        # Steps between windows are of training, too.
        seen[client][start : start + max(cut.window + cut.horizon, stride)] = True
    for client, own in enumerate(seen):
        whole = ~before.examples.unused & (before.examples.owner == client)
        if before.examples.is_test is not None:
            whole &= ~before.examples.is_test
        if set(np.flatnonzero(whole)) <= set(train):  # the steps behind the last window, too
            own[: round((1 - test_fraction) * len(own))] = True
    changed = [np.where(own[:, None], x, x**3 - 50) for own, x in zip(seen, series, strict=True)]
    after = data_of(made(changed, cut), Split(val, test), group_size)
    assert np.array_equal(after.splits["train"].indices, train)
    assert torch.equal(after.examples.inputs[train], before.examples.inputs[train])
    assert torch.equal(after.examples.targets[train], before.examples.targets[train])


def test_the_scale_is_that_of_the_training_steps():
    series = numbered([80])[0]
    data = data_of(made([series]), Split(0.2, 0.0))
    steps = np.unique([steps_of(data.examples, row) for row in data.splits["train"].indices])
    own = series[steps]
    naive = np.abs(own[2:, 0] - own[:-2, 0]).mean()
    facts = data.examples.targets[data.splits["val"].indices[0], -3:, 0].numpy()
    std = own[:, 0].std()
    assert len(steps) < 60
    assert facts == pytest.approx([own[:, 0].mean(), std, naive / std], rel=1e-6)


def test_inputs_are_views_of_one_array():
    examples = made(numbered([400, 300]), replace(CUT, window=50))
    held = examples.inputs.untyped_storage().nbytes()
    assert held < 1.2 * 700 * 2 * 4 < examples.inputs.nbytes / 20
    assert examples.inputs.shape[1:] == (2, 50)


@pytest.mark.parametrize(
    ("series", "cut", "message"),
    [
        (numbered([40, 20]), CUT, "series s1 has 20 steps, 5 of them for testing; allowed"),
        (numbered([7]), replace(CUT, test_fraction=0.0), "7 of them for training; allowed"),
        (numbered([40]), replace(CUT, season=30), "data.season=30: series s0 has 30 steps for"),
        ([np.ones((40, 2))], CUT, "series s0: column a is constant in training"),
        ([np.tile([[1.0, 2], [3, 4]], (20, 1))], CUT, "repeats itself every data.season=2 steps"),
    ],
)
def test_series_that_cannot_be_used_are_one_line(series, cut, message):
    with pytest.raises(ValueError) as error:
        made(series, cut)
    assert message in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("value", [0.0, 1e-300, 0.1, 7, 2.0**63, 1e31])
def test_a_constant_column_that_is_not_predicted_is_allowed(value):
    series = numbered([40])[0]
    series[:, 1] = value
    assert (made([series]).inputs[:, 1] == 0).all()


def test_made_loads_have_a_day_and_a_level_of_their_own():
    options = {"window": 48, "horizon": 24, "stride": 24, "season": 24, "test_fraction": 0.25}
    examples = Loads(num_clients=5, weeks=4, noise=0.0, loss="mae", seed=1, **options).load()
    facts = examples.targets[~examples.unused, -3:, 0]
    assert len(facts[:, 0].unique()) == 5
    assert (facts[:, 2] < 0.7).all()  # a day before is closer than the mean
    assert examples.objective == "mae" and examples.client_names[4] == "meter 4"
