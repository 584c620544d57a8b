"""Whatever goes wrong, and whoever resists it, goes the same way in every engine and world."""

from dataclasses import replace

import pytest
import torch
from adversaries import ADVERSARIES
from problems import problem_of
from sampling import others_slow
from solving import BATCH, CLIENTS, PLAIN, SINGLE, Way, assert_same, solve

from flfast.algorithms.contract.uploads import Part
from flfast.channel.aggregations.aggregation import MEAN
from flfast.channel.aggregations.krum import krum
from flfast.channel.aggregations.median import median
from flfast.channel.reduction import reduction_for
from flfast.channel.row_reduction import Basis, RowReduction, last_layer
from flfast.distributed.world import ALONE
from flfast.zoo.channel.aggregations.centered_clipping import centered_clipping
from flfast.zoo.channel.aggregations.fltrust import fltrust

# Another engine and another world at once; what is special about others, once each.
WAYS = {
    None: Way("fused", 2, (CLIENTS, SINGLE)),
    "median": Way("eager", 2, (BATCH,)),
    "trimmed_mean": Way("stacked"),
}
CASES = [*enumerate(ADVERSARIES)]
ALGORITHMS = ("averaged_steps", "keep_local", "fedavg")


PARTS = {"counts": Part(learned=False)}


QUIET = {"median", "krum", "centered_clipping"}
"""Adversaries with which every upload may be used as it is."""

PACES = {"trimmed_mean": "buffered", "geometric_median": "deadline", "mean": "deadline"}


