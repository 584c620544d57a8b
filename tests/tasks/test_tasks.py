"""Losses and metrics of every task, against torchmetrics, scikit-learn and torch."""

import importlib

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch.nn import functional as F

from flfast.tasks.by_name import TASKS
from flfast.tasks.names import METRICS
from flfast.tasks.task_type import IGNORED

seeds = st.integers(0, 999)


@pytest.fixture(scope="module")
def reference():
    """The functions of torchmetrics, which takes a second to import."""
    return importlib.import_module("torchmetrics.functional")


def measured(name, outputs, targets):
    """Metrics of all examples together."""
    task_type = TASKS[name]
    found = task_type.by_group(
        task_type.statistics(outputs, targets), torch.zeros(len(targets), dtype=torch.int64), 1
    )
    return {key: value.item() for key, value in found.items()}


@given(st.integers(1, 40), st.integers(2, 5), seeds, st.booleans())
def test_classification(reference, num, classes, seed, ties):
    rng = torch.Generator().manual_seed(seed)
    logits = torch.randn(num, classes, generator=rng)
    logits = logits.round() if ties else logits
    targets = torch.randint(classes, (num,), generator=rng)
    found = measured("classification", logits, targets)
    scores = TASKS["classification"].statistics(logits, targets)["scores"]
    one_hot = F.one_hot(targets, classes).flatten()
    accuracy = reference.classification.multiclass_accuracy(
        scores, targets, classes, average="micro"
    )
    assert found["auc"] == pytest.approx(
        reference.classification.binary_auroc(scores.flatten(), one_hot).item(), abs=1e-6
    )
    assert found["accuracy"] == pytest.approx(accuracy.item())
    assert found["loss"] == pytest.approx(F.cross_entropy(logits, targets).item(), rel=1e-5)


def test_auc_equals_the_micro_average_of_scikit_learn():
    from sklearn.metrics import roc_auc_score

    rng = torch.Generator().manual_seed(0)
    logits = torch.randn(200, 4, generator=rng)
    targets = torch.randint(4, (200,), generator=rng)
    found = measured("classification", logits, targets)
    scores, one_hot = logits.softmax(dim=1), F.one_hot(targets, 4)
    expected = roc_auc_score(one_hot.numpy(), scores.numpy(), average="micro")
    assert found["auc"] == pytest.approx(expected, abs=1e-6)
    labels = measured("multilabel", logits, one_hot)
    expected = roc_auc_score(one_hot.numpy(), logits.sigmoid().numpy(), average="micro")
    assert labels["auc"] == pytest.approx(expected, abs=1e-6)


def tokens(num, seed):
    rng = torch.Generator().manual_seed(seed)
    targets = torch.randint(7, (num, 5), generator=rng)
    targets[:, 1:][torch.rand(num, 4, generator=rng) < 0.5] = IGNORED
    return torch.randn(num, 5, 7, generator=rng), targets


@given(st.integers(1, 20), seeds)
def test_language_counts_tokens(reference, num, seed):
    logits, targets = tokens(num, seed)
    found = measured("language", logits, targets)
    expected = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED)
    assert found["loss"] == pytest.approx(expected.item(), rel=1e-5)
    perplexed = reference.perplexity(logits, targets, ignore_index=IGNORED)
    assert found["perplexity"] == pytest.approx(perplexed.item(), rel=1e-5)
    kept = targets != IGNORED
    right = (logits.argmax(dim=2) == targets)[kept].double().mean()
    assert found["accuracy"] == pytest.approx(right.item())


@given(st.lists(st.lists(st.sampled_from(["right", "wrong", "ignored"]), min_size=1), min_size=1))
def test_an_exact_match_has_every_counted_token_right(examples):
    length = max(map(len, examples))
    # The model predicts token 1 everywhere; a first position that counts makes each example valid.
    target = {"right": 1, "wrong": 0, "ignored": IGNORED}
    filled = [["right", *own, *["ignored"] * (length - len(own))] for own in examples]
    targets = torch.tensor([[target[kind] for kind in own] for own in filled])
    logits = torch.tensor([0.0, 1.0]).expand(*targets.shape, 2)
    exact = sum("wrong" not in own for own in examples) / len(examples)
    assert measured("language", logits, targets)["exact_match"] == pytest.approx(exact)


@given(st.integers(2, 20), seeds)
def test_weighted_losses_of_a_batch_are_the_mean_over_its_tokens(num, seed):
    logits, targets = tokens(num, seed)
    task_type = TASKS["language"]
    expected = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED)
    losses = task_type.losses(logits, targets)
    assert (losses * task_type.weights(targets)).sum() == pytest.approx(expected.item(), rel=1e-5)
    # A padded batch: the last example has no weight, whatever its tokens are.
    real = torch.full((num,), 1 / (num - 1)).index_fill(0, torch.tensor([num - 1]), 0.0)
    padded = (losses * task_type.weights(targets, real)).sum()
    whole = F.cross_entropy(
        logits[:-1].flatten(0, 1), targets[:-1].flatten(), ignore_index=IGNORED
    )
    assert padded == pytest.approx(whole.item(), rel=1e-5)


