"""What local steps of SGD add up to."""

from collections.abc import Callable
from functools import partial


def gradient_weight(num_steps: int, *, momentum: float, nesterov: bool) -> float:
    """|a|_1, where SGD from no momentum moves by -lr * sum_j a_j * g_j in `num_steps` steps.

    Without momentum every a_j is 1. With momentum r, step i is b_i = r * b_{i-1} + g_i, or with
    Nesterov's g_i + r * b_i.

    >>> gradient_weight(3, momentum=0.5, nesterov=False)  # 1.75 + 1.5 + 1
    4.25
    """
    decayed = momentum * (1 - momentum**num_steps) / (1 - momentum)
    heavy_ball = (num_steps - decayed) / (1 - momentum)
    return num_steps + momentum * heavy_ball if nesterov else heavy_ball


def weight_of_steps(
    algorithm: str, *, momentum: float | None, nesterov: bool | None
) -> Callable[[int], float]:
    """`gradient_weight` by number of local steps.

    Args:
        algorithm: that needs it.
        momentum: of the local optimizer; None where it has none.
        nesterov: whether that is Nesterov's.

    Raises:
        ValueError: if the optimizer is not SGD.
    """
    if momentum is None:
        raise ValueError(
            f"algorithm={algorithm} needs local steps of SGD, whose options are momentum and "
            f"nesterov; use optimizer=sgd"
        )
    return partial(gradient_weight, momentum=momentum, nesterov=bool(nesterov))
