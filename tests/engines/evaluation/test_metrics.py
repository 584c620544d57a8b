import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from flfast.datamodules.evaluation_sets import EvaluationSet
from flfast.engines.evaluation.metrics import (
    GroupMetrics,
    group_metrics,
    set_metrics,
    summary,
)
from flfast.lit.predictions import PredictionStore
from flfast.tasks.by_name import TASKS as ALL_TASKS
from flfast.tasks.classification import CLASSIFICATION
from flfast.tasks.task_type import IGNORED

TASKS = {name: task for name, task in ALL_TASKS.items() if name != "module"}


def stored(task_type, outputs, targets):
    store = PredictionStore(task_type)
    store.update(outputs, targets)
    return store.collect(num_classes=outputs.shape[1 if outputs.ndim == 4 else -1])


def draw(name, num, width, seed):
    """Outputs and targets of a task."""
    rng = torch.Generator().manual_seed(seed)
    if name == "classification":
        return (
            torch.randn(num, width, generator=rng),
            torch.randint(width, (num,), generator=rng),
        )
    if name == "language":
        targets = torch.randint(width, (num, 4), generator=rng)
        targets[:, 1:][torch.rand(num, 3, generator=rng) < 0.4] = IGNORED
        return torch.randn(num, 4, width, generator=rng), targets
    if name == "survival":
        time = torch.rand(num, generator=rng)
        event = torch.randint(2, (num,), generator=rng)
        return torch.randn(num, 1, generator=rng), torch.stack([time, event], dim=1)
    if name == "forecasting":
        targets = torch.rand(num, width + 3, 1, generator=rng) + 0.1
        return torch.randn(num, width, generator=rng), targets
    if name == "segmentation":
        width = max(width, 2)
        targets = torch.randint(width, (num, 3, 4), generator=rng)
        targets[:, 1:][torch.rand(num, 2, 4, generator=rng) < 0.4] = IGNORED
        return torch.randn(num, width, 3, 4, generator=rng), targets
    outputs = torch.randn(num, width, generator=rng)
    targets = torch.randn(num, width, generator=rng)
    return outputs, targets if name == "regression" else (targets > 0).float()


@given(
    st.sampled_from(sorted(TASKS)),
    st.integers(1, 40),
    st.integers(2, 5),
    st.integers(1, 4),
    st.integers(0, 99),
)
def test_metrics_of_a_group_are_those_of_its_examples_alone(name, num, width, groups, seed):
    task_type = TASKS[name]
    found = stored(task_type, *draw(name, num, width, seed))
    group = torch.from_numpy(np.random.default_rng(seed).integers(0, groups, num))
    metrics = group_metrics(task_type, found, group, groups)
    assert tuple(metrics.values) == task_type.metrics
    for g in range(groups):
        members = group == g
        assert metrics.num_examples[g] == members.sum()
        if not members.any():
            assert metrics.values["loss"][g].isnan()
            continue
        own = {key: value[members] for key, value in found.items()}
        alone = group_metrics(task_type, own, torch.zeros(int(members.sum())).long(), 1)
        for key, value in alone.values.items():
            assert metrics.values[key][g] == pytest.approx(value.item(), rel=1e-9, nan_ok=True)


@given(st.sampled_from(sorted({*TASKS} - {"survival"})), st.integers(2, 30), st.integers(0, 99))
def test_a_summary_of_groups_is_that_of_all_examples(name, num, seed):
    """AUC and survival apart, whose summaries are means over clients by definition."""
    task_type = TASKS[name]
    found = stored(task_type, *draw(name, num, 3, seed))
    group = torch.arange(num) % 3
    by_group = summary(group_metrics(task_type, found, group, 3))
    together = summary(group_metrics(task_type, found, torch.zeros_like(group), 1))
    for key in task_type.metrics:
        if key != "auc":
            assert by_group[key] == pytest.approx(together[key], rel=1e-6, nan_ok=True)


def test_summary_weighs_by_examples_and_skips_empty_groups():
    logits, targets = torch.tensor([[2.0, 0.0]] * 4), torch.tensor([0, 0, 0, 1])
    predictions = stored(CLASSIFICATION, logits, targets)
    # Group 0 has three correct predictions, group 1 is empty, group 2 has a wrong one.
    found = summary(group_metrics(CLASSIFICATION, predictions, torch.tensor([0, 0, 0, 2]), 3))
    assert found["accuracy"] == 0.75
    assert found["accuracy_std"] == 0.5
    assert found["accuracy_worst10"] == 0.0