@given(st.integers(2, 30), st.integers(1, 3), seeds)
def test_regression(reference, num, width, seed):
    rng = torch.Generator().manual_seed(seed)
    outputs, targets = torch.randn(2, num, width, generator=rng).unbind()
    # Of targets that hardly differ, torchmetrics says 0.
    assume(targets.var(dim=0).sum() > 1e-2)
    found = measured("regression", outputs, targets)
    assert found["loss"] == pytest.approx(
        reference.mean_squared_error(outputs, targets).item(), rel=1e-5
    )
    assert found["mae"] == pytest.approx(
        reference.mean_absolute_error(outputs, targets).item(), rel=1e-5
    )
    r2 = reference.r2_score(outputs.double(), targets.double(), multioutput="variance_weighted")
    assert found["r2"] == pytest.approx(r2.item(), rel=1e-4, abs=1e-5)


@given(st.integers(1, 30), st.integers(2, 5), seeds)
def test_multilabel(reference, num, labels, seed):
    rng = torch.Generator().manual_seed(seed)
    logits = torch.randn(num, labels, generator=rng)
    targets = torch.randint(2, (num, labels), generator=rng)
    found = measured("multilabel", logits, targets)
    expected = F.binary_cross_entropy_with_logits(logits, targets.float())
    assert found["loss"] == pytest.approx(expected.item(), rel=1e-5)
    scores = logits.sigmoid()  # torchmetrics takes logits within [0, 1] for probabilities
    accuracy = reference.classification.multilabel_accuracy(
        scores, targets, labels, average="micro"
    )
    assert found["accuracy"] == pytest.approx(accuracy.item())
    f1 = reference.classification.multilabel_f1_score(
        scores, targets, labels, average="micro"
    ).item()
    if targets.any() or (logits > 0).any():  # torchmetrics says 0 where F1 is not defined
        assert found["f1"] == pytest.approx(f1)


@pytest.mark.parametrize("name", [name for name in TASKS if name != "module"])  # has its own loss
def test_the_mean_loss_is_the_mean_of_losses(name):
    width = 1 if name == "survival" else 3
    shape = {"language": (6, 4, width), "segmentation": (6, width, 2, 2)}.get(name, (6, width))
    outputs = torch.randn(shape)
    targets = {
        "classification": torch.arange(6) % width,
        "language": torch.arange(24).view(6, 4) % width,
        "regression": torch.randn(6, width),
        "multilabel": torch.randint(2, (6, width)),
        "survival": torch.tensor([[2.0, 1], [1, 1], [3, 0], [3, 1], [5, 0], [4, 1]]),
        "forecasting": torch.rand(6, 6, 1) + 0.1,
        "segmentation": torch.arange(24).view(6, 2, 2) % width,
    }[name]
    task_type = TASKS[name]
    task_type.check_targets(targets, width)
    assert task_type.output_shape(targets, width) == outputs.shape
    assert task_type.metrics == METRICS[name]
    losses = task_type.losses(outputs, targets)
    assert losses.shape == (6,)
    empty = task_type.statistics(*task_type.no_predictions(width))
    found = task_type.statistics(outputs.double(), targets)
    assert {k: v.dtype for k, v in empty.items()} == {k: v.dtype for k, v in found.items()}
    assert {k: v.shape[1:] for k, v in empty.items()} == {k: v.shape[1:] for k, v in found.items()}
    torch.testing.assert_close(task_type.loss(outputs, targets), losses.mean())


@pytest.mark.parametrize(
    ("name", "targets", "message"),
    [
        ("classification", torch.tensor([0, 3]), "labels must lie in [0, 3), got 0 to 3"),
        ("language", torch.tensor([[0], [IGNORED]]), "example 1 has no target"),
        ("language", torch.tensor([[0, 5]]), "target tokens must lie in [0, 3), got 0 to 5"),
        ("language", torch.tensor([0]), "must be int64 [N, T], got int64 [1]"),
        ("regression", torch.zeros(2), "must be float32 [N, 3], got float32 [2]"),
        ("regression", torch.full((1, 3), float("nan")), "target of example 0 is not finite"),
        ("multilabel", torch.tensor([[0, 1, 2]]), "must be 0 or 1"),
        ("multilabel", torch.tensor([[0, 1]]), "must be [N, 3], got [1, 2]"),
    ],
)
def test_wrong_targets_are_a_clear_error(name, targets, message):
    with pytest.raises(ValueError) as error:
        TASKS[name].check_targets(targets, 3)
    assert message in str(error.value)
