"""Algorithms at the limits of their options that need a plan of their own to equal simpler ones.

All others are in `kit/test_degenerate.py`.
"""

from dataclasses import replace

import pytest
import torch
from algorithms_by_name import (
    assert_leaves_close,
    federation_of,
    personal_of,
    run,
    server_of,
)
from engine_runs import mlp

from flfast.state.plan import Batching


@pytest.fixture
def solve(make_data, make_federation):
    def solve(name, *, batch_size=3, sizes=(7, 1, 4), **algorithm):
        plan = algorithm.pop("plan", {"local_epochs": 2})
        federation = federation_of(
            make_data,
            make_federation,
            name,
            mlp(),
            sizes=sizes,
            rounds=3,
            batching=Batching(batch_size),
            algorithm=algorithm,
            **plan,
        )
        return run(federation)

    return solve


def test_pfedme_with_one_step_of_size_one_over_lambda_is_fedavg_of_single_steps(solve):
    one_step = {"local_epochs": None, "local_steps": 1}
    fedavg = solve("fedavg", weighting="uniform", plan=one_step)
    pfedme = solve("pfedme", inner_steps=1, personal_lr=0.5, lam=2.0, plan=one_step)
    assert_leaves_close(server_of(pfedme), server_of(fedavg))


def test_apfl_with_alpha_zero_evaluates_the_servers_model(solve):
    federation = solve("apfl", alpha=0.0, adaptive=False)
    assert_leaves_close(personal_of(federation, 0), server_of(federation))


def test_ditto_with_a_strong_proximal_term_stays_near_the_broadcast(solve):
    far, near = (solve("ditto", lam=lam, plan={"local_epochs": 4}) for lam in (0.0, 9.0))
    start = far.initial["params"]

    def distance(federation):
        personal = personal_of(federation, 0)
        return sum(float((personal[n] - start[n]).square().sum()) for n in start)

    assert distance(near) < distance(far)


def test_fedper_and_lg_fedavg_with_complementary_heads_are_equal(solve):
    head, body = solve("lg_fedavg", head=["2"]), solve("fedper", head=["0"])
    for k in range(3):
        assert_leaves_close(personal_of(head, k), personal_of(body, k))


def test_fedrep_trains_head_and_body_and_sends_the_body(solve):
    federation = solve("fedrep", sizes=(6,))
    trained, start = personal_of(federation, 0), federation.initial["params"]
    assert all(not torch.equal(trained[n], start[n].double()) for n in start)
    sent = federation.history[-1]["comm/up_bytes"]
    assert sent == sum(8 * start[n].numel() for n in ("0.weight", "0.bias"))


def test_fedrep_of_one_client_without_the_stage_of_the_head_is_fedbabu(
    solve, make_data, make_federation
):
    fedbabu = solve("fedbabu", sizes=(6,), batch_size=-1)
    fedrep = federation_of(
        make_data, make_federation, "fedrep", mlp(), sizes=(6,), rounds=3, local_epochs=2
    )
    body = fedrep.algorithm.stages[1:]
    fedrep.algorithm = fedrep.engine.site.module.algorithm = replace(fedrep.algorithm, stages=body)
    assert_leaves_close(server_of(run(fedrep)), server_of(fedbabu))
