"""Samplers: properties of the cohorts that they draw, and what they may ask for."""

from functools import partial
from itertools import permutations, product

import numpy as np
import pytest
import torch
from algorithms_by_name import NAMES, SAMPLE, federation_of, run
from engine_runs import mlp, ran
from hypothesis import given, settings
from hypothesis import strategies as st
from sampling import others_slow, rotating
from tables import rows, timeless

from flfast.channel.aggregations.aggregation import MEAN
from flfast.channel.aggregations.krum import multi_krum
from flfast.channel.aggregations.median import median
from flfast.channel.channel import Channel
from flfast.engines.eager import EagerTraining
from flfast.engines.fused.training import FusedTraining
from flfast.federation.samplers.by_size import by_size
from flfast.federation.samplers.cyclic import cyclic
from flfast.federation.samplers.poisson import poisson
from flfast.federation.samplers.uniform import random_size, uniform
from flfast.state.injection import call_with
from flfast.state.randomness import generator
from flfast.state.tree import leaves, tree_map
from flfast.zoo.federation.samplers.from_file import from_file

SIZED = {"uniform": uniform, "by_size": by_size, "cyclic": cyclic}
"""Samplers with `fraction` and `count`."""


def drawn(name, num_clients, *, seed=0, round_idx=1, sizes=None, **options):
    """A cohort, drawn as the loop draws it."""
    settings = {"fraction": 1.0, "count": None, "dropout": 0.0, **options}
    return call_with(
        partial(SIZED[name], **settings),
        num_clients,
        rng=generator(seed, "cohort", round_idx),
        seed=seed,
        round_idx=round_idx,
        sizes=np.arange(1, num_clients + 1) if sizes is None else sizes,
    )


def chosen_of(cohort):
    return np.concatenate(cohort)


@pytest.mark.parametrize("name", SIZED)
@given(
    num_clients=st.integers(1, 300),
    fraction=st.floats(0.001, 1.0),
    dropout=st.floats(0, 1),
    seed=st.integers(0, 9),
    round_idx=st.integers(1, 50),
)
def test_a_cohort_is_distinct_clients_of_the_asked_number(
    name, num_clients, fraction, dropout, seed, round_idx
):
    where = {"seed": seed, "round_idx": round_idx}
    cohort = drawn(name, num_clients, fraction=fraction, dropout=dropout, **where)
    chosen = chosen_of(cohort)
    assert len(set(chosen)) == len(chosen) == max(1, round(fraction * num_clients))
    assert chosen.min() >= 0
    assert chosen.max() < num_clients
    for part in cohort:
        assert part.dtype == np.int64
        assert (np.diff(part) > 0).all()
    everybody = drawn(name, num_clients, fraction=fraction, **where).clients
    assert set(chosen) == set(everybody), "dropout changes who was chosen"


@pytest.mark.parametrize("name", SIZED)
def test_twenty_nine_percent_of_a_hundred_clients_are_twenty_nine(name):
    assert len(drawn(name, 100, fraction=0.29).clients) == 29


@pytest.mark.parametrize("name", SIZED)
def test_a_count_wins_over_the_fraction_and_must_fit(name):
    assert len(drawn(name, 10, count=3).clients) == 3
    with pytest.raises(
        ValueError, match=r"sampler\.count=11 exceeds the population; allowed: 1 to 10"
    ):
        drawn(name, 10, count=11)


@pytest.mark.parametrize("name", SIZED)
def test_clients_drop_out_independently(name):
    num = sum(len(drawn(name, 50, round_idx=r, dropout=0.2).dropped) for r in range(1, 101))
    # Binomial(5000, 1/5): mean 1000, standard deviation 28.
    assert abs(num - 1000) < 140


@given(st.integers(1, 300), st.floats(0.001, 1.0), st.floats(0, 0.99), st.integers(0, 9))
def test_a_random_size_lies_between_the_least_and_everybody(num_clients, least, dropout, seed):
    rng = np.random.default_rng(seed)
    chosen = np.concatenate(random_size(num_clients, min_fraction=least, dropout=dropout, rng=rng))
    assert len(set(chosen)) == len(chosen)
    assert max(1, round(least * num_clients)) <= len(chosen) <= num_clients
    assert set(chosen) <= set(range(num_clients))


