"""Sizes of messages that are found before the run are those of its first round."""

import pytest
from algorithms_by_name import federation_of
from engine_runs import mlp
from sampling import others_slow

from flfast.federation.calls import message_bytes

# One call; several; downloads by client; examples of the server.
NAMES = ["fedavg", "scaffold", "mime", "afl", "fedpac", "fedfomo", "cfl", "feddf"]


@pytest.mark.parametrize("name", others_slow(NAMES, NAMES[:-1]))
def test_sizes_are_those_of_the_first_round(name, make_data, make_federation):
    federation = federation_of(
        make_data,
        make_federation,
        name,
        mlp().double(),
        sizes=(6, 5),
        rounds=1,
        sampling={"fraction": 0.5},
    )
    plan = federation.plans(1, [])
    found = message_bytes(federation.engine, federation.initial, plan, 0)
    site = federation.engine.site
    assert len(site.states) == len(site.records) == 0
    row = federation.run()[1]
    assert found == (row["comm/down_bytes"], row["comm/up_bytes"])
