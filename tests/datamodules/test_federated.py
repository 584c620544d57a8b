from functools import partial

import lightning as L
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sampling import others_slow
from torch import nn
from torch.utils.data import Dataset

from flfast.algorithms.contract.client import Context
from flfast.algorithms.fedavg import fedavg
from flfast.datamodules.evaluation_sets import EvaluationDataModule
from flfast.datamodules.examples import Examples
from flfast.datamodules.federated import FederatedDataModule, Split
from flfast.datamodules.fetching import Loading
from flfast.datamodules.partitions.iid import iid
from flfast.datamodules.partitions.natural import natural
from flfast.datamodules.transforms import BatchTransform, image_transform
from flfast.lit.local_module import LocalModule
from flfast.lit.predictions import PredictionStore
from flfast.state.plan import Batching
from flfast.state.weights import read_weights


def federated(examples, partition, *, split=(0.0, 0.25), **options):
    data = FederatedDataModule(
        lambda: examples,
        partition,
        seed=0,
        split=Split(*split),
        loading=Loading(eval_batch_size=4),
        **options,
    )
    data.setup()
    return data


def examples(num=40, *, is_test=None, owner=None):
    return Examples(
        inputs=torch.arange(num * 2.0).view(num, 2),
        targets=torch.arange(num) % 4,
        num_classes=4,
        input_shape=(2,),
        transform=BatchTransform(),
        is_test=is_test,
        owner=owner,
    )


def test_the_datas_own_test_set_is_central_and_no_client_holds_it():
    is_test = np.arange(40) >= 30
    data = federated(
        examples(is_test=is_test),
        partial(iid, num_clients=3, min_samples=1),
    )
    assert set(data.central_test) == set(range(30, 40))
    held = np.concatenate([split.indices for split in data.splits.values()])
    assert np.array_equal(np.sort(held), np.arange(30))


def test_without_one_the_central_test_set_is_everything_that_clients_test_on():
    data = federated(examples(), partial(iid, num_clients=4, min_samples=1))
    assert len(data.central_test) == 12  # 2.5 of every client are 3


def test_test_examples_with_owners_are_their_clients_own():
    owner = np.arange(40) % 4
    is_test = np.arange(40) >= 32
    data = federated(
        examples(is_test=is_test, owner=owner), partial(natural, group_size=1, rest="smaller")
    )
    for client in range(4):
        assert set(data.splits["test"].indices_of(client)) == {32 + client, 36 + client}
        assert len(data.splits["train"].indices_of(client)) == 8
    assert set(data.central_test) == set(range(32, 40))


def test_partition_and_splits_depend_on_the_seed_alone():
    def owners(seed):
        data = FederatedDataModule(
            examples,
            partial(iid, num_clients=3, min_samples=1),
            seed=seed,
            split=Split(0.1, 0.1),
            loading=Loading(4),
        )
        data.setup()
        return [data.splits[s].indices.tolist() for s in ("train", "val", "test")]

    assert owners(1) == owners(1) != owners(2)


def test_pooled_data_train_one_client_and_evaluate_all():
    data = federated(examples(), natural_of(4), pooled=True)
    assert len(data.train_clients.offsets) == 2
    assert len(data.train_clients.indices_of(0)) == sum(
        len(data.splits["train"].indices_of(k)) for k in range(4)
    )
    assert data.num_clients == 4


def natural_of(num_clients):
    return lambda labels: np.arange(len(labels)) % num_clients


def test_a_client_without_training_examples_is_named():
    with pytest.raises(ValueError, match="client 1 of 3 has no training example"):
        federated(examples(), lambda labels: (np.arange(len(labels)) % 2) * 2)


def module(model=None):
    torch.manual_seed(0)  # noqa: TID251 - a test's own model
    made = LocalModule(model or nn.Linear(2, 4), fedavg(weighting="samples"), torch.optim.SGD)
    weights = read_weights(made.model)
    lr = torch.tensor(0.001)
    made.begin(Context(weights, {}, weights, lr, torch.Generator), {})
    return made


def trainer(tmp_path, **options):
    return L.Trainer(
        accelerator="cpu",
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        default_root_dir=tmp_path,
        **options,
    )


def targets_of(tmp_path, made, data):
    """Targets of the examples that a plain Trainer has predicted."""
    store = PredictionStore(made.task_type)
    with made.predicting(lambda batch: made.model(batch.inputs), store):
        trainer(tmp_path).test(made, datamodule=data, verbose=False)
    return store.collect(4)["targets"]


