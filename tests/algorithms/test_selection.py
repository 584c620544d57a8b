"""Selections as wrappers of algorithms: what they train, count, remember and refuse."""

import numpy as np
import pytest
import torch
from algorithms_by_name import algorithm_of
from engine_runs import mlp, ran, with_batchnorm
from option_classes import called
from sampling import others_slow

from flfast.algorithms.fedavg import fedavg
from flfast.algorithms.kit.keep_local import keep_local
from flfast.algorithms.kit.local_optimizer import average_optimizer, keep_optimizer
from flfast.channel.aggregations.krum import krum
from flfast.channel.aggregations.median import median
from flfast.channel.channel import Channel
from flfast.channel.faults.simulated import simulated
from flfast.checkpoints.contents import check_server
from flfast.engines.eager import EagerTraining
from flfast.engines.fused.training import FusedTraining
from flfast.federation.selections.power_of_choice import power_of_choice
from flfast.lit.batchnorm import batchnorm_weights
from flfast.state.plan import Batching
from flfast.state.randomness import generator
from flfast.state.tree import num_bytes
from flfast.state.weights import read_weights
from flfast.zoo.federation.selections.oort import Oort

SIZES = (3, 8, 1, 6, 5, 9)
OPTIONS = {"exploration": 0.9, "decay": 0.7, "min_exploration": 0.2, "cutoff": 0.8, "clip": 0.6}
FEDAVG = fedavg(weighting="samples")


def oort_of(algorithm, count=3, **options):
    given = {"num_clients": len(SIZES), "seed": 0, "count": count, **OPTIONS, **options}
    return called(Oort, algorithm, **given)


SELECTIONS = {"power_of_choice": lambda a: power_of_choice(a, count=3), "oort": oort_of}
every = pytest.mark.parametrize("name", SELECTIONS)


class Statuses:
    """{client: (status, reason)} of every round."""

    def __init__(self):
        self.rounds = []

    def on_round_end(self, federation, row, clients):
        own = {k: (c["status"], c.get("reason", "")) for k, c in clients.items() if "status" in c}
        self.rounds.append(own)

    def trained(self, round_idx):
        return sorted(k for k, (status, _) in self.rounds[round_idx].items() if status != "idle")


@pytest.fixture
def make(make_data, make_federation):
    def make(algorithm, *, rounds=5, sizes=SIZES, model=None, **options):
        federation = make_federation(
            make_data(sizes),
            (model or mlp()).double(),
            algorithm=algorithm,
            rounds=rounds,
            trainer={"precision": "64-true"},
            **{"eval_every": 9, "batching": Batching(2), **options},
        )
        federation.statuses = Statuses()
        federation.callbacks = [federation.statuses]
        return federation

    return make


# ---- Trajectories of the papers' equations in NumPy


def losses(reference, w, k):
    """Cross-entropies [n] of a client's training examples."""
    inputs, targets = reference.steps(k, 1)[0]  # the full batch
    num_classes = reference.data.num_classes
    logits = inputs @ w[:-num_classes].reshape(num_classes, -1).T + w[-num_classes:]
    logits -= logits.max(axis=1, keepdims=True)
    log_probs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    return -log_probs[np.arange(len(targets)), targets]


def averaged(reference, w, clients, round_idx):
    new = [reference.sgd(k, round_idx, w) for k in clients]
    return np.average(new, axis=0, weights=[reference.size(k) for k in clients])


def test_power_of_choice_trains_the_candidates_with_the_largest_losses(assert_follows):
    chosen = []

    def equations(reference, w, cohorts):
        for round_idx, cohort in enumerate(cohorts, start=1):
            ranked = sorted(cohort, key=lambda k, w=w: -losses(reference, w, k).mean())
            chosen.append(frozenset(ranked[:2]))
            w = averaged(reference, w, ranked[:2], round_idx)
            yield w

    assert_follows(
        power_of_choice(FEDAVG, count=2),
        equations,
        sizes=SIZES,
        rounds=6,
        sampling={"count": 4},
    )
    assert len(set(chosen)) > 2


