import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score
from torchmetrics.functional.classification import binary_auroc, multiclass_accuracy

from flfast.evaluation.metrics import group_metrics, summary
from flfast.lit.predictions import PredictionStore


def predictions(num, num_classes, seed, *, ties):
    rng = torch.Generator().manual_seed(seed)
    logits = torch.randn(num, num_classes, generator=rng)
    store = PredictionStore()
    targets = torch.randint(num_classes, (num,), generator=rng)
    store.update(logits.round() if ties else logits, targets)
    return store.collect(num_classes=3)


@given(st.integers(1, 40), st.integers(2, 5), st.integers(1, 4), st.integers(0, 99), st.booleans())
def test_metrics_by_group_equal_torchmetrics_on_each_group(num, classes, groups, seed, ties):
    found = predictions(num, classes, seed, ties=ties)
    group = torch.from_numpy(np.random.default_rng(seed).integers(0, groups, num))
    metrics = group_metrics(found, group, groups)
    for g in range(groups):
        members = group == g
        assert metrics.num_examples[g] == members.sum()
        if not members.any():
            assert metrics.loss[g].isnan()
            continue
        scores, targets = found.scores[members], found.targets[members]
        one_hot = torch.nn.functional.one_hot(targets, classes)
        auc = binary_auroc(scores.flatten(), one_hot.flatten())
        accuracy = multiclass_accuracy(scores, targets, classes, average="micro")
        assert metrics.auc[g] == pytest.approx(auc.item(), abs=1e-6)
        assert metrics.accuracy[g] == pytest.approx(accuracy.item())
        assert metrics.loss[g] == pytest.approx(found.loss[members].mean().item(), rel=1e-5)


def test_auc_equals_the_micro_average_of_scikit_learn():
    found = predictions(200, 4, 0, ties=False)
    metrics = group_metrics(found, torch.zeros(200, dtype=torch.int64), 1)
    one_hot = torch.nn.functional.one_hot(found.targets, 4).numpy()
    expected = roc_auc_score(one_hot, found.scores.numpy(), average="micro")
    assert metrics.auc[0] == pytest.approx(expected, abs=1e-6)


def test_summary_weighs_by_examples_and_skips_empty_groups():
    store = PredictionStore()
    logits = torch.tensor([[2.0, 0.0]] * 4)
    store.update(logits, torch.tensor([0, 0, 0, 1]))
    # Group 0 has three correct predictions, group 1 is empty, group 2 has a wrong one.
    found = summary(group_metrics(store.collect(num_classes=3), torch.tensor([0, 0, 0, 2]), 3))
    assert found["accuracy"] == 0.75
    assert found["accuracy_std"] == 0.5
    assert found["accuracy_worst10"] == 0.0


def test_metrics_of_half_precision_predictions_are_float32():
    store = PredictionStore()
    store.update(torch.randn(5, 3).bfloat16(), torch.zeros(5, dtype=torch.int64))
    assert store.collect(num_classes=3).loss.dtype == torch.float32


def test_the_accuracy_of_correct_predictions_is_exactly_one():
    store = PredictionStore()
    targets = torch.arange(97) % 3
    store.update(torch.nn.functional.one_hot(targets).float() * 9, targets)
    found = summary(group_metrics(store.collect(num_classes=3), torch.arange(97) % 7, 7))
    assert found["accuracy"] == 1.0