def test_a_plain_trainer_runs_on_the_whole_and_on_one_client(tmp_path):
    """The data modules are Lightning's: no federation is needed."""
    data = federated(examples(), natural_of(4), split=(0.2, 0.2))
    whole, alone = module(), module()
    trainer(tmp_path).fit(whole, datamodule=data)
    assert whole.num_seen == sum(len(data.splits["train"].indices_of(k)) for k in range(4))
    trainer(tmp_path).fit(alone, datamodule=data.client(2))
    assert alone.num_seen == len(data.splits["train"].indices_of(2))
    assert len(targets_of(tmp_path, whole, data)) == len(data.central_test)
    assert len(targets_of(tmp_path, whole, data.client(1))) == len(
        data.splits["test"].indices_of(1)
    )


def test_one_pass_covers_every_set_and_predicts_no_example_twice(tmp_path):
    data = federated(examples(), natural_of(4), split=(0.2, 0.2))
    evaluation = EvaluationDataModule(data, ["global", "local", "val"])
    assert set(evaluation.sets) == {"global", "local", "val"}
    assert len(evaluation.indices) == len(set(evaluation.indices)) == 16
    made = module()
    targets = targets_of(tmp_path, made, evaluation).numpy()
    labels = data.examples.targets.numpy()
    for name, split in (("local", "test"), ("val", "val")):
        part = evaluation.sets[name]
        assert np.array_equal(targets[part.positions], labels[data.splits[split].indices])
        assert np.array_equal(part.group, data.splits[split].owner())


def test_a_limited_pass_is_a_sample():
    data = federated(examples(), natural_of(4), split=(0.2, 0.2))
    every = EvaluationDataModule(data, ["local"]).indices
    few = EvaluationDataModule(data, ["local"], limit=0.5).indices
    assert set(few) < set(every)
    assert list(few) != list(every[: len(few)])


def test_personal_passes_keep_positions_and_owners_together():
    data = federated(examples(), natural_of(4), split=(0.2, 0.2))
    evaluation = EvaluationDataModule(data, ["personal", "val"])
    for name, split in (("personal", "test"), ("val", "val")):
        part = evaluation.sets[name]
        assert np.array_equal(evaluation.indices[part.positions], data.splits[split].indices)
        assert np.array_equal(evaluation.owner[part.positions], part.group)


class Lazy(Dataset):
    """Inputs that are made on access."""

    def __len__(self):
        return 40

    def __getitem__(self, index):
        return torch.tensor([2.0 * index, 2.0 * index + 1])


@pytest.mark.parametrize("persistent", others_slow([False, True], [True]))
def test_workers_serve_the_batches_that_memory_does(persistent):
    def batches(inputs, loading):
        made = Examples(
            inputs=inputs,
            targets=torch.arange(40) % 4,
            num_classes=4,
            input_shape=(2,),
            transform=BatchTransform(),
        )
        data = FederatedDataModule(
            lambda: made, natural_of(2), seed=0, split=Split(0, 0), loading=loading
        )
        data.setup()
        loaders = [data.client(k, batching=Batching(8)).train_dataloader() for k in (0, 1)]
        return [batch for _ in range(2) for loader in loaders for batch in loader]

    memory = batches(torch.arange(80.0).view(40, 2), Loading(4))
    workers = batches(Lazy(), Loading(4, num_workers=2, persistent_workers=persistent))
    assert len(memory) == len(workers) == 12
    for left, right in zip(memory, workers, strict=True):
        assert torch.equal(left.inputs, right.inputs)
        assert torch.equal(left.targets, right.targets)


def test_broken_examples_are_refused():
    with pytest.raises(ValueError, match="the dataset is empty"):
        examples(0)
    with pytest.raises(ValueError, match=r"labels must lie in \[0, 2\), got 0 to 3"):
        Examples(torch.zeros(4, 1), torch.arange(4), 2, (1,), BatchTransform())
    with pytest.raises(ValueError, match="owner has 3 entries, targets have 4"):
        Examples(
            torch.zeros(4, 1),
            torch.zeros(4, dtype=torch.long),
            2,
            (1,),
            BatchTransform(),
            owner=np.zeros(3),
        )


