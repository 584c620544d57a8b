"""What single shifts do to examples."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import scipy
import torch
from engine_runs import engine_of
from hypothesis import given
from hypothesis import strategies as st
from shifting import CLASSES, images, make, splits

from flfast.datamodules.examples import group_by_client
from flfast.datamodules.shifts.applying import shift_examples
from flfast.engines.fused.training import FusedTraining
from flfast.state.plan import Batching
from flfast.zoo.datamodules.shifts.permuted_labels import permutation


def whole(num, num_clients):
    """All examples are for training; client k has every K-th."""
    none = np.zeros(0, dtype=np.int64)
    train = group_by_client(np.arange(num), np.arange(num) % num_clients, num_clients)
    empty = group_by_client(none, none, num_clients)
    return {"train": train, "val": empty, "test": empty}


def test_clusters_turn_images_by_right_angles_in_training_and_test():
    parts = splits(60, 6, np.random.default_rng(1))
    after, drawn = shift_examples(images(), make("rotation"), parts, seed=0)
    assert drawn["cluster"].tolist() == [0, 1, 2, 3, 0, 1]
    for client in range(6):
        for split in parts.values():
            own = split.indices_of(client)
            turned = torch.rot90(images().inputs[own], k=client % 4, dims=(2, 3))
            assert torch.equal(after.inputs[own], turned)


def test_noise_has_the_level_of_the_client():
    examples = images(900, dtype=torch.float32, shape=(20,))
    after, drawn = shift_examples(examples, make("noise", sigma=0.5), whole(900, 3), seed=3)
    assert drawn["sigma"].tolist() == [0.0, 0.25, 0.5]
    for client, sigma in enumerate([0.0, 0.25, 0.5]):
        added = (after.inputs - examples.inputs)[client::3].flatten()
        if sigma:
            assert scipy.stats.kstest(added.numpy() / sigma, "norm").pvalue > 0.01
        else:
            assert not added.any()


def test_bytes_stay_bytes_under_noise_and_blur():
    grey = images(40, shape=(1, 8, 8))
    grey.inputs[:] = 255
    noisy, _ = shift_examples(grey, make("noise", sigma=1.0), whole(40, 2), seed=0)
    assert noisy.inputs[1::2].float().std() > 10
    assert noisy.inputs[1::2].min() < 128 < noisy.inputs[1::2].max()  # clipped, not wrapped
    flat, _ = shift_examples(grey, make("blur", sigma=5.0), whole(40, 2), seed=0)
    assert torch.equal(flat.inputs, grey.inputs)  # an even image has nothing to blur
    drawn = images(40, shape=(1, 8, 8))
    blurred, _ = shift_examples(drawn, make("blur", sigma=5.0), whole(40, 2), seed=0)
    assert blurred.inputs[1::2].float().std() < drawn.inputs[1::2].float().std() / 2


def test_colours_are_those_of_the_client():
    options = {"brightness": 0.0, "contrast": 0.0, "permute_channels": True}
    after, drawn = shift_examples(images(), make("colour", **options), whole(60, 5), seed=1)
    assert len({tuple(order) for order in drawn["channels"].tolist()}) > 1
    for client, order in enumerate(drawn["channels"]):
        assert torch.equal(after.inputs[client::5], images().inputs[client::5][:, order])


@given(
    num_classes=st.integers(2, 100),
    group=st.integers(0, 50),
    seed=st.integers(0, 2**32),
    data=st.data(),
)
def test_permuted_labels_are_a_bijection_that_moves_as_many_as_asked(
    num_classes, group, seed, data
):
    moved = data.draw(st.integers(2, num_classes))
    new = permutation(group, num_classes, moved, seed=seed)
    assert sorted(new) == list(range(num_classes))
    assert (new != np.arange(num_classes)).sum() == (moved if group else 0)


def test_clients_of_a_cluster_permute_labels_alike_and_two_classes_are_a_swap():
    shift = make("permuted_labels", groups=3, classes=2)
    after, drawn = shift_examples(images(), shift, whole(60, 6), seed=0)
    for client in range(6):
        new = drawn["new_labels"][client]
        assert np.array_equal(new, permutation(client % 3, CLASSES, 2, seed=0))
        assert np.array_equal(new[new], np.arange(CLASSES))
        targets = images().targets[client::6].numpy()
        assert np.array_equal(after.targets[client::6].numpy(), new[targets])


@pytest.mark.parametrize("kind", ["symmetric", "pair"])
def test_the_share_of_wrong_labels_is_the_clients_and_tests_stay_right(kind):
    examples = images(30_000, shape=(1, 1, 1))
    parts = splits(30_000, 3, np.random.default_rng(0))
    shift = make("label_noise", rate=0.6, kind=kind, levels="linear")
    after, drawn = shift_examples(examples, shift, parts, seed=5)
    steps = (after.targets - examples.targets).numpy() % CLASSES
    assert drawn["rate"].tolist() == pytest.approx([0.0, 0.3, 0.6])
    for client, rate in enumerate(drawn["rate"]):
        own = steps[parts["train"].indices_of(client)]
        assert scipy.stats.binomtest(int((own > 0).sum()), len(own), rate).pvalue > 0.001
        counts = np.bincount(own[own > 0], minlength=CLASSES)[1:]
        if rate and kind == "symmetric":
            assert counts.min() > 0.8 * counts.max()
        assert kind == "symmetric" or not counts[1:].any()
    for name in ("val", "test"):
        assert not steps[parts[name].indices].any()


def test_modalities_are_missing_together_and_never_all():
    shift = make("missing_modality", probability=0.7, modalities=[[0, 2], [1]])
    examples = images(400, dtype=torch.float32, shape=(4,))
    after, drawn = shift_examples(examples, shift, whole(400, 200), seed=0)
    missing = drawn["missing_columns"]
    assert {tuple(row) for row in missing.tolist()} == {
        (False, False, False, False),
        (True, False, True, False),
        (False, True, False, False),
    }
    assert not after.inputs[torch.from_numpy(missing[np.arange(400) % 200])].any()
    kept = torch.from_numpy(~missing[np.arange(400) % 200])
    assert torch.equal(after.inputs[kept], examples.inputs[kept])


TABLE = partial(images, dtype=torch.float32, shape=(4,))
GREY = partial(images, shape=(1, 6, 6))


def numbers():
    """Images with a number to predict."""
    return replace(images(), targets=torch.zeros(60, 1), num_classes=1, task="regression")


def masks():
    """Images with a class per pixel."""
    targets = torch.zeros(60, 6, 6, dtype=torch.uint8)
    return replace(images(), targets=targets, labels=None, task="segmentation")


@pytest.mark.parametrize(
    ("name", "options", "examples", "message"),
    [
        ("rotation", {}, TABLE, r"shift=rotation with inputs of shape \[4\]; allowed: images"),
        ("rotation", {}, masks, "shift=rotation with task=segmentation: masks would stay as they"),
        ("blur", {}, TABLE, "shift=blur with inputs of shape"),
        ("colour", {}, partial(images, dtype=torch.float32), "shift=colour with inputs of type"),
        ("colour", {"hue": 0.1}, GREY, r"shift.hue=0.1 with images of 1 channel\(s\); allowed: 3"),
        ("noise", {}, partial(images, dtype=torch.int64), "shift=noise with inputs of type"),
        ("permuted_labels", {"classes": 6}, images, "shift.classes=6 with 5 classes; allowed: 2"),
        ("permuted_labels", {}, numbers, "with task=regression; allowed: task=classification"),
        ("label_noise", {}, numbers, "shift=label_noise with task=regression"),
        ("missing_modality", {}, GREY, "shift=missing_modality with inputs of shape"),
        ("missing_modality", {"modalities": [[0], [0]]}, images, "shift.modalities="),
        ("missing_modality", {"modalities": [[0], [3]]}, images, "columns from 0 to 2"),
    ],
)
def test_data_that_cannot_be_shifted_are_refused(name, options, examples, message):
    with pytest.raises(ValueError, match=message):
        shift_examples(examples(), make(name, **options), whole(60, 4), seed=0)


@pytest.mark.slow
def test_both_engines_train_on_the_same_shifted_examples(make_data, make_federation):
    def rows(*, fused, **options):
        data = make_data([9] * 4, split=(0.2, 0.2), shift=make("noise", sigma=2.0), **options)
        federation = make_federation(data, rounds=2, batching=Batching(3))
        if fused:
            federation.engine = engine_of(federation, FusedTraining, stack=2)
        return federation.run()[-1], data

    eager, data = rows(fused=False)
    fused, _ = rows(fused=True)
    plain = make_data([9] * 4, split=(0.2, 0.2))
    assert not torch.equal(data.examples.inputs, plain.examples.inputs)
    for column in ("train/loss", "global/loss", "local/loss", "val/loss"):
        assert eager[column] == pytest.approx(fused[column], abs=1e-5), column