def test_every_size_is_as_likely_as_any_other():
    sizes = np.zeros(11)
    for seed in range(3000):
        rng = np.random.default_rng(seed)
        sizes[len(random_size(10, min_fraction=0.6, dropout=0.0, rng=rng).clients)] += 1
    assert not sizes[:6].any()
    # Binomial(3000, 1/5): mean 600, standard deviation 22.
    assert abs(sizes[6:] - 600).max() < 110


def test_every_client_is_as_likely_as_any_other():
    hits = np.zeros(20)
    for seed in range(3000):
        hits[drawn("uniform", 20, seed=seed, count=5).clients] += 1
    # Binomial(3000, 1/4): mean 750, standard deviation 24; five of them either way.
    assert abs(hits - 750).max() < 120


def test_a_cohort_of_a_million_costs_what_the_cohort_costs():
    cohort = uniform(10**9, fraction=1.0, count=100, dropout=0.0, rng=generator(0, "cohort"))
    assert len(cohort.clients) == 100


@pytest.mark.parametrize("count", others_slow([1, 2, 3], [2]))
def test_by_size_draws_in_turn_in_proportion_to_the_sizes(count):
    """Probabilities of all sets, from the probabilities of all orders."""
    sizes, tries = np.array([1, 2, 5, 12]), 4000
    expected, found = {}, {}
    for order in permutations(range(4), count):
        left, probability = sizes.sum(), 1.0
        for k in order:
            probability *= sizes[k] / left
            left -= sizes[k]
        key = tuple(sorted(order))
        expected[key] = expected.get(key, 0) + probability
    for r in range(1, tries + 1):
        key = tuple(drawn("by_size", 4, round_idx=r, count=count, sizes=sizes).clients.tolist())
        found[key] = found.get(key, 0) + 1
    for key, probability in expected.items():
        deviation = np.sqrt(tries * probability * (1 - probability))
        assert abs(found.get(key, 0) - tries * probability) < 5 * deviation, key


def test_by_size_gets_the_training_examples_of_the_clients_that_may_be_drawn(
    make_data, make_federation
):
    sizes = [1, 2, 3, 4, 900]
    federation = make_federation(make_data(sizes, split=(0.0, 0.0, 1)))
    seen = []

    def sampler(num_clients, *, rng, sizes):
        seen.append(sizes.tolist())
        return by_size(num_clients, fraction=1.0, count=1, dropout=0.0, rng=rng, sizes=sizes)

    federation.sampler = sampler
    cohorts = [federation.cohort(r).clients.tolist() for r in range(1, 20)]
    (held_out,) = federation.data.held_out.tolist()
    assert held_out < 4, "the largest client follows the held-out one"
    assert seen[0] == [n for k, n in enumerate(sizes) if k != held_out]
    assert cohorts.count([4]) > 15


