"""Who shares masks with whom: everyone with everyone, or a sparse random graph.

Bell, Bonawitz, Gascon, Lepoint, Raykova: Secure Single-Server Aggregation with (Poly)Logarithmic
Overhead. CCS 2020, section 3. https://eprint.iacr.org/2020/704
"""

import math

import numpy as np


def neighbor_graph(
    num: int, degree: int | None, rng: np.random.Generator
) -> tuple[tuple[int, ...], ...]:
    """The neighbours of each of `num` clients, by place, in ascending order.

    The sparse graph is a Harary graph of randomly ordered clients: each is linked to those at most
    `degree` / 2 places away on a ring. It is symmetric, regular and connected. `degree` is rounded
    up to an even number; None is all others. `rng` orders the clients.
    """
    half = num if degree is None else math.ceil(degree / 2)
    if 2 * half >= num - 1:
        return tuple(tuple(j for j in range(num) if j != i) for i in range(num))
    order = rng.permutation(num).tolist()
    place = np.argsort(order).tolist()
    offsets = [offset for offset in range(-half, half + 1) if offset]
    return tuple(
        tuple(sorted(order[(place[i] + offset) % num] for offset in offsets)) for i in range(num)
    )