@given(st.lists(st.integers(0, 9), max_size=3), st.integers(1, 100))
def test_inputs_that_are_not_finite_are_counted_whatever_the_parts(broken, part_bytes):
    inputs = torch.zeros(10, 2)
    inputs[broken, 1] = float("nan")
    targets = torch.zeros(10, dtype=torch.long)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("flfast.datamodules.number_range._CHECKED_BYTES", part_bytes)
        if not broken:
            Examples(inputs, targets, 2, (2,), BatchTransform())
            return
        message = f"inputs of {len(set(broken))} examples .* first is example {min(broken)}"
        with pytest.raises(ValueError, match=message):
            Examples(inputs, targets, 2, (2,), BatchTransform())


def test_images_are_normalised_on_the_batch():
    transform = image_transform(mean=[0.5], std=[0.25], channels=1)
    images = torch.tensor([0, 255], dtype=torch.uint8).view(2, 1, 1, 1)
    assert transform(images, dtype=torch.float64).flatten().tolist() == [-2.0, 2.0]
    colour = image_transform(mean=[0.0, 0.5, 1.0], std=[1.0, 1.0, 2.0], channels=3)
    found = colour(torch.full((1, 3, 2, 2), 255, dtype=torch.uint8), dtype=torch.float32)
    assert found[0, :, 0, 0].tolist() == [1.0, 0.5, 0.0]
    assert torch.equal(BatchTransform()(torch.arange(3), dtype=torch.float32), torch.arange(3))


def test_augmentation_is_per_image_reproducible_and_off_in_evaluation():
    transform = BatchTransform(mean=(0.0,), std=(1.0,), random_crop=1, random_flip=True)
    images = torch.arange(9, dtype=torch.uint8).view(1, 1, 3, 3).repeat(64, 1, 1, 1)

    def augmented(seed):
        return transform(images, dtype=torch.float32, rng=np.random.default_rng(seed))

    assert torch.equal(augmented(0), augmented(0))
    assert len({tuple(image.flatten().tolist()) for image in augmented(0)}) > 8
    plain = transform(images, dtype=torch.float32)
    assert torch.equal(plain, images.float() / 255)
    halves = np.random.default_rng(0)
    cut = [transform(part, dtype=torch.float32, rng=halves) for part in images.split(5)]
    assert torch.equal(torch.cat(cut), augmented(0)), "micro-batches draw what the batch would"
    flip = BatchTransform(mean=(0.0,), std=(1.0,), random_flip=True)
    kinds = {
        tuple(image.flatten().tolist())
        for image in flip(images, dtype=torch.float32, rng=np.random.default_rng(0))
    }
    assert kinds == {
        tuple(plain[0].flatten().tolist()),
        tuple(plain[0].flip(-1).flatten().tolist()),
    }


@pytest.mark.parametrize(
    ("mean", "std", "message"),
    [([0.5, 0.5], [1.0], "data.mean"), ([0.5], [0.0], "data.std.*> 0")],
)
def test_impossible_normalisation_is_refused(mean, std, message):
    with pytest.raises(ValueError, match=message):
        image_transform(mean=mean, std=std, channels=3)


def with_server(num, **options):
    split = Split(0.0, 0.25, server_examples=num)
    data = FederatedDataModule(
        lambda: examples(),
        partial(iid, num_clients=4, min_samples=1),
        seed=0,
        split=split,
        loading=Loading(eval_batch_size=4),
        **options,
    )
    data.setup()
    return data


def test_the_server_is_behind_the_last_client_and_nobody_else_sees_it():
    data = with_server(8)
    assert data.server == data.num_clients == 4
    assert data.candidates.tolist() == data.participants.tolist() == [0, 1, 2, 3]
    own = data.train_clients.indices_of(4)
    assert np.array_equal(data.client(4).indices, own)
    assert data.client_sizes.tolist() == [6] * 4
    for name, split in data.splits.items():
        assert len(split.offsets) == 5, name
        assert not np.isin(own, split.indices).any()
    assert not np.isin(own, data.central_test).any()
    for k in range(4):
        assert np.array_equal(data.train_clients.indices_of(k), data.splits["train"].indices_of(k))


def test_the_server_validates_on_the_clients_examples():
    split = Split(0.2, 0.0, server_examples=5)
    data = FederatedDataModule(
        lambda: examples(),
        partial(iid, num_clients=3, min_samples=1),
        seed=0,
        split=split,
        loading=Loading(eval_batch_size=4),
    )
    data.setup()
    own = data.client(data.server).val_dataloader()
    assert np.array_equal(own.indices, data.splits["val"].indices)


def test_without_examples_there_is_no_server_and_the_pooled_baseline_never_has_one():
    assert with_server(0).server is None
    pooled = with_server(8, pooled=True)
    assert pooled.server is None
    assert pooled.client_sizes.tolist() == [24]