@given(
    num_clients=st.integers(1, 60),
    fraction=st.floats(0.001, 1.0),
    seed=st.integers(0, 9),
    start=st.integers(1, 10_000),
    rounds=st.integers(1, 100),
)
def test_with_cyclic_nobody_waits_longer_than_the_others(
    num_clients, fraction, seed, start, rounds
):
    """In any consecutive rounds, numbers of turns differ by at most one."""
    turns, total = np.zeros(num_clients, dtype=int), 0
    for r in range(start, start + rounds):
        cohort = drawn("cyclic", num_clients, fraction=fraction, seed=seed, round_idx=r)
        turns[cohort.clients] += 1
        total += len(cohort.clients)
    assert turns.min() == total // num_clients
    assert turns.max() == -(-total // num_clients)


def test_cyclic_groups_that_divide_the_population_return_and_depend_on_the_seed():
    def cycle(seed, first):
        rounds = range(first, first + 5)
        cohorts = (drawn("cyclic", 20, count=4, seed=seed, round_idx=r) for r in rounds)
        return [tuple(cohort.clients.tolist()) for cohort in cohorts]

    assert cycle(0, first=1) == cycle(0, first=501)
    assert len({frozenset(cycle(seed, first=1)) for seed in range(10)}) == 10


def test_poisson_draws_every_set_with_its_probability():
    found, tries, q = {}, 4000, 0.3
    for r in range(1, tries + 1):
        cohort = poisson(3, fraction=q, dropout=0.0, rng=generator(0, "cohort", r))
        key = tuple(cohort.clients.tolist())
        found[key] = found.get(key, 0) + 1
    for mask in product((False, True), repeat=3):
        key = tuple(np.flatnonzero(mask).tolist())
        probability = q ** len(key) * (1 - q) ** (3 - len(key))
        deviation = np.sqrt(tries * probability * (1 - probability))
        assert abs(found.get(key, 0) - tries * probability) < 5 * deviation, key


@given(st.integers(1, 300), st.floats(0.001, 1.0), st.floats(0, 0.99), st.integers(0, 9))
def test_cohorts_of_poisson_are_distinct_clients(num_clients, fraction, dropout, seed):
    options = {"fraction": fraction, "rng": np.random.default_rng(seed)}
    cohort = poisson(num_clients, dropout=dropout, **options)
    chosen = np.concatenate(cohort)
    assert len(set(chosen)) == len(chosen)
    assert set(chosen) <= set(range(num_clients))
    assert all(part.dtype == np.int64 for part in cohort)


def test_the_cost_of_poisson_does_not_depend_on_the_population():
    cohort = poisson(10**12, fraction=1e-10, dropout=0.0, rng=generator(0, "cohort"))
    assert 50 < len(cohort.clients) < 150


NOBODY = {"fraction": 1e-9, "dropout": 0.0}


class Servers:
    """The server state after every round."""

    def __init__(self):
        self.rounds = []

    def on_round_end(self, federation, row, clients):
        self.rounds.append(tree_map(torch.clone, federation.server))


def nobody_in_round_2(num_clients, *, rng, round_idx):
    fraction = 1e-9 if round_idx == 2 else 1.0
    return poisson(num_clients, fraction=fraction, dropout=0.0, rng=rng)


def assert_only_round_2_changes_nothing(federation, engine):
    servers = Servers()
    federation.callbacks, federation.sampler = [servers], nobody_in_round_2
    ran(federation, engine)
    _, first, second, third = servers.rounds
    torch.testing.assert_close(second, first, rtol=0, atol=0)
    assert any(not torch.equal(*pair) for pair in zip(leaves(third), leaves(second), strict=True))
    row = federation.history[2]
    assert [row[f"cohort/{name}"] for name in ("clients", "dropped", "rejected")] == [0, 0, 0]
    assert row["comm/up_bytes"] == row["comm/down_bytes"] == 0


RULES = {
    "mean": MEAN,
    "median": median(),
    "multi_krum": multi_krum(num_byzantine=1, num_selected=2),
}


@pytest.mark.parametrize(
    ("engine", "aggregation"), rotating([EagerTraining, FusedTraining], RULES, every=2)
)
def test_without_clients_the_model_stays_and_the_log_says_so(
    make_data, make_federation, engine, aggregation, caplog
):
    federation = make_federation(make_data([4, 2, 3, 5, 1]), rounds=3)
    federation.engine.channel = Channel(aggregation=RULES[aggregation])
    assert_only_round_2_changes_nothing(federation, engine)
    assert "round 2: no client was drawn; the model is unchanged" in caplog.text
    assert caplog.text.count("the model is unchanged") == 1


# Each engine, rule and way to divide the work.
ON_RANKS = [
    (EagerTraining, "mean", {"strategy": "ddp", "shard": "clients"}),
    (EagerTraining, "median", {"strategy": "ddp", "shard": "batch"}),
    (FusedTraining, "multi_krum", {"strategy": "ddp", "shard": "clients"}),
    (FusedTraining, "mean", {"strategy": "single", "shard": "clients"}),
    (FusedTraining, "median", {"strategy": "ddp", "shard": "clients"}),
    (EagerTraining, "multi_krum", {"strategy": "ddp", "shard": "batch"}),
]


@pytest.mark.parametrize(("engine", "name", "way"), others_slow(ON_RANKS, ON_RANKS[:1]))
def test_without_clients_the_model_stays_on_two_ranks(
    make_data, make_federation, in_world, engine, name, way
):
    def work(world):
        federation = make_federation(make_data([4, 2, 3, 5, 1]), rounds=3, world=world, **way)
        federation.engine.channel = Channel(aggregation=RULES[name])
        assert_only_round_2_changes_nothing(federation, engine)
        return "done"

    assert set(in_world(2, work).values()) == {"done"}


@pytest.mark.parametrize("name", others_slow(NAMES, SAMPLE))
def test_without_clients_no_algorithm_changes(make_data, make_federation, name, caplog):
    federation = federation_of(make_data, make_federation, name, mlp())
    federation.sampler = partial(poisson, **NOBODY)
    before = tree_map(torch.clone, federation.server)
    run(federation)
    torch.testing.assert_close(federation.server, before, rtol=0, atol=0)
    assert "round 1: no client was drawn; the model is unchanged" in caplog.text


@pytest.fixture
def drawn_from(tmp_path):
    """Draw cohorts from a file with some text, for 10 clients of which 3 and 7 are held out."""

    def drawn_from(text, *, rounds=1, dropout=0.0):
        path = tmp_path / "cohorts.csv"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        sampler = from_file(path=str(path), dropout=dropout)
        candidates = np.array([0, 1, 2, 4, 5, 6, 8, 9])
        facts = {"rounds": rounds, "candidates": candidates, "held_out": np.array([3, 7])}
        found = []
        for r in range(1, rounds + 1):
            cohort = sampler(8, rng=generator(0, "cohort", r), round_idx=r, **facts)
            found.append([candidates[part].tolist() for part in cohort[:2]])
        return found

    return drawn_from


def test_a_file_has_a_row_for_each_client(drawn_from):
    text = "\ufeff client_id, round,note\r\n9,1,x\r\n\r\n0,1,\r\n,2,\r\n 2, 3,\r\n42,4,"
    assert drawn_from(text, rounds=3) == [[[0, 9], []], [[], []], [[2], []]]


def test_a_status_says_who_took_part(drawn_from):
    states = ["trained", "lost", "rejected", "late", "dropped", ""]
    rows = "".join(f"1,{k},{s}\n" for k, s in zip((9, 8, 6, 5, 4, 7), states, strict=True))
    text = f"round,client_id,status\n0,3,\n{rows}2,3,\n"
    assert drawn_from(text, rounds=2) == [[[5, 6, 8, 9], [4]], [[], []]]


def test_clients_of_a_file_may_drop_out(drawn_from):
    rows = "".join(
        f"{r},{k},{'dropped' if k == 4 else 'trained'}\n" for r in range(1, 101) for k in (9, 4, 1)
    )
    found = drawn_from(f"round,client_id,status\n{rows}", rounds=100, dropout=0.5)
    assert all(sorted(answers + dropped) == [1, 4, 9] for answers, dropped in found)
    assert all(4 in dropped for _, dropped in found)
    # Binomial(200, 1/2): mean 100, standard deviation 7.
    assert abs(sum(len(answers) for answers, _ in found) - 100) < 36


TABLE = (
    "+callbacks.table={_target_: flfast.output.callbacks.clients_table.ClientsTable,"
    " every_round: true}"
)
HEADER = "round,client_id\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1: is empty"),
        ("1,2\n1,3\n", "line 1: is 1,2; allowed: a header with the columns round and client_id"),
        ("\n\nround,client\n", "line 3: is round,client; allowed: a header with"),
        (HEADER, "has no row of round 1; allowed: a row or more for each round from 1 to"),
        (HEADER + "1,0\n3,0\n", "has no row of round 2; .* such as `2,` for no client"),
        (HEADER + "1,0\n2,10\n", "line 3: client_id=10 does not exist; allowed: 0 to 9"),
        (HEADER + "1,0\n2,7\n", "line 3: client_id=7 is held out by sampler.holdout_clients"),
        (HEADER + "1,7\n2,0\n", "line 2: .*; allowed: the other 8 clients"),
        (HEADER + "1,5\n2,0\n1,5\n", "line 4: client_id=5 is already in round 1, in line 2"),
        (HEADER + "0,1\n", "line 2: round=0 is before training"),
        (HEADER + "-1,1\n", "line 2: round=-1; allowed: an integer >= 0"),
        (HEADER + ",1\n", "line 2: round=; allowed: an integer >= 0"),
        (HEADER + "1,2.0\n", r"line 2: client_id=2\.0; allowed: an integer >= 0"),
        (HEADER + f"1,{'1' * 99}\n", r"line 2: client_id=1{40}\.\.\.; allowed: an integer >= 0"),
        (HEADER + "1,2,3,4\n", "line 2: has 4 values for 2 columns; .* one client per row"),
        (HEADER + "1,2\n2", "line 3: has 1 values for 2 columns"),
        ("round,client_id,status\n1,0,gone\n", "line 2: status=gone; allowed: dropped, trained"),
        ("round,client_id,status\n1,,late\n", "line 2: client_id=; allowed: an integer"),
        (HEADER + '1,"2\n2,3\n', "line 3: unexpected end of data; allowed: rows of a CSV"),
        (b"round,client_id\n1,0\n2,\xff\n", "line 3: is not UTF-8"),
    ],
)  # fmt: skip
def test_errors_name_file_line_and_what_is_allowed(drawn_from, text, message):
    with pytest.raises(ValueError, match=rf"sampler\.path=.*cohorts\.csv.*{message}"):
        drawn_from(text, rounds=2)


