"""Topologies that are others, and D-PSGD against its equations."""

import json

import numpy as np
import pytest
import sliced_runs
import torch
from hypothesis import given
from hypothesis import strategies as st
from sampling import others_slow
from sliced_runs import WAYS, last_row, mlp, stepped
from torch.nn import functional as F

import flfast
from flfast.federation.topologies.graph import metropolis, neighbours
from flfast.output.results.table import read_history
from flfast.state.randomness import generator

MLP = ("model=mlp", "model.hidden=[6]", "rounds=3")
ALIKE = "algorithm.weighting=uniform"
REPORT = (
    "+callbacks.partition_report={_target_: flfast.output.callbacks.partition_report."
    "PartitionReport, max_clients: 4, dpi: 30, formats: [png]}"
)


def close(found, other):
    torch.testing.assert_close(found, other, rtol=1e-9, atol=1e-9)


@pytest.fixture(scope="module")
def fedavg(tmp_path_factory):
    """Weights of FedAvg on the eager engine, where clients count by their examples, or alike."""
    place = tmp_path_factory.mktemp("fedavg")
    ways = (("plain", ()), ("alike", (ALIKE,)))
    return [sliced_runs.run(place / name, *MLP, *words, *WAYS["eager"]) for name, words in ways]


AS_FEDAVG = {
    "full": ("topology=graph", "topology.kind=full", ALIKE),
    "edge": ("topology=tiers", "topology.edges=1"),
    # Means of means with the weights of the edges' examples.
    "edges": ("topology=tiers", "topology.cloud_every=1"),
}


@pytest.mark.parametrize("way", others_slow(WAYS, ["eager"]))
@pytest.mark.parametrize("name", others_slow(AS_FEDAVG, ["edges"]))
def test_a_full_graph_and_one_edge_are_fedavg(tmp_path, fedavg, way, name):
    plain, alike = fedavg
    found = sliced_runs.run(tmp_path / "run", *MLP, *AS_FEDAVG[name], *WAYS[way])
    close(found, alike if name == "full" else plain)
    if name == "edges":
        assert float(last_row(tmp_path / "run")["topology/distance"]) < 1e-12


@pytest.mark.parametrize(
    ("num", "rounds"), [(8, 20), pytest.param(16, 50, marks=pytest.mark.slow)]
)
def test_d_psgd_on_a_ring_follows_its_equations(tmp_path, monkeypatch, num, rounds):
    rng = torch.Generator().manual_seed(0)
    x, y = torch.randn(num * 3, 5, generator=rng), torch.arange(num * 3) % 3
    owner = torch.arange(num).repeat_interleave(3)
    monkeypatch.setattr(sliced_runs, "population", lambda shape: (x, y, owner))
    ring = ("topology=graph", "topology.mixes=before", "local_epochs=null", "local_steps=1")
    words = (*MLP, *ring)
    start = sliced_runs.initial(tmp_path / "initial", *words)
    found = sliced_runs.run(tmp_path / "run", *words, f"rounds={rounds}", "engine=fused")

    weights = np.zeros((num, num))
    for k in range(num):
        weights[k, [k - 1, k, (k + 1) % num]] = 1 / 3
    models = [start] * num
    for _ in range(rounds):
        new = []
        for k in range(num):
            mine = owner == k
            step = stepped(models[k], lambda w, at=mine: F.cross_entropy(mlp(w, x[at]), y[at]))
            mixed = {
                n: sum(weights[k, j] * models[j][n] for j in np.flatnonzero(weights[k]))
                for n in start
            }
            new.append({n: mixed[n] + step[n] - models[k][n] for n in start})
        models = new
    mean = {n: sum(model[n] for model in models) / num for n in start}
    torch.testing.assert_close(found, mean, rtol=1e-8, atol=1e-8)
    far = sum((model[n] - mean[n]).square().sum() for model in models for n in start) / num
    row = last_row(tmp_path / "run")
    assert float(row["topology/distance"]) == pytest.approx(float(far.sqrt()), rel=1e-6)
    size = 8 * sum(leaf.numel() for leaf in start.values())
    assert float(row["topology/sent_bytes"]) == num * 2 * size


@given(
    kind=st.sampled_from(["full", "ring", "torus", "exponential", "random"]),
    num=st.integers(1, 20),
    absent=st.sets(st.integers(0, 19)),
)
def test_mixing_keeps_the_mean(kind, num, absent):
    found = neighbours(kind, num, generator(0, "test"), 0.4)
    assert (found == found.T).all()
    assert not found.diagonal().any()
    present = ~np.isin(np.arange(num), list(absent))
    weights = metropolis(found & present & present[:, None])
    assert (weights >= -1e-12).all()
    np.testing.assert_allclose(weights.sum(0), 1)
    np.testing.assert_allclose(weights.sum(1), 1)
    assert (weights[~present] == np.eye(num)[~present]).all()


