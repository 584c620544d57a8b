"""Degenerate settings: an algorithm at a limit of its options equals a simpler one, and warns.

Settings that need a plan or a model of their own are in `test_fednova.py`, `test_ifca.py`,
`test_limits.py` and `test_server_optimizers.py`.
"""

import logging

import pytest
from algorithms_by_name import assert_leaves_close, federation_of, personal_of, run, server_of
from engine_runs import mlp

from flfast.state.plan import Batching

UNIFORM = {"weighting": "uniform"}
BY_SIZE, EQUAL = ("fedavg", {}), ("fedavg", UNIFORM)
SCAFFOLD, DYNAMIC = ("scaffold", {}), ("feddyn", {"alpha": 0.1})
EQUAL_PROX = ("fedprox", {"mu": 0.3, **UNIFORM})
ONE_ALPHA = {"alpha": 1.0, "adaptive": False}
NO_STEP = {"alpha": 0.0, "batches": "same"}
STAYS = "algorithm.alpha=0 turns Per-FedAvg into FedAvg"
LAM_ZERO = "algorithm.lam=0 with algorithm.beta={} turns FedACG into {}"
NO_MOMENTUM = {"alpha": 1.0}
FEDCM, MOFEDSAM = (
    f"algorithm.alpha=1 with algorithm.server_lr=1 turns {name} into {simpler}"
    for name, simpler in (("FedCM", "FedAvg"), ("MoFedSAM", "FedSAM"))
)
NOT_DISTILLED = "algorithm.server_steps=0 turns FedDF into FedAvg"
ONE_MODEL = "algorithm.num_components=1 turns FedEM into FedAvg"
NO_DISCREPANCY = "algorithm.a=0 with algorithm.b=0 turns FedDisco into FedAvg"

SHARED = [
    # algorithm, options, warning or None, tolerance, equal to
    ("fedacg", {"lam": 0.0, "beta": 0.3}, LAM_ZERO.format(0.3, "FedProx"), 1e-12, EQUAL_PROX),
    ("fedacg", {"lam": 0.0, "beta": 0.0}, LAM_ZERO.format(0.0, "FedAvg"), 1e-12, EQUAL),
    ("fedala", {"mix_epochs": 0}, "algorithm.mix_epochs=0 turns FedALA into FedAvg", 0.0, BY_SIZE),
    ("fedasam", {"rho": 0.0}, "algorithm.rho=0 turns FedASAM into FedAvg", 1e-12, BY_SIZE),
    ("fedcm", NO_MOMENTUM, FEDCM, 1e-12, EQUAL),
    ("feddecorr", {"beta": 0.0}, "algorithm.beta=0 turns FedDecorr into FedAvg", 1e-12, BY_SIZE),
    ("feddf", {"server_steps": 0}, NOT_DISTILLED, 1e-6, BY_SIZE),
    ("feddisco", {"a": 0.0, "b": 0.0}, NO_DISCREPANCY, 1e-12, BY_SIZE),
    ("fedem", {"num_components": 1}, ONE_MODEL, 1e-9, BY_SIZE),
    ("fedexp", {"epsilon": 1e9}, None, 1e-12, EQUAL),
    ("fedgamma", {"rho": 0.0}, "algorithm.rho=0 turns FedGAMMA into SCAFFOLD", 1e-12, SCAFFOLD),
    ("fedlc", {"tau": 0.0}, "algorithm.tau=0 turns FedLC into FedAvg", 1e-12, BY_SIZE),
    ("fedlesam", {"rho": 0.0}, "algorithm.rho=0 turns FedLESAM into FedAvg", 1e-12, BY_SIZE),
    ("fedlesam_s", {"rho": 0.0}, "algorithm.rho=0 turns FedLESAM-S into", 1e-12, SCAFFOLD),
    ("fedlesam_d", {"rho": 0.0}, "algorithm.rho=0 turns FedLESAM-D into", 1e-9, DYNAMIC),
    ("fedntd", {"beta": 0.0}, "algorithm.beta=0 turns FedNTD into FedAvg", 1e-12, BY_SIZE),
    ("fedphp", {"lam": 0.0}, "algorithm.lam=0 makes FedPHP's shared model that of", 1e-9, BY_SIZE),
    ("fedprox", {"mu": 0.0}, "algorithm.mu=0 turns FedProx into FedAvg", 1e-12, BY_SIZE),
    ("fedrs", {"alpha": 1.0}, "algorithm.alpha=1 turns FedRS into FedAvg", 1e-12, BY_SIZE),
    ("fedsam", {"rho": 0.0}, "algorithm.rho=0 turns FedSAM into FedAvg", 1e-12, BY_SIZE),
    ("fedsmoo", {"rho": 0.0}, "algorithm.rho=0 turns FedSMOO into FedDyn", 1e-9, DYNAMIC),
    ("fml", {"beta": 1.0}, "algorithm.beta=1 makes FML's shared model that of", 1e-9, EQUAL),
    ("mimelite", {"beta": 0.0}, "algorithm.beta=0 turns MimeLite into FedAvg", 1e-12, EQUAL),
    ("mofedsam", {"rho": 0.0}, "algorithm.rho=0 turns MoFedSAM into FedCM", 1e-12, ("fedcm", {})),
    ("mofedsam", NO_MOMENTUM, MOFEDSAM, 1e-12, ("fedsam", {**UNIFORM, "rho": 0.1})),
    ("moon", {"mu": 0.0, **UNIFORM}, "algorithm.mu=0 turns MOON into FedAvg", 1e-9, EQUAL),
    ("per_fedavg", NO_STEP, STAYS, 1e-9, EQUAL),
    ("per_fedavg", {**NO_STEP, "gradients": "hessian_free"}, STAYS, 1e-9, EQUAL),
    ("per_fedavg", {**NO_STEP, "gradients": "exact"}, STAYS, 1e-9, EQUAL),
    ("q_fedavg", {"q": 0.0}, "algorithm.q=0 turns q-FedAvg into FedAvg", 1e-12, EQUAL),
    # Their shared model is that of FedAvg with any options, or without BatchNorm.
    ("apfl", {}, None, 1e-9, EQUAL),
    ("ditto", UNIFORM, None, 1e-9, EQUAL),
    ("pfl_da", {}, None, 1e-9, ("lg_fedavg", UNIFORM)),
    ("fedbn", {}, "algorithm=fedbn is FedAvg: the model has no BatchNorm", 1e-9, EQUAL),
]  # fmt: skip