@settings(max_examples=12)
@given(
    st.lists(
        st.dictionaries(st.integers(0, 30), st.booleans(), max_size=8), min_size=1, max_size=8
    ),
    st.randoms(use_true_random=False),
)
def test_rows_in_any_order_give_the_cohorts_that_were_written(tmp_path_factory, rounds, random):
    written = [
        (r, k, "dropped" if out else "trained")
        for r, cohort in enumerate(rounds, start=1)
        for k, out in cohort.items()
    ]
    written += [(r, "", "") for r, cohort in enumerate(rounds, start=1) if not cohort]
    random.shuffle(written)
    path = tmp_path_factory.mktemp("cohorts") / "cohorts.csv"
    lines = "".join(f"{r},{k},{status}\n" for r, k, status in written)
    path.write_text(f"round,client_id,status\n{lines}")
    sampler = from_file(path=str(path), dropout=0.0)
    everybody = {"candidates": np.arange(31), "held_out": np.zeros(0, dtype=np.int64)}
    for r, cohort in enumerate(rounds, start=1):
        rng = generator(0, "cohort", r)
        found = sampler(31, rng=rng, round_idx=r, rounds=len(rounds), **everybody)
        assert found.clients.tolist() == sorted(k for k, out in cohort.items() if not out)
        assert found.dropped.tolist() == sorted(k for k, out in cohort.items() if out)


