"""Attacks, faults and defences together: what they do to a federation on real digits."""

from functools import partial

import numpy as np
import pytest
import torch
from composing import FILES
from engine_runs import engine_of, net
from hydra import compose, initialize_config_dir
from torch import nn

from flfast.algorithms.contract.algorithm import Algorithm
from flfast.algorithms.contract.uploads import Part
from flfast.channel.aggregations.aggregation import MEAN
from flfast.channel.aggregations.geometric_median import geometric_median
from flfast.channel.aggregations.krum import krum
from flfast.channel.aggregations.median import median
from flfast.channel.aggregations.trimmed_mean import trimmed_mean
from flfast.channel.attacks.attack import choose_attackers
from flfast.channel.attacks.sign_flip import sign_flip
from flfast.channel.channel import Channel
from flfast.datamodules.federated import FederatedDataModule, Split
from flfast.datamodules.fetching import Loading
from flfast.datamodules.partitions.iid import iid
from flfast.datamodules.sources.digits import digits
from flfast.engines.fused.training import FusedTraining
from flfast.federation.samplers.cohort import Cohort
from flfast.output.results.table import read_rows
from flfast.setup.robustness import build_channel, check_cohorts, poison_examples, warn_of_rows
from flfast.state.plan import Batching


@pytest.fixture(scope="module")
def population():
    data = FederatedDataModule(
        partial(digits, test_fraction=0.2, mean=[0.5], std=[0.5]),
        partial(iid, num_clients=10, min_samples=10),
        seed=0,
        split=Split(0.0, 0.0),
        loading=Loading(eval_batch_size=1000),
    )
    data.setup()
    return data


@pytest.fixture
def accuracy(population, make_federation):
    """Accuracy of the server's model after fifteen rounds, in percent."""

    def accuracy(aggregation, attack=None):
        federation = make_federation(
            population,
            net(nn.Flatten, lambda: nn.Linear(64, 10)),
            rounds=15,
            eval_every=15,
            batching=Batching(10),
        )
        federation.engine = engine_of(federation, FusedTraining, stack=1)
        who = choose_attackers(population.candidates, 0.2, seed=0) if attack else ()
        channel = Channel(aggregation=aggregation, attackers=frozenset(who))
        federation.engine.channel = channel if attack is None else with_attack(channel, attack)
        return 100 * federation.run()[-1]["global/accuracy"]

    return accuracy


def with_attack(channel, attack):
    return Channel(aggregation=channel.aggregation, attackers=channel.attackers, attack=attack)


@pytest.mark.slow
def test_robust_aggregations_stay_where_the_mean_collapses(accuracy):
    attack = sign_flip(fraction=0.2, scale=5.0)
    clean = accuracy(MEAN)
    assert clean > 90
    assert accuracy(MEAN, attack) < 50
    for robust in (
        median(),
        trimmed_mean(trim=0.3),
        krum(num_byzantine=3),
        geometric_median(iterations=32, eps=1e-6),
    ):
        assert accuracy(robust, attack) > clean - 5, robust.name


def composed(root, *overrides):
    with initialize_config_dir(str(root / "conf"), version_base="1.3"):
        return compose("config", list(overrides))


def test_flipped_labels_are_those_of_attackers_and_are_for_training_only(root, make_data):
    data = make_data([8] * 10, split=(0.25, 0.25), num_test=6)
    before = data.examples.targets.clone()
    config = composed(root, "attack=label_flip", "seed=3")
    poison_examples(config, data)
    channel = build_channel(config, data)
    assert len(channel.attackers) == 2
    changed = {
        int(i)
        for k in channel.attackers
        for i in data.train_clients.indices_of(k)
        if before[i] != 1
    }  # of classes 0, 1, 2 the middle one is its own mirror
    assert set((data.examples.targets != before).nonzero().flatten().tolist()) == changed
    batch = next(iter(data.client(min(channel.attackers)).train_dataloader()))
    own = data.train_clients.indices_of(min(channel.attackers))
    assert sorted(batch.targets.tolist()) == sorted((2 - before[own]).tolist())


def test_attackers_are_a_share_of_the_population_and_depend_on_the_seed(make_data, root, caplog):
    data = make_data([2] * 20)
    chosen = {choose_attackers(data.candidates, 0.2, seed=seed) for seed in range(10)}
    assert {len(who) for who in chosen} == {4}
    assert len(chosen) > 5
    assert build_channel(composed(root), data) == Channel()
    build_channel(composed(root, "attack=scaled", "attack.fraction=0.01"), data)
    assert "attack.fraction=0.01 of 20 clients is none" in caplog.text


def test_one_cohort_of_many_has_to_be_large_enough_for_an_aggregation():
    nobody = np.zeros(0, dtype=np.int64)
    cohorts = [Cohort(np.arange(size), nobody) for size in (0, 2, 5)]
    rule = krum(num_byzantine=1)
    check_cohorts(rule, cohorts)
    with pytest.raises(ValueError, match=r"needs 5 uploads for .* largest cohort has 2 clients"):
        check_cohorts(rule, cohorts[:2])
    check_cohorts(MEAN, cohorts[:1])


@pytest.mark.slow
def test_a_run_says_what_became_of_every_client(flfast_run):
    folder = flfast_run(
        "experiment=quick",
        "sampler.fraction=1.0",
        *FILES,
        "engine=eager",
        "model=logistic",
        "aggregation=multi_krum",
        "aggregation.num_byzantine=1",
        "attack=sign_flip",
        "faults=simulated",
        "faults.lost=0.15",
        "faults.broken=0.15",
        "devices=lognormal",
        "devices.speed=1000",
        "devices.fixed=0",
        "devices.hazard=0",
        "devices.down_mbit=null",
        "devices.up_mbit=null",
        "pace.deadline=0.24",
        "upload_clip_norm=0.3",
    )
    clients = [row for row in read_rows(folder / "clients.csv") if row["round"] != "0"]
    for row in read_rows(folder / "metrics.csv")[1:]:
        own = [c for c in clients if c["round"] == row["round"] and c["status"]]
        count = {s: sum(c["status"] == s for c in own) for s in ("late", "lost", "rejected")}
        assert len(own) == 10
        assert int(row["cohort/clients"]) == 10 - count["late"]
        assert int(row["cohort/dropped"]) == count["late"] + count["lost"]
        assert int(row["cohort/rejected"]) == count["rejected"]
    assert {c["status"] for c in clients} == {"trained", "late", "lost", "rejected"}
    assert {c["reason"] for c in clients} >= {"", "clipped", "not selected"}
    weights = torch.load(folder / "model.pt", weights_only=True)
    assert all(leaf.isfinite().all() for leaf in weights.values())


def test_a_robust_rule_says_which_parts_it_does_not_act_on(caplog):
    parts = {"means": Part("rows"), "counts": Part("rows", learned=False), "sums": Part("sum")}
    warn_of_rows(MEAN, Algorithm(name="rows", parts=parts))
    warn_of_rows(median(), Algorithm(name="none"))
    assert not caplog.text
    warn_of_rows(median(), Algorithm(name="rows", parts=parts))
    assert (
        "aggregation=median does not act on means: algorithm=rows gets these parts one by one"
        in caplog.text
    )
