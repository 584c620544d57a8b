"""Dirichlet draws that stay finite for any concentration."""

import numpy as np

# Beyond these bounds a draw is one-hot or uniform to six digits, and floats would overflow.
_SMALLEST, _LARGEST = 1e-12, 1e12


def dirichlet_logits(concentration: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Logits whose softmax over the last axis is a Dirichlet draw; same shape.

    Uses Gamma(a) = Gamma(a + 1) * U^(1 / a) in log space. For a small `a`, all gamma variates
    underflow to 0, but their logarithms still have an order.

    Args:
        concentration: [..., D], each > 0.
        rng: the only source of randomness.
    """
    bounded = np.clip(concentration, _SMALLEST, _LARGEST)
    return (
        np.log(rng.standard_gamma(bounded + 1)) - rng.standard_exponential(bounded.shape) / bounded
    )


def softmax(logits: np.ndarray) -> np.ndarray:
    """Shares [..., D] that sum to 1 over the last axis; a logit of -inf gives 0.

    >>> softmax(np.array([0.0, 0.0, -np.inf])).tolist()
    [0.5, 0.5, 0.0]
    """
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)