def test_oort_trains_who_its_equations_select(assert_follows):
    exploited = []

    def equations(reference, w, cohorts):
        utility, last = {}, {}
        for number, cohort in enumerate(cohorts, start=1):
            known, new = [k for k in cohort if k in last], [k for k in cohort if k not in last]
            rng = generator(reference.data.seed, "selection", number)
            share = max(OPTIONS["exploration"] * OPTIONS["decay"] ** (number - 1), 0.2)
            num_new = min(int(np.ceil(3 * share)), len(new))
            num_new = max(num_new, 3 - len(known))
            picked = []
            if num_new < 3:
                values = sorted(utility[k] for k in known)
                bound = values[int(len(values) * OPTIONS["clip"])]
                low = 0.999 * values[0]
                width = max(values[-1] - low, 1e-4)
                s = {
                    k: (min(utility[k], bound) - low) / width
                    + np.sqrt(0.1 * np.log(number) / last[k])
                    for k in known
                }
                least = OPTIONS["cutoff"] * sorted(s.values(), reverse=True)[3 - num_new - 1]
                pool = [k for k in known if s[k] >= least]
                p = np.array([s[k] for k in pool])
                picked += rng.choice(pool, 3 - num_new, replace=False, p=p / p.sum()).tolist()
            exploited.append(len(picked))
            picked += rng.choice(new, num_new, replace=False).tolist() if num_new else []
            for k in picked:
                found = losses(reference, w, k)
                utility[k], last[k] = len(found) * np.sqrt((found**2).mean()), number
            w = averaged(reference, w, sorted(picked), number)
            yield w

    federation = assert_follows(
        oort_of(FEDAVG, num_clients=8),
        equations,
        sizes=(3, 8, 1, 6, 5, 9, 4, 7),
        rounds=8,
        sampling={"count": 6},
    )
    assert {0, 3} < set(exploited), "it explores, exploits, and does both"
    assert (federation.server["selection"]["last"] > 0).all()


# ---- Any algorithm: it trains as without a selection, if the cohort were the selected clients


def state_of(federation):
    site = federation.engine.site
    return {
        "server": {name: x for name, x in federation.server.items() if name != "selection"},
        "states": {k: site.states.get(k) for k in range(len(SIZES))},
        "records": {k: site.records.get(k) for k in range(len(SIZES))},
    }


def assert_same_as_without(federation, plain, tol=0.0):
    """The run equals that of the plain algorithm whose cohorts are the selected clients."""
    rounds = federation.statuses
    drawn = plain.sampling.cohort

    def cohort(number):
        return drawn(number)._replace(clients=np.array(rounds.trained(number)))

    plain.sampling.cohort = cohort
    ran(plain, EagerTraining)
    torch.testing.assert_close(state_of(federation), state_of(plain), rtol=tol, atol=tol)
    return plain


# One or two of each kind: several calls, client states, parts, records, downloads, own modules.
KINDS = (
    *("fedavg", "scaffold", "mime", "ccvr", "ifca", "ditto", "fedrep", "fedproto", "q_fedavg"),
    *("fedmgda", "fedamp", "fedfomo", "cfl", "fedcross", "apple", "afl", "fedgen", "fedcp"),
)


@pytest.mark.parametrize("algorithm", others_slow(KINDS, KINDS[:16:8]))
def test_oort_wraps_every_kind_of_algorithm(make, algorithm):
    """Uploads have the utility in addition, and nothing else differs."""
    plain = algorithm_of(algorithm, mlp().double(), num_clients=len(SIZES))
    federation = ran(make(oort_of(plain), rounds=3), EagerTraining)
    selected = [federation.statuses.trained(r) for r in (1, 2, 3)]
    assert [len(clients) for clients in selected] == [3, 3, 3]
    plain = assert_same_as_without(federation, make(plain, rounds=3))
    check_server(federation.server, federation.algorithm, federation.initial)
    for row, without in zip(federation.history[1:], plain.history[1:], strict=True):
        assert row["comm/up_bytes"] == without["comm/up_bytes"] + 3 * 8, "utilities"
        assert row["comm/down_bytes"] == without["comm/down_bytes"]


