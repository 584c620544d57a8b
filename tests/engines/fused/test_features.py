"""Features of frozen layers are computed once a client, and no number says so."""

from functools import partial

import pytest
from engine_runs import assert_engines_agree, mlp, with_batchnorm
from sampling import others_slow
from torch import nn

from flfast.algorithms.fedrep import fedrep
from flfast.algorithms.moon import moon
from flfast.engines.fused.run import features
from flfast.state.plan import Batching

DOUBLE = {"precision": "64-true"}
FEDREP = partial(fedrep, head=None, head_epochs=3, weighting="samples")
MOON = partial(moon, mu=1.0, tau=0.5, head=None, weighting="samples")
OPTIONS = [
    {},
    {"batching": Batching(3, accumulate=2)},
    {"batching": Batching(-1)},
    {"batching": Batching(5, last_batch="drop"), "sizes": (7, 12)},
    {"local_epochs": None, "local_steps": 9},
]


@pytest.fixture
def assert_agree(make_data, make_federation):
    def check(algorithm=FEDREP, net=mlp, sizes=(7, 12, 1), **options):
        def make():
            return make_federation(
                make_data(list(sizes)),
                net(),
                algorithm=lambda initial: algorithm(initial=initial),
                trainer=DOUBLE,
                rounds=2,
                **{"batching": Batching(3), **options},
            )

        return assert_engines_agree(make, stack=1)

    return check


def splits(federation):
    (programs,) = federation.engine.training._programs.values()
    return [split for own in programs.client.programs for split in own.splits.values()]


@pytest.mark.parametrize(
    "options",
    others_slow(OPTIONS, OPTIONS[:1]),
    ids=["odd", "accumulated", "full", "drop", "steps"],
)
def test_a_head_trains_on_features(assert_agree, options):
    federation = assert_agree(**options)
    assert any(split is not None for split in splits(federation))


def test_a_client_without_features_takes_none_from_others(assert_agree, monkeypatch):
    """The largest client of the first cohort has too many."""
    monkeypatch.setattr(features, "FEATURE_BYTES", 600)
    rows = []
    kept = features.FeatureRows.rows
    monkeypatch.setattr(
        features.FeatureRows, "rows", lambda own, *given: rows.append(own) or kept(own, *given)
    )
    assert_agree(sizes=(12, 7), batching=Batching(3))
    assert {len(own._sorted) for own in rows} == {7}


def test_models_that_rest_are_asked_once(assert_agree):
    federation = assert_agree(MOON, local_epochs=3)
    found = splits(federation)
    assert found
    assert all(split is not None and "inputs" in split.reads for split in found)


def test_dropout_is_drawn_anew_on_features(assert_agree):
    net = partial(mlp, partial(nn.Dropout, 0.5))
    federation = assert_agree(net=net, sizes=(7, 12))
    assert any(split is not None for split in splits(federation))


def test_batches_that_matter_as_batches_are_read_anew(assert_agree):
    batching = Batching(3, drop_single=True)
    federation = assert_agree(net=with_batchnorm, sizes=(7, 12), batching=batching)
    assert splits(federation) == []


def test_features_that_are_too_large_are_not_kept(assert_agree, monkeypatch):
    monkeypatch.setattr(features, "FEATURE_BYTES", 0)
    assert_agree()


def test_large_clients_are_read_in_parts(assert_agree, monkeypatch):
    monkeypatch.setattr(features, "CHUNK_EXAMPLES", 5)
    assert_agree()


def test_less_than_a_pass_is_not_worth_it(assert_agree):
    federation = assert_agree(sizes=(7, 12), local_epochs=None, local_steps=1)
    assert splits(federation) == []
