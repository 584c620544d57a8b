"""What every partition promises, for all files of the folder."""

import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hydra.utils import instantiate
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from flfast.datamodules.partitions.dirichlet import dirichlet
from flfast.datamodules.partitions.iid import iid
from flfast.datamodules.partitions.pathological import pathological
from flfast.datamodules.partitions.quantity import quantity
from flfast.datamodules.partitions.shards import shards
from flfast.state.injection import call_with
from flfast.zoo.datamodules.partitions.inner_dirichlet import inner_dirichlet
from flfast.zoo.datamodules.partitions.semantic import semantic
from flfast.zoo.datamodules.partitions.sizes import sizes

CONF = Path(__file__).parents[3] / "conf" / "partition"
YAMLS = sorted(CONF.glob("*.yaml"))
LAWS = st.fixed_dictionaries(
    {
        "sizes": st.sampled_from(["equal", "linear", "square", "exponential"]),
        "sigma": st.floats(0, 10),
    }
)
SETTINGS = st.one_of(
    st.just((iid, {})),
    st.tuples(
        st.just(dirichlet),
        st.fixed_dictionaries({"alpha": st.floats(1e-6, 1e6), "balanced": st.booleans()}),
    ),
    st.tuples(st.just(quantity), st.fixed_dictionaries({"alpha": st.floats(1e-6, 1e6)})),
    st.tuples(st.just(shards), st.fixed_dictionaries({"shards_per_client": st.integers(1, 5)})),
    st.tuples(
        st.just(pathological), st.fixed_dictionaries({"classes_per_client": st.integers(1, 6)})
    ),
    st.tuples(st.just(sizes), LAWS),
    st.tuples(
        st.just(inner_dirichlet),
        st.builds(
            lambda laws, alpha: {**laws, "alpha": alpha, "within_owners": False},
            LAWS,
            st.floats(1e-6, 1e6),
        ),
    ),
)


@settings(max_examples=150)
@given(
    setting=SETTINGS,
    num_examples=st.integers(1, 5000),
    num_classes=st.integers(1, 20),
    num_clients=st.integers(1, 120),
    min_samples=st.integers(1, 20),
    seed=st.integers(0, 2**32),
)
def test_every_client_gets_enough_or_the_reason_is_said(
    setting, num_examples, num_classes, num_clients, min_samples, seed
):
    partition, options = setting
    labels = np.random.default_rng(seed).integers(num_classes, size=num_examples)

    def split():
        return call_with(
            partial(partition, **options),
            labels=labels,
            num_examples=num_examples,
            owner=None,
            num_clients=num_clients,
            min_samples=min_samples,
            rng=np.random.default_rng(seed),
        )

    try:
        owner = split()
    except ValueError as error:
        assert f"partition.min_samples={min_samples} " in str(error) or partition is pathological
        enough = num_examples >= num_clients * min_samples
        assert partition in (pathological, shards) or not enough
        return
    assert owner.dtype == np.int64
    assert owner.shape == labels.shape
    assert np.bincount(owner, minlength=num_clients).shape == (num_clients,)
    assert np.bincount(owner, minlength=num_clients).min() >= min_samples
    np.testing.assert_array_equal(owner, split())


@pytest.mark.parametrize("path", YAMLS, ids=lambda path: path.stem)
def test_every_yaml_builds_a_partition_that_is_random_in_its_rng_only(path, tmp_path):
    labels = np.repeat(np.arange(10), 100)
    own = np.arange(1000) // 100
    given_files = {"distribution": tmp_path / "table.csv", "from_file": tmp_path / "owner.npz"}
    np.savetxt(tmp_path / "table.csv", np.vstack([np.arange(10), np.eye(10) + 1]), "%d", ",")
    np.savez(tmp_path / "owner.npz", owner=own)
    node = OmegaConf.load(path)
    if path.stem in given_files:
        node.path = str(given_files[path.stem])
    partition = instantiate(node)
    inputs = np.random.default_rng(1).standard_normal((1000, 3), dtype=np.float32)

    def split(seed):
        return call_with(
            partition,
            labels=labels,
            num_examples=1000,
            owner=own,
            inputs=inputs,
            digest="",
            rng=np.random.default_rng(seed),
        )

    np.testing.assert_array_equal(split(0), split(0))
    assert set(split(0)) == set(range(1 if path.stem == "whole" else 10))
    assert path.stem in {"natural", "from_file", "whole"} or (split(0) != split(1)).any()
    np.testing.assert_array_equal(labels, np.repeat(np.arange(10), 100))


@pytest.mark.slow
def test_every_partition_has_a_yaml_and_imports_without_torch():
    targets = [OmegaConf.load(path)["_target_"] for path in YAMLS]
    modules = [target.rpartition(".")[0] for target in targets]
    program = f"import sys, {', '.join(modules)}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


@settings(max_examples=15)
@given(
    num_examples=st.integers(1, 300),
    num_classes=st.integers(1, 6),
    levels=st.integers(1, 4),
    num_clients=st.integers(1, 12),
    min_samples=st.integers(1, 20),
    seed=st.integers(0, 2**32),
)
def test_semantic_clients_are_feasible_for_any_inputs(
    num_examples, num_classes, levels, num_clients, min_samples, seed
):
    """Also if most inputs are equal to each other."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(num_classes, size=num_examples)
    inputs = rng.integers(levels, size=(num_examples, 3)).astype(np.float32)

    def split():
        return semantic(
            labels,
            num_clients=num_clients,
            components=2,
            min_samples=min_samples,
            inputs=inputs,
            rng=np.random.default_rng(seed),
        )

    if num_examples < num_clients * min_samples:
        with pytest.raises(ValueError, match=f"partition.min_samples={min_samples} "):
            split()
        return
    owner = split()
    assert owner.dtype == np.int64
    assert owner.shape == labels.shape
    assert np.bincount(owner, minlength=num_clients).shape == (num_clients,)
    assert np.bincount(owner, minlength=num_clients).min() >= min_samples
    np.testing.assert_array_equal(owner, split())
