"""Algorithms with two models and BatchNorm: engines agree on the statistics of both."""

import pytest
from algorithms_by_name import assert_leaves_close, federation_of, personal_of, run, server_of
from engine_runs import mlp
from sampling import others_slow
from torch import nn

from flfast.engines.eager import EagerTraining
from flfast.engines.fused.training import FusedTraining
from flfast.state.plan import Batching

SPLIT = {"fedper", "fedrep", "lg_fedavg", "fedbabu"}
SHORT = {"fedrep": {"head_epochs": 2}, "pfedme": {"inner_steps": 2}}  # fewer operators to trace


def flat(tree, prefix=""):
    out = {}
    for name, leaf in tree.items():
        both = isinstance(leaf, dict)
        out |= flat(leaf, f"{prefix}{name}/") if both else {prefix + name: leaf}
    return out


def assert_engines_agree(name, make_model, make_data, make_federation, *, sizes, stack):
    batchnorm = any(isinstance(layer, nn.BatchNorm1d) for layer in make_model())

    def one(engine):
        federation = federation_of(
            make_data,
            make_federation,
            name,
            make_model(),
            sizes=sizes,
            rounds=3,
            local_epochs=2,
            sampling={"fraction": 0.75, "dropout": 0.2},
            batching=Batching(batch_size=3, drop_single=batchnorm),
            algorithm=SHORT.get(name, {}),
        )
        return run(federation, engine, stack)

    eager, fused = one(EagerTraining), one(FusedTraining)
    assert_leaves_close(flat(fused.server), flat(eager.server), tol=1e-9)
    for k in range(len(sizes)):
        found, expected = (flat(f.engine.site.states.get(k) or {}) for f in (fused, eager))
        assert_leaves_close(found, expected, tol=1e-9)
    for row, expected in zip(fused.history[1:], eager.history[1:], strict=True):
        for column in ("train/loss", "comm/up_bytes", "comm/down_bytes"):
            assert row.get(column) == pytest.approx(expected.get(column), rel=1e-6)


NAMES = ["apfl", "moon", "fedbn", "fedntd", "fedphp", "fml"]


@pytest.mark.parametrize("name", others_slow(NAMES, NAMES[:1]))
def test_engines_agree_on_statistics_of_two_models(name, make_data, make_federation):
    """APFL and FML train the second model, FedBN keeps BatchNorm local, others only read it."""

    def batchnorm():
        return mlp(lambda: nn.BatchNorm1d(8))

    assert_engines_agree(name, batchnorm, make_data, make_federation, sizes=(6, 4, 9, 5), stack=1)


@pytest.mark.parametrize("engine", others_slow([EagerTraining, FusedTraining], [EagerTraining]))
@pytest.mark.parametrize("name", ["fedkd", "fml"])
def test_a_common_model_like_the_clients_own_one_changes_nothing(
    name, engine, make_data, make_federation
):
    """The shared model has leaves of its own then, and the clients' models those of the run."""
    plain, common = (
        federation_of(
            *(make_data, make_federation, name, mlp().double()),
            sizes=(6, 4, 3),
            rounds=3,
            local_epochs=2,
            batching=Batching(2),
            algorithm={"common": shared},
        )
        for shared in (None, mlp())
    )
    for federation in (plain, common):
        run(federation, engine)
    found = {k.removeprefix(".common."): v for k, v in server_of(common).items()}
    assert_leaves_close(found, server_of(plain), tol=1e-9)
    for k in range(3):
        assert_leaves_close(personal_of(common, k), personal_of(plain, k), tol=1e-9)
