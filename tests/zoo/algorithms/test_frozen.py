"""Parameters that are not trained keep their values, also where a server makes new models."""

from itertools import product

import pytest
import torch
from algorithms_by_name import federation_of, run
from engine_runs import mlp
from sampling import others_slow

from flfast.engines.eager import EagerTraining
from flfast.engines.fused.training import FusedTraining

CASES = [*product(("fedkseed", "fedlaw", "pfedhn"), (EagerTraining, FusedTraining))]


@pytest.mark.parametrize(("name", "engine"), others_slow(CASES, [CASES[0], CASES[2], CASES[-1]]))
def test_what_is_not_trained_stays(make_data, make_federation, name, engine):
    model = mlp().double()
    model[0].requires_grad_(requires_grad=False)
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    federation = run(federation_of(make_data, make_federation, name, model, rounds=2), engine)
    found = federation.server["params"]
    if federation.algorithm.personal is not None:
        found = federation.engine.personal_weights(federation.server, 0)["params"]
    stayed = {n for n, leaf in before.items() if torch.equal(found[n], leaf)}
    assert stayed == {"0.weight", "0.bias"}
