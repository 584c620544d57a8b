"""Degenerate settings: an algorithm at a limit of its options equals a simpler one.

Settings that need a plan or a model of their own are in `test_fednova.py`, `test_ifca.py`,
`test_limits.py` and `test_server_optimizers.py`.
"""

import pytest
from algorithms_by_name import assert_leaves_close, federation_of, personal_of, run, server_of
from engine_runs import mlp
from sampling import others_slow

from flfast.state.plan import Batching

UNIFORM = {"weighting": "uniform"}
BY_SIZE, EQUAL = ("fedavg", {}), ("fedavg", UNIFORM)
SCAFFOLD, DYNAMIC = ("scaffold", {}), ("feddyn", {"alpha": 0.1})
EQUAL_PROX = ("fedprox", {"mu": 0.3, **UNIFORM})
ONE_ALPHA = {"alpha": 1.0, "adaptive": False}
NO_STEP = {"alpha": 0.0, "batches": "same"}
NO_MOMENTUM = {"alpha": 1.0}

SHARED = [
    # algorithm, options, tolerance, equal to
    ("fedacg", {"lam": 0.0, "beta": 0.3}, 1e-12, EQUAL_PROX),
    ("fedacg", {"lam": 0.0, "beta": 0.0}, 1e-12, EQUAL),
    ("fedala", {"mix_epochs": 0}, 0.0, BY_SIZE),
    ("fedasam", {"rho": 0.0}, 1e-12, BY_SIZE),
    ("fedcm", NO_MOMENTUM, 1e-12, EQUAL),
    ("feddecorr", {"beta": 0.0}, 1e-12, BY_SIZE),
    ("feddf", {"server_steps": 0}, 1e-6, BY_SIZE),
    ("feddisco", {"a": 0.0, "b": 0.0}, 1e-12, BY_SIZE),
    ("fedem", {"num_components": 1}, 1e-9, BY_SIZE),
    ("fedexp", {"epsilon": 1e9}, 1e-12, EQUAL),
    ("fedgamma", {"rho": 0.0}, 1e-12, SCAFFOLD),
    ("fedlc", {"tau": 0.0}, 1e-12, BY_SIZE),
    ("fedlesam", {"rho": 0.0}, 1e-12, BY_SIZE),
    ("fedlesam_s", {"rho": 0.0}, 1e-12, SCAFFOLD),
    ("fedlesam_d", {"rho": 0.0}, 1e-9, DYNAMIC),
    ("fedntd", {"beta": 0.0}, 1e-12, BY_SIZE),
    ("fedphp", {"lam": 0.0}, 1e-9, BY_SIZE),
    ("fedprox", {"mu": 0.0}, 1e-12, BY_SIZE),
    ("fedrs", {"alpha": 1.0}, 1e-12, BY_SIZE),
    ("fedsam", {"rho": 0.0}, 1e-12, BY_SIZE),
    ("fedsmoo", {"rho": 0.0}, 1e-9, DYNAMIC),
    ("fml", {"beta": 1.0}, 1e-9, EQUAL),
    ("mimelite", {"beta": 0.0}, 1e-12, EQUAL),
    ("mofedsam", {"rho": 0.0}, 1e-12, ("fedcm", {})),
    ("mofedsam", NO_MOMENTUM, 1e-12, ("fedsam", {**UNIFORM, "rho": 0.1})),
    ("moon", {"mu": 0.0, **UNIFORM}, 1e-9, EQUAL),
    ("per_fedavg", NO_STEP, 1e-9, EQUAL),
    ("per_fedavg", {**NO_STEP, "gradients": "hessian_free"}, 1e-9, EQUAL),
    ("per_fedavg", {**NO_STEP, "gradients": "exact"}, 1e-9, EQUAL),
    ("q_fedavg", {"q": 0.0}, 1e-12, EQUAL),
    # Their shared model is that of FedAvg with any options, or without BatchNorm.
    ("apfl", {}, 1e-9, EQUAL),
    ("ditto", UNIFORM, 1e-9, EQUAL),
    ("pfl_da", {}, 1e-9, ("lg_fedavg", UNIFORM)),
    ("fedbn", {}, 1e-9, EQUAL),
]  # fmt: skip

PERSONAL = [
    ("apfl", ONE_ALPHA, 1e-12),
    ("ditto", {"lam": 0.0}, 1e-12),
    ("fml", {"alpha": 1.0}, 1e-9),
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


@pytest.mark.parametrize(
    "case", others_slow([(case,) for case in SHARED], [(case,) for case in SHARED[::6]]), ids=ids
)
def test_the_servers_model_equals_that_of_a_simpler_algorithm(case, solve, expected):
    name, options, tol, simpler = case
    found = server_of(run(solve(name, options)))
    assert_leaves_close(found, server_of(expected(*simpler)), tol=tol)


@pytest.mark.parametrize("case", PERSONAL, ids=ids)
def test_personal_models_equal_those_of_local_training(case, solve, expected):
    name, options, tol = case
    found, local = run(solve(name, options)), expected("local", {})
    for k in range(3):
        assert_leaves_close(personal_of(found, k), personal_of(local, k), tol=tol)


def test_fedbn_without_batchnorm_warns_that_it_is_fedavg(solve, caplog):
    solve("fedbn", {})
    assert "algorithm=fedbn is FedAvg: the model has no BatchNorm" in caplog.text