def test_summary_skips_groups_whose_auc_is_not_defined():
    outputs, targets = draw("multilabel", 6, 2, seed=0)
    targets[3:] = 0  # the second group has no positive label
    group = torch.arange(6) // 3
    task_type = TASKS["multilabel"]
    metrics = group_metrics(task_type, stored(task_type, outputs, targets), group, 2)
    assert metrics.values["auc"][1].isnan()
    assert summary(metrics)["auc"] == metrics.values["auc"][0]


def test_summary_skips_groups_without_comparable_pairs():
    outputs, targets = draw("survival", 9, 1, seed=0)
    targets[6:, 1] = 0  # the third group has no event
    task_type, group = TASKS["survival"], torch.arange(9) // 3
    metrics = group_metrics(task_type, stored(task_type, outputs, targets), group, 3)
    found, own = summary(metrics), metrics.values["concordance"]
    assert own[2].isnan()
    assert found["concordance"] == own[:2].mean()
    assert found["concordance_std"] == own[:2].std(correction=0)
    assert found["concordance_worst10"] == own[:2].min()
    none = group_metrics(task_type, stored(task_type, outputs[6:], targets[6:]), group[:3], 1)
    assert all(np.isnan(value) for key, value in summary(none).items() if key != "loss")


def test_a_diverged_group_is_not_left_out():
    outputs = torch.tensor([[1.0], [float("nan")]])
    task_type = TASKS["regression"]
    metrics = group_metrics(
        task_type, stored(task_type, outputs, torch.zeros(2, 1)), torch.arange(2), 2
    )
    assert np.isnan(summary(metrics)["mae"])


@pytest.mark.parametrize("name", sorted(TASKS))
def test_a_single_prediction_of_a_single_output_keeps_its_shape(name):
    outputs, targets = draw(name, 2, 1, seed=0)
    both, one = (
        stored(TASKS[name], outputs, targets),
        stored(TASKS[name], outputs[:1], targets[:1]),
    )
    for key, value in both.items():
        torch.testing.assert_close(one[key], value[:1])


def test_the_worst_tenth_of_losses_are_the_largest():
    outputs = torch.arange(20.0).unsqueeze(1)
    predictions = stored(TASKS["regression"], outputs, torch.zeros(20, 1))
    found = summary(group_metrics(TASKS["regression"], predictions, torch.arange(20), 20))
    assert found["loss_worst10"] == (18**2 + 19**2) / 2


def test_metrics_of_half_precision_predictions_are_float32():
    found = stored(CLASSIFICATION, torch.randn(5, 3).bfloat16(), torch.zeros(5).long())
    assert found["loss"].dtype == torch.float32


def test_the_accuracy_of_correct_predictions_is_exactly_one():
    targets = torch.arange(97) % 3
    predictions = stored(CLASSIFICATION, torch.nn.functional.one_hot(targets).float() * 9, targets)
    found = summary(group_metrics(CLASSIFICATION, predictions, torch.arange(97) % 7, 7))
    assert found["accuracy"] == 1.0


@pytest.mark.parametrize("num", [3, 150, 400])
@pytest.mark.parametrize("task", sorted(TASKS))
def test_a_set_knows_whether_one_class_is_predicted_for_all(task, num):
    outputs, targets = draw(task, num, 3, seed=1)
    part = EvaluationSet(
        *(np.arange(num), np.zeros(num, int), np.zeros(1, int), np.zeros(num, int))
    )

    def single(outputs, targets):
        return set_metrics(TASKS[task], stored(TASKS[task], outputs, targets), part).single_class

    assert not single(outputs, targets)
    if task == "classification":
        outputs[:, 1] = 99
        assert single(outputs, targets)
        assert not single(outputs, torch.full_like(targets, 1))  # they are what is predicted
        outputs[-1, 2] = 100
        assert not single(outputs, targets)


VALUES = st.lists(st.floats(-10, 10) | st.just(math.nan), min_size=3, max_size=3)


@given(st.dictionaries(st.sampled_from(["acc", "acc_std", "f 2", "loss"]), VALUES, min_size=1))
def test_a_module_has_the_spread_of_all_that_it_logs(found):
    """A metric whose name is that of another's spread is itself."""
    num = torch.tensor([3, 1, 2])
    values = {name: torch.tensor(own, dtype=torch.float64) for name, own in found.items()}
    first = next(iter(values))
    metrics = GroupMetrics(num, num, num.double(), values, {}, first, tuple(values))
    whole = summary(metrics)
    for name in values:
        alone = summary(metrics._replace(headline=name, spread=(name,)))
        for column in (name, f"{name}_std", f"{name}_worst10"):
            assert whole[column] == pytest.approx(alone[column], nan_ok=True)
    assert len(whole) == len(
        {f"{name}{end}" for name in values for end in ("", "_std", "_worst10")}
    )