def test_degrees_of_graphs():
    def degrees(kind, num):
        return set(neighbours(kind, num, generator(0, "test"), 0.5).sum(0).tolist())

    assert degrees("ring", 7) == {2}
    assert degrees("torus", 16) == {4}
    assert degrees("full", 5) == {4}
    assert degrees("exponential", 16) == {7}  # 1, 2, 4, 8 on, and 1, 2, 4 back; 8 back is 8 on


def test_a_graph_and_edges_come_from_files(tmp_path):
    (tmp_path / "links").write_text("0 1\n1,2\n2 3\n")
    found = neighbours(str(tmp_path / "links"), 4, generator(0, "test"))
    assert found.sum(0).tolist() == [1, 2, 2, 1]
    (tmp_path / "edges").write_text("0\n1\n1\n1\n")
    words = (*MLP, "topology=tiers", f"topology.assign={tmp_path / 'edges'}", "rounds=1")
    sliced_runs.run(tmp_path / "run", *words)
    assert float(last_row(tmp_path / "run")["topology/distance"]) > 0


@pytest.mark.slow
def test_examples_of_held_out_clients_do_not_count(tmp_path):
    """The mean over edges is that over all who train, as without edges."""
    words = (*MLP, "sampler.holdout_clients=1", "split.test=0.25")
    found = sliced_runs.run(tmp_path / "edges", *words, "topology=tiers", "topology.cloud_every=1")
    close(found, sliced_runs.run(tmp_path / "plain", *words))


@pytest.mark.slow
def test_a_run_goes_on_with_the_models_of_its_nodes(tmp_path):
    words = (*MLP, "topology=tiers", "topology.assign=by_labels", "checkpoint.every=1")
    words = (*words, *devices(tmp_path))
    whole = sliced_runs.run(tmp_path / "whole", *words)
    sliced_runs.run(tmp_path / "run", *words, "rounds=2")
    close(sliced_runs.run(tmp_path / "run", *words, "resume=auto"), whole)
    ends = [last_row(tmp_path / name)["clock/seconds"] for name in ("whole", "run")]
    assert ends[0] == ends[1]


def devices(folder):
    """Clients of different speed and bandwidth; 4 clients have 5, 4, 4 and 3 examples."""
    lines = [
        "fixed,per_example,down,up",
        "1,2,1000,500",
        "0,1,800,900",
        "3,1,400,600",
        "0,7,90,70",
    ]
    (folder / "devices.csv").write_text("\n".join(lines))
    return ("devices=from_trace", f"devices.path={folder / 'devices.csv'}")


TRAINING = np.array([1 + 2 * 10, 8, 3 + 8, 7 * 6])  # `fixed`, and two epochs
DOWN, UP = np.array([1000, 800, 400, 90]), np.array([500, 900, 600, 70])


def times(folder):
    return [float(row["clock/seconds"]) for row in history(folder)]


def history(folder):
    rows = read_history(folder / "metrics.csv")[1:]
    for row in rows:
        assert float(row["topology/node_seconds"]) > 0
        assert float(row["topology/exchange_seconds"]) >= 0
    return rows


def model_bytes(found):
    return 8 * sum(leaf.numel() for leaf in found.values())


@pytest.mark.slow
def test_edges_wait_for_their_clients_and_the_cloud_for_edges(tmp_path):
    words = (*MLP, "rounds=4", "topology=tiers", "topology.cloud_mbit=0.001", *devices(tmp_path))
    size = model_bytes(sliced_runs.run(tmp_path / "run", *words))
    trips = TRAINING + size / DOWN + size / UP
    own = np.array([max(trips[0], trips[2]), max(trips[1], trips[3])])  # a round robin
    first = 2 * own
    met = np.full(2, first.max() + 2 * size / 125)
    assert times(tmp_path / "run") == pytest.approx(
        [own.max(), met.max(), (met + own).max(), 2 * met.max()]
    )
    rows = history(tmp_path / "run")
    assert [float(row["topology/node_seconds"]) for row in rows] == pytest.approx([own.mean()] * 4)
    waits = [float(row["topology/exchange_seconds"]) for row in rows]
    assert waits == pytest.approx([0, met.max() - first.mean()] * 2)
    assert [float(row["topology/sent_bytes"]) for row in rows] == [0, 4 * size] * 2
    # With equal devices, only the link to the cloud takes time.
    ideal = (*MLP, "rounds=2", "topology=tiers", "topology.cloud_mbit=0.001")
    sliced_runs.run(tmp_path / "ideal", *ideal)
    assert times(tmp_path / "ideal") == pytest.approx([1, 2 + 2 * size / 125])