@pytest.mark.parametrize(
    "algorithm",
    others_slow(["fedavg", "scaffold", "mime", "q_fedavg", "ditto"], ["mime", "ditto"]),
)
def test_power_of_choice_wraps_algorithms_with_a_complete_server_model(make, algorithm):
    plain = algorithm_of(algorithm, mlp().double())
    federation = ran(make(power_of_choice(plain, count=2), rounds=3), EagerTraining)
    plain = assert_same_as_without(federation, make(plain, rounds=3))
    measured = num_bytes(federation.initial) * len(SIZES)
    for row, without in zip(federation.history[1:], plain.history[1:], strict=True):
        assert row["comm/up_bytes"] == without["comm/up_bytes"] + len(SIZES) * 8, "losses"
        assert row["comm/down_bytes"] == without["comm/down_bytes"] + measured


def own_batchnorm(algorithm):
    weights = read_weights(with_batchnorm().double())
    return keep_local(algorithm, batchnorm_weights(with_batchnorm(), weights))


@pytest.mark.parametrize(
    "wrapper", others_slow([own_batchnorm, keep_optimizer, average_optimizer], [average_optimizer])
)
def test_oort_wraps_other_wrappers(make, wrapper):
    plain = wrapper(FEDAVG)
    options = {
        "rounds": 3,
        "sizes": (3, 8, 3, 6, 5, 9),
        "optimizer": torch.optim.Adam,
        "batching": Batching(2, drop_single=True),
    }
    federation = ran(make(oort_of(plain), model=with_batchnorm(), **options), EagerTraining)
    assert_same_as_without(federation, make(plain, model=with_batchnorm(), **options))
    assert not any("selection" in name for name in federation.weights())


@pytest.mark.parametrize("algorithm", others_slow(["fedavg", "mime", "scaffold"], ["scaffold"]))
@every
def test_engines_agree(make, name, algorithm):
    def run(engine):
        wrapped = SELECTIONS[name](algorithm_of(algorithm, mlp().double()))
        return ran(make(wrapped, rounds=3), engine, stack=1)

    eager, fused = run(EagerTraining), run(FusedTraining)
    assert fused.statuses.rounds == eager.statuses.rounds
    torch.testing.assert_close(fused.server, eager.server, rtol=1e-9, atol=1e-9)


def test_two_ranks_select_as_one(make, in_world):
    def finals(**options):
        found = {}
        for name, select in SELECTIONS.items():
            for algorithm in ("mime", "scaffold"):
                wrapped = select(algorithm_of(algorithm, mlp().double()))
                federation = ran(make(wrapped, rounds=3, **options), EagerTraining)
                found[name, algorithm] = federation.server, federation.statuses.rounds
        return found

    expected = finals()
    for found in in_world(2, lambda world: finals(world=world, strategy="ddp")).values():
        for key, (server, statuses) in expected.items():
            assert found[key][1] == statuses
            torch.testing.assert_close(found[key][0], server, rtol=1e-9, atol=1e-9)


# ---- Accidents


@every
def test_a_cohort_smaller_than_count_trains_whole(make, name):
    federation = make(SELECTIONS[name](FEDAVG), sampling={"count": 2})
    plain = make(FEDAVG, sampling={"count": 2})
    federation.run()
    plain.run()
    torch.testing.assert_close(federation.weights(), plain.weights(), rtol=1e-12, atol=1e-12)
    assert [row["cohort/idle"] for row in federation.history[1:]] == [0] * 5


