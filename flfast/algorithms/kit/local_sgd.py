"""Coefficients of the gradients in an update by local SGD."""

from collections.abc import Callable
from functools import partial


def gradient_weight(num_steps: int, *, momentum: float, nesterov: bool) -> float:
    """|a|_1, where `num_steps` steps of SGD move by -lr * sum_j a_j * g_j; b_0 = 0.

    Without momentum every a_j is 1. With momentum r, step i moves by -lr * b_i, where
    b_i = r * b_{i-1} + g_i; with Nesterov momentum, by -lr * (g_i + r * b_i).

    >>> gradient_weight(3, momentum=0.5, nesterov=False)  # 1.75 + 1.5 + 1
    4.25
    """
    decayed = momentum * (1 - momentum**num_steps) / (1 - momentum)
    heavy_ball = (num_steps - decayed) / (1 - momentum)
    return num_steps + momentum * heavy_ball if nesterov else heavy_ball


def gradient_weight_of_sgd(
    algorithm: str, *, momentum: float | None, nesterov: bool | None
) -> Callable[[int], float]:
    """`gradient_weight` of the local optimizer, as a function of the number of local steps.

    `momentum` is None if the local optimizer is not SGD. The message names the `algorithm`.

    Raises:
        ValueError: if the local optimizer is not SGD.
    """
    if momentum is None:
        raise ValueError(
            f"algorithm={algorithm} needs local steps of SGD, whose options are momentum and "
            f"nesterov; use optimizer=sgd"
        )
    return partial(gradient_weight, momentum=momentum, nesterov=bool(nesterov))