def with_adversary(name, number):
    """A problem of six clients in double precision, whose steps do not amplify rounding."""
    return replace(
        problem_of(5).without_batch_statistics(),
        sizes=(6, 9, 7, 8, 12, 5),
        model="mlp",
        batchnorm=None if number % 2 else "frozen",
        algorithm=ALGORITHMS[number % len(ALGORITHMS)],
        optimizer="momentum",
        optimizer_state=("reset", "keep", "average")[number // 2 % 3],
        lr=0.05,
        local_steps=3,
        local_epochs=None,
        limit=1.0,
        clip=None,
        fraction=1.0,
        pace=PACES.get(name, "rounds"),
        dropout=0.0,
        rounds=2,
        precision="64-true",
        adversary=name,
        server_examples=7 if name == "fltrust" else 0,
    )


@pytest.mark.parametrize(("number", "name"), others_slow(CASES, CASES[5:6]))
def test_threats_and_defences_do_not_depend_on_engine_and_world(number, name, solve_in):
    problem = with_adversary(name, number)
    expected = solve(problem, PLAIN)
    told = [row for rows in expected.clients[1:] for row in rows.values() if "status" in row]
    kinds = {(row["status"], row.get("reason", "")) for row in told}
    assert kinds != {("trained", "")} or name in QUIET, "something happens"
    for way in {WAYS[None], WAYS.get(name, WAYS[None])}:
        assert_same(solve_in(problem, way), expected, problem)


def upload(value, count):
    return {"params": {"w": torch.full((2,), value)}, "buffers": {"num": torch.tensor(count)}}


def test_rows_are_in_the_order_of_the_cohort_and_counters_take_a_median():
    uploads = reduction_for(median(), [7, 3, 9], PARTS)
    for client_id, value, count in ((9, 5.0, 40), (7, 1.0, 10), (3, 2.0, 30)):
        uploads.add(client_id, upload(value, count), weight=1.0)
    found = uploads.combine(ALONE)
    assert found.mean["params"]["w"].tolist() == [2.0, 2.0]
    assert found.mean["buffers"]["num"] == 30
    assert found.mean["buffers"]["num"].dtype == torch.int64
    assert found.left_out == frozenset()


def test_krum_says_whom_it_left_out_by_client():
    uploads = reduction_for(krum(num_byzantine=0), [7, 3, 9, 8], PARTS)
    for client_id, value in ((9, 5.0), (7, 1.0), (3, 1.5), (8, 1.6)):
        uploads.add(client_id, upload(value, 1), weight=1.0)
    found = uploads.combine(ALONE)
    assert found.mean["params"]["w"].tolist() == [1.5, 1.5]
    assert found.left_out == {9, 7, 8}


def test_a_robust_rule_without_anything_to_compare_leaves_nobody_out():
    uploads = reduction_for(krum(num_byzantine=0), [7, 3, 9], {"params": Part("rows")})
    for client_id, count in ((9, 40), (7, 10), (3, 30)):
        uploads.add(client_id, upload(1.0, count), weight=1.0)
    found = uploads.combine(ALONE)
    assert found.left_out == frozenset()
    assert found.clients.tolist() == [7, 3, 9]
    assert found.mean["buffers"]["num"] == 30


def test_too_few_uploads_are_no_mean_and_say_so():
    uploads = reduction_for(krum(num_byzantine=1), range(6), PARTS)
    assert uploads.combine(ALONE)[:3] == (None, frozenset(), "")
    uploads.add(2, upload(1.0, 1), weight=1.0)
    shortage = "aggregation.num_byzantine=1 needs 5 uploads for krum, 1 arrived"
    assert uploads.combine(ALONE)[:3] == (None, frozenset(), shortage)


def reduced(aggregation, values, basis, clients=(7, 3, 9)):
    uploads = reduction_for(aggregation, clients, PARTS, basis)
    for client_id, value in zip(clients, values, strict=True):
        uploads.add(client_id, upload(value, 1), weight=1.0)
    return uploads.combine(ALONE)


def test_memory_goes_from_round_to_round_and_stays_if_too_few_uploads_arrive():
    rule = centered_clipping(radius=5.0, iterations=1)
    first = reduced(rule, [6.0, 6.0, 6.0], Basis(10))
    # Uploads are [6, 6], of length 8.5.
    expected = torch.full((2,), 5 / 2**0.5)
    torch.testing.assert_close(first.mean["params"]["w"], expected)
    second = reduced(rule, [6.0, 6.0, 6.0], Basis(10, first.memory))
    assert second.mean["params"]["w"].tolist() == [6, 6]
    lost = reduction_for(rule, [1], PARTS, Basis(10, first.memory)).combine(ALONE)
    assert lost.mean is None
    assert lost.memory is first.memory


def test_a_trusted_upload_scales_those_that_agree_with_it():
    own = {"params": {"w": torch.tensor([1.0, 1.0])}, "buffers": {"num": torch.tensor(3)}}
    found = reduced(fltrust(), [1.0, 3.0, -2.0], Basis(10, trusted=own))
    # All uploads have the length of the server's own; the third one points the other way.
    torch.testing.assert_close(found.mean["params"]["w"], torch.ones(2))
    assert found.left_out == {9}


def test_a_rule_that_uses_no_upload_leaves_the_model_as_it_is():
    own = {"params": {"w": torch.tensor([1.0, 1.0])}, "buffers": {"num": torch.tensor(3)}}
    found = reduced(fltrust(), [-2.0, -3.0, -4.0], Basis(10, trusted=own))
    assert found.mean is None
    assert found.shortage == "fltrust uses none of 3 uploads"
    assert found.left_out == {7, 3, 9}


def test_the_last_layer_is_found_among_all_leaves():
    one = torch.zeros(2, 3)
    params = {"a.weight": one, "a.bias": torch.zeros(2), "fc.weight": one, "fc.bias": one[0]}
    tree = {"counts": {"n": one}, "params": params, "buffers": {"mean": one, "num": one.long()}}
    assert last_layer(tree, {"counts"}) == slice(8, 17)
    assert last_layer({"control": one, "params": params}, ()) == slice(14, 23)
    assert last_layer({"prototypes": one}, ()) == slice(0, 6)


def test_the_mean_collects_nothing():
    assert not isinstance(reduction_for(MEAN, [1], PARTS), RowReduction)


def test_counts_of_float64_leave_what_they_divide_in_its_own_type():
    parts = {"sums": Part("sum", over="counts"), "counts": Part("sum", learned=False)}
    reduction = reduction_for(MEAN, [0, 1], parts)
    for client_id in (0, 1):
        counts = torch.tensor([3.0, 0.0], dtype=torch.float64)
        reduction.add(client_id, {"sums": torch.ones(2, 4), "counts": counts}, weight=1.0)
    means = reduction.combine(ALONE).mean["sums"]
    expected = torch.tensor([[1 / 3], [0.0]]).expand(2, 4)
    torch.testing.assert_close(means, expected)
