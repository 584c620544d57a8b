"""Noise that cancels over rounds by a banded matrix, for clients with rounds between their turns.

Choquette-Choo, Ganesh, McKenna, McMahan, Rush, Thakurta, Xu: (Amplified) Banded Matrix
Factorization: A unified approach to private training. NeurIPS 2023.
https://arxiv.org/abs/2306.08153

    sums over rounds of (x_t + (C^-1 z)_t),  C [n, n] lower triangular with b bands,  n rounds

z is independent noise. What is released is a function of C x + z: one Gaussian mechanism. If at
least b rounds lie between two turns of a client, the columns of C in its rounds have no row in
common. So with columns of norm 1, a client with k turns changes C x by at most sqrt(k) times its
bound (Theorem 2 there). That needs no assumption on the directions of its changes.

Where the code differs: the paper optimises all n * b elements. Here C = T / (norms of its
columns) for a Toeplitz matrix T, whose b coefficients minimise the mean squared error of T over
all sums. McKenna: Scaling up the Banded Matrix Factorization Mechanism for Differentially Private
ML, 2024, Proposition 3.1. https://arxiv.org/abs/2405.15913. The root of the mean squared error is
at most 2 % larger (tests), for O(n b) instead of O(n^3) operations in a step of the optimiser.

Each round solves one row of T u = z (Algorithm 9 of the first paper): it needs the b - 1 noises u
before. Amplification by sampling is left out: it is for clients that are drawn at random.
"""

import math
from functools import partial

import numpy as np
from scipy.optimize import minimize
from torch import Tensor

from flfast.channel.privacy.privacy import Correlation
from flfast.state.tree import Tree, tree_map


def banded_correlation(coefficients: np.ndarray, rounds: int) -> Correlation:
    """C^-1 of independent noise, round after round, by the coefficients of T [b].

    A round that releases nothing is left out, as if row and column were not in C.
    """
    first, *others = coefficients.tolist()

    def solved(z: Tensor, *earlier: Tensor, factors: list[float]) -> Tensor:
        total = z.clone()
        for factor, noise in zip(factors, earlier, strict=True):
            total.sub_(noise, alpha=factor)
        return total.div_(first)

    def correlate(z: Tree, round_idx: int, memory: Tree) -> tuple[Tree, Tree]:
        if not 1 <= round_idx <= rounds:
            raise ValueError(f"round {round_idx}: the noise is for rounds 1 to {rounds}")
        names = [str(round_idx - distance) for distance in range(1, len(others) + 1)]
        known = {name: c for name, c in zip(names, others, strict=True) if name in memory}
        own = tree_map(
            partial(solved, factors=[*known.values()]), z, *(memory[name] for name in known)
        )
        kept = {name: memory[name] for name in known if name != names[-1]}
        if others:
            kept[str(round_idx)] = own
        # The columns of the last rounds are cut off by the end of the run.
        norm = math.hypot(*coefficients[: rounds - round_idx + 1])
        return tree_map(lambda leaf: leaf * norm, own), kept

    return correlate


def toeplitz_coefficients(rounds: int, bands: int) -> np.ndarray:
    """The b coefficients of T, of norm 1, with the least mean squared error of sums; float64 [b].

    They begin as the first ones of the square root of the matrix of sums, which is optimal for
    the largest error with n bands: Fichtenberger, Henzinger, Upadhyay 2023, Theorem 1.
    """
    place = np.arange(1, bands)
    start = np.cumprod((2 * place - 1) / (2 * place))

    def objective(others: np.ndarray) -> tuple[float, np.ndarray]:
        coefficients = np.r_[1.0, others]
        error, gradient = _mean_squared_error(coefficients, rounds)
        squared = coefficients @ coefficients
        # C = T / sqrt(squared) has `squared` times the error.
        return math.log(error * squared), gradient[1:] / error + 2 * others / squared

    if bands > 1:
        options = {"maxiter": 1000, "maxfun": 2000, "ftol": 1e-12, "gtol": 1e-8}
        start = minimize(objective, start, jac=True, method="L-BFGS-B", options=options).x
    found = np.r_[1.0, start]
    return found / np.linalg.norm(found)


def _mean_squared_error(coefficients: np.ndarray, rounds: int) -> tuple[float, np.ndarray]:
    """Mean over t of the variance of the sum of T^-1 z up to t, and its gradient [b].

    That sum is a moving average of z, by the coefficients of 1 / ((1 - x) T(x)).
    """
    from scipy.signal import lfilter  # takes a third of a second to import

    weights = np.arange(rounds, 0, -1) / rounds
    sums = lfilter([1.0], coefficients, np.ones(rounds))
    again = lfilter([1.0], coefficients, sums)
    gradient = [
        -2 * float((weights * sums)[shift:] @ again[: rounds - shift])
        for shift in range(len(coefficients))
    ]
    return float(weights @ sums**2), np.array(gradient)
