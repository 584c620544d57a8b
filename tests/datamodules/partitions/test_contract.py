"""What every partition promises, for all files of the folder."""

import subprocess
import sys
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
from flfast.injection import call_with

CONF = Path(__file__).parents[3] / "conf" / "partition"
YAMLS = sorted(CONF.glob("*.yaml"))
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
)


@settings(max_examples=400)
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
        return partition(
            labels,
            num_clients=num_clients,
            min_samples=min_samples,
            rng=np.random.default_rng(seed),
            **options,
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
def test_every_yaml_builds_a_partition_that_is_random_in_its_rng_only(path):
    partition = instantiate(OmegaConf.load(path))
    labels = np.repeat(np.arange(10), 100)
    own = np.arange(1000) // 100

    def split(seed):
        return call_with(partition, labels, owner=own, rng=np.random.default_rng(seed))

    np.testing.assert_array_equal(split(0), split(0))
    assert set(split(0)) == set(range(10))
    assert path.stem == "natural" or (split(0) != split(1)).any()
    np.testing.assert_array_equal(labels, np.repeat(np.arange(10), 100))


def test_every_partition_has_a_yaml_and_imports_without_torch():
    modules = [f"flfast.datamodules.partitions.{path.stem}" for path in YAMLS]
    program = f"import sys, {', '.join(modules)}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
