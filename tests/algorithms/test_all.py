"""Every file of conf/algorithm: engines agree, whoever takes part and however much data they have."""

import pytest
from engines import mlp, net
from algorithms_by_name import NAMES, close, federation_of, run
from torch import nn

from flfast.lit.engines.fused import FusedEngine
from flfast.plan import Batching

SPLIT = {"fedper", "fedrep", "lg_fedavg", "fedbabu"}
MODELS = {
    "convex": lambda: net(lambda: nn.Linear(5, 3)),
    "mlp": mlp,
    "batchnorm": lambda: mlp(lambda: nn.BatchNorm1d(8)),
}


def flat(tree, prefix=""):
    out = {}
    for name, leaf in tree.items():
        both = isinstance(leaf, dict)
        out |= flat(leaf, f"{prefix}{name}/") if both else {prefix + name: leaf}
    return out


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("name", NAMES)
def test_engines_agree_whoever_takes_part(name, model, make_data, make_federation):
    """Partial participation, dropped clients, unequal sizes, a client with one example."""
    if model == "convex" and name in SPLIT:
        pytest.skip("one layer has no head and body")
    sizes = (7, 4, 9, 5) if model == "batchnorm" else (7, 1, 9, 4)
    options = {
        "sizes": sizes,
        "rounds": 3,
        "local_epochs": 2,
        "sampling": {"fraction": 0.75, "dropout": 0.2},
        "batching": Batching(batch_size=3, drop_single=model == "batchnorm"),
    }

    def one(engine, stack="auto"):
        federation = federation_of(make_data, make_federation, name, MODELS[model](), **options)
        return run(federation, engine, stack) if engine else run(federation)

    eager = one(None)
    for stack in (1, 3):
        fused = one(FusedEngine, stack)
        close(flat(fused.server), flat(eager.server), tol=1e-9)
        for k in range(len(sizes)):
            state = eager.engine.states.get(k)
            found = fused.engine.states.get(k)
            assert (found is None) == (state is None)
            if state is not None:
                close(flat(found), flat(state), tol=1e-9)
        for row, expected in zip(fused.history[1:], eager.history[1:], strict=True):
            for column in ("train/loss", "comm/up_bytes", "comm/down_bytes"):
                assert row.get(column) == pytest.approx(expected.get(column), rel=1e-6)