@every
def test_dropouts_are_never_selected_and_rows_account_for_the_cohort(make, name):
    federation = make(SELECTIONS[name](FEDAVG), rounds=20, sampling={"dropout": 0.7})
    federation.run()
    sizes = set()
    for row, statuses in zip(federation.history[1:], federation.statuses.rounds[1:], strict=True):
        cohort = federation.cohort(row["round"])
        status = {k: own[0] for k, own in statuses.items()}
        count = {s: list(status.values()).count(s) for s in ("trained", "idle", "dropped")}
        assert sorted(status) == list(range(len(SIZES)))
        assert {k for k in status if status[k] == "dropped"} == set(cohort.dropped.tolist())
        assert row["cohort/clients"] == count["trained"] == min(3, len(cohort.clients))
        assert (row["cohort/idle"], row["cohort/dropped"]) == (count["idle"], count["dropped"])
        sizes.add(len(cohort.clients))
        model = num_bytes(federation.initial)
        down = {"oort": 0, "power_of_choice": len(SIZES)}[name] + count["trained"]
        up = {"oort": count["trained"], "power_of_choice": len(cohort.clients)}[name]
        assert row["comm/down_bytes"] == model * down
        assert row["comm/up_bytes"] == model * count["trained"] + 8 * up
    assert 0 in sizes, "a round in which every client dropped out"
    assert max(sizes) > 3


@every
def test_a_diverged_candidate_is_no_exception(make, name, caplog):
    federation = make(SELECTIONS[name](FEDAVG), rounds=6)
    data = federation.data
    data.examples.inputs[data.train_clients.indices_of(5)] = torch.nan
    federation.run()
    reached = [own[5] for own in federation.statuses.rounds[1:] if own[5][0] != "idle"]
    assert set(reached) == {("rejected", "NaN or infinity")}
    assert "clients [5] uploaded NaN or infinity" in caplog.text
    assert sum(row["cohort/rejected"] for row in federation.history[1:]) == len(reached)
    if name == "power_of_choice":
        assert len(reached) == 6
        assert [row["cohort/clients"] for row in federation.history[1:]] == [3] * 6
    else:
        assert federation.server["selection"]["last"][5] == 0


@every
@pytest.mark.parametrize("rule", [krum(num_byzantine=0), median()], ids=lambda rule: rule.name)
def test_robust_rules_act_on_updates_and_not_on_reports(make, name, rule):
    federation = make(SELECTIONS[name](FEDAVG))
    federation.engine.channel = Channel(aggregation=rule, clip_norm=1e-3)
    federation.run()
    for row in federation.history[1:]:
        assert row["cohort/clients"] == 3
        assert row["cohort/rejected"] == (2 if rule.name == "krum" else 0)
    if name == "oort" and rule.name == "median":
        assert federation.server["selection"]["utility"].max() > 1, "not clipped"


@every
def test_lost_and_broken_uploads_are_no_exception(make, name):
    faults = simulated(lost=0.3, broken=0.3, corruption="any")
    federation = make(SELECTIONS[name](FEDAVG), rounds=8)
    federation.engine.channel = Channel(faults=faults)
    federation.run()
    seen = {own for rounds in federation.statuses.rounds[1:] for own in rounds.values()}
    assert {status for status, _ in seen} == {"trained", "lost", "rejected", "idle"}
    for row, own in zip(federation.history[1:], federation.statuses.rounds[1:], strict=True):
        status = [status for status, _ in own.values()]
        assert row["cohort/dropped"] == status.count("lost")
        assert row["cohort/rejected"] == status.count("rejected")


def test_power_of_choice_needs_a_complete_server_model():
    with pytest.raises(ValueError, match=r"selection=power_of_choice with algorithm=ifca: .*oort"):
        power_of_choice(algorithm_of("ifca", mlp()), count=2)


# ---- The command


def test_the_memory_covers_held_out_clients_who_are_never_selected(flfast_run):
    folder = flfast_run(
        *("experiment=quick", "callbacks=none", "model=logistic", "rounds=6"),
        *("sampler.fraction=1.0", "sampler.holdout_clients=3", "checkpoint.every=6"),
        *("selection=oort", "selection.count=4"),
    )
    saved = next(iter((folder / "checkpoints").rglob("server.pt")))
    last = torch.load(saved, weights_only=True)["server"]["selection"]["last"]
    assert last.shape == (10,)
    assert (last == 0).sum() == 3