PERSONAL = [
    ("apfl", ONE_ALPHA, "algorithm.alpha=1 makes APFL's personal models", 1e-12),
    ("ditto", {"lam": 0.0}, "algorithm.lam=0 makes Ditto's personal models purely local", 1e-12),
    ("fml", {"alpha": 1.0}, "algorithm.alpha=1 makes FML's personal models purely local", 1e-9),
]

EXPECTED = {}
"""Federations after their last round, by algorithm and options."""


@pytest.fixture
def solve(make_data, make_federation):
    def solve(name, options):
        return federation_of(
            *(make_data, make_federation, name, mlp()),
            sizes=(7, 1, 4),
            rounds=3,
            local_epochs=2,
            batching=Batching(3),
            algorithm=options,
        )

    return solve


@pytest.fixture
def warned(solve, caplog):
    """Run an algorithm that must log one warning when it is built, or none."""

    def warned(name, options, warning):
        with caplog.at_level(logging.WARNING):
            federation = solve(name, options)
        assert [warning in text for text in caplog.messages] == [True] * (warning is not None)
        return run(federation)

    return warned


@pytest.fixture
def expected(solve):
    """Run a simpler algorithm, once for all tests."""

    def expected(name, options):
        key = (name, *sorted(options.items()))
        if key not in EXPECTED:
            EXPECTED[key] = run(solve(name, options))
        return EXPECTED[key]

    return expected


def ids(case):
    return ",".join([case[0], *(f"{key}={value}" for key, value in case[1].items())])


@pytest.mark.parametrize("case", SHARED, ids=ids)
def test_the_servers_model_equals_that_of_a_simpler_algorithm(case, warned, expected):
    name, options, warning, tol, simpler = case
    found = server_of(warned(name, options, warning))
    assert_leaves_close(found, server_of(expected(*simpler)), tol=tol)


@pytest.mark.parametrize("case", PERSONAL, ids=ids)
def test_personal_models_equal_those_of_local_training(case, warned, expected):
    name, options, warning, tol = case
    found, local = warned(name, options, warning), expected("local", {})
    for k in range(3):
        assert_leaves_close(personal_of(found, k), personal_of(local, k), tol=tol)