@pytest.mark.slow
@pytest.mark.parametrize("mixes", ["after", "before"])
def test_a_client_of_a_graph_waits_for_its_neighbours(tmp_path, mixes):
    path = tmp_path / "links"
    path.write_text("0 1\n1 2\n1 3\n")
    words = ("topology=graph", f"topology.kind={path}", f"topology.mixes={mixes}", REPORT)
    size = model_bytes(sliced_runs.run(tmp_path / "run", *MLP, *words, *devices(tmp_path)))
    neighbours_of = {0: [1], 1: [0, 2, 3], 2: [1], 3: [1]}
    clocks, expected = [0.0] * 4, []
    for _ in range(3):
        trained = [clocks[k] + TRAINING[k] for k in range(4)]
        begins = clocks if mixes == "before" else trained
        sent = [begins[k] + len(neighbours_of[k]) * size / UP[k] for k in range(4)]
        clocks = [
            max(
                trained[k],
                max(sent[j] for j in [k, *neighbours_of[k]])
                + len(neighbours_of[k]) * size / DOWN[k],
            )
            for k in range(4)
        ]
        expected.append(max(clocks))
    assert times(tmp_path / "run") == pytest.approx(expected)
    written = json.loads((tmp_path / "run" / "partition.json").read_text())
    assert [one["neighbours"] for one in written["clients"]] == [*neighbours_of.values()]
    row = last_row(tmp_path / "run")
    every = ("topology/sent_bytes", "comm/up_bytes", "comm/down_bytes")
    assert {float(row[name]) for name in every} == {6 * size}


@pytest.mark.slow
def test_who_sits_a_round_out_goes_on_with_the_earliest_of_the_others(tmp_path):
    half = ("topology=graph", "sampler.fraction=0.5", "rounds=6", *devices(tmp_path))
    sliced_runs.run(tmp_path / "run", *MLP, *half)
    found = times(tmp_path / "run")
    assert found == sorted(found)
    # Nobody is in time: nothing is sent, and nobody waits for it.
    words = (*MLP, "topology=graph", "rounds=2", "pace.deadline=0.5", *devices(tmp_path))
    sliced_runs.started(tmp_path / "none", *words)
    for row in read_history(tmp_path / "none" / "metrics.csv")[1:]:
        assert float(row["topology/exchange_seconds"]) == 0
        assert [float(row[name]) for name in ("topology/sent_bytes", "comm/up_bytes")] == [0, 0]
    # A deadline ends each node's own round.
    sliced_runs.run(tmp_path / "late", *MLP, *half, "pace.deadline=20")
    assert times(tmp_path / "late")[-1] < found[-1]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        pytest.param(
            ["topology=graph", "algorithm=scaffold"],
            "needs a server that does more",
            marks=pytest.mark.slow,
        ),
        (["topology=graph", "topology.kind=line"], "topology.kind=line: is no file"),
        pytest.param(
            ["topology=graph", "topology.changes=true"],
            "is for kind=random",
            marks=pytest.mark.slow,
        ),
        (["topology=graph", "topology.probability=0.5"], "topology.probability=0.5: is for kind"),
        (["topology=graph", "topology.kind=random"], "topology.probability=null: is for kind"),
        (["topology=graph", "sampler.holdout_clients=1"], "with 1 held-out clients"),
        (["topology=graph", "mode=centralized"], "mode=centralized has one client"),
        (["topology=tiers", "topology.edges=9"], "leaves an edge without clients"),
        (["topology=tiers", "topology.assign=file"], "is no file"),
        (
            ["topology=graph", "secure=masks"],
            "topology=graph with secure=masks: each node",
        ),
        pytest.param(
            ["topology=tiers", "privacy=central"],
            "topology=tiers with privacy=central: each node",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            ["topology=graph", "pace=async"],
            "pace=async with topology=graph: ",
            marks=pytest.mark.slow,
        ),
        (["topology=tiers", "pace.keep_first=2"], "pace.keep_first=2 with topology=tiers"),
    ],
)
def test_what_nodes_cannot_do_is_refused(tmp_path, words, message):
    with pytest.raises(flfast.ConfigError, match=message):
        sliced_runs.run(tmp_path / "run", *MLP, *words)