def test_the_table_of_another_run_is_replayed_exactly(flfast_run):
    """With clients that drop out, lose uploads or are late, a round of no client, and a resume."""
    words = (
        *("rounds=8", "local_epochs=1", "model=logistic", "sampler.holdout_clients=2"),
        *("faults=simulated", "faults.lost=0.2", "faults.broken=0.1"),
        *("devices=lognormal", "devices.speed=1000", "devices.fixed=0", "devices.hazard=0"),
        *("devices.down_mbit=null", "devices.up_mbit=null", "pace.deadline=0.12"),
        *("seed=1", "callbacks=none", TABLE, "engine=eager", "batch_size=-1"),
    )
    drawing = ("sampler=poisson", "sampler.fraction=0.4", "sampler.dropout=0.3")
    first = flfast_run(*words, *drawing, run_dir="first")
    file = f"sampler.path={first / 'clients.csv'}"
    replay = (*words, "sampler=from_file", file)
    flfast_run(*replay, "rounds=5", run_dir="again")
    again = flfast_run(*replay, "resume=auto", run_dir="again")
    assert timeless(again) == timeless(first)
    table = (first / "clients.csv").read_text()
    assert (again / "clients.csv").read_text() == table
    assert all(f",{word}," in table for word in ("trained", "lost", "rejected", "late", "dropped"))
    sizes = [int(row["cohort/clients"]) + int(row["cohort/dropped"]) for row in rows(first)[1:]]
    assert 0 in sizes
