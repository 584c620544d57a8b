"""Statistics of uploads [K, D] for attacks and robust rules, computed in blocks of columns.

Results are on the device of the rows, which must have float64, as all arguments are.

Sums are in double precision, because an attacker's values may be as large as their dtype allows.
"""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

_BLOCK_COLUMNS = 16_384  # 13 MB of doubles with a hundred rows


def column_blocks(rows: Tensor) -> Iterator[Tensor]:
    """Views [K, at most 16384] of consecutive columns."""
    for start in range(0, rows.shape[1], _BLOCK_COLUMNS):
        yield rows[:, start : start + _BLOCK_COLUMNS]


def weighted_sum(rows: Tensor, weights: Tensor) -> Tensor:
    """`weights @ rows`, float64 [D], of weights, float64 [K], and rows [K, D]."""
    sums = [weights @ block.double() for block in column_blocks(rows)]
    return torch.cat([weights.new_empty(0), *sums])


def row_moments(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of each column, float64 [D] each; of K >= 1 rows."""
    means, stds = [rows.new_empty(0).double()], [rows.new_empty(0).double()]
    for block in column_blocks(rows):
        values = block.double()
        means.append(values.mean(dim=0))
        stds.append(values.std(dim=0, correction=0))
    return torch.cat(means), torch.cat(stds)


def row_products(rows: Tensor, vector: Tensor) -> Tensor:
    """Inner products, float64 [K], of rows [K, D] with a vector, float64 [D]."""
    products = vector.new_zeros(len(rows))
    for block, part in zip(column_blocks(rows), column_blocks(vector[None]), strict=True):
        products += block.double() @ part[0]
    return products


def distances(rows: Tensor, center: Tensor) -> Tensor:
    """Euclidean distances, float64 [K], of rows [K, D] from a point, float64 [D]."""
    squares = center.new_zeros(len(rows))
    for block, middle in zip(column_blocks(rows), column_blocks(center[None]), strict=True):
        squares += (block.double() - middle).square_().sum(dim=1)
    return squares.sqrt()


def squared_distances(rows: Tensor) -> Tensor:
    """Squared Euclidean distances between all rows, float64 [K, K]; infinite if they overflow.

    Rows that differ by a few units in their last places are at distance zero.
    """
    products = torch.zeros(len(rows), len(rows), dtype=torch.float64, device=rows.device)
    for block in column_blocks(rows):
        values = block.double()
        products += values @ values.T
    squares = products.diagonal()
    sums = squares[:, None] + squares[None, :]
    distances = sums - 2 * products
    # Equal rows that were computed in another order, or cancellation in the line above.
    rounding = max((16 * torch.finfo(rows.dtype).eps) ** 2, 16 * torch.finfo(sums.dtype).eps)
    distances[distances <= rounding * sums] = 0
    # Where squares overflowed, all of the above compares infinities.
    return distances.where(sums.isfinite(), torch.inf).fill_diagonal_(0)


def trimmed_mean_of_rows(rows: Tensor, num_trimmed: int) -> Tensor:
    """Mean [D] of each column of rows [K, D] without `num_trimmed` < K / 2 values at each end."""
    kept = slice(num_trimmed, len(rows) - num_trimmed)
    if not rows.is_cpu:
        blocks = [block.sort(dim=0).values[kept].double() for block in column_blocks(rows)]
        means = [block.mean(dim=0).to(rows.dtype) for block in blocks]
        return torch.cat([rows.new_empty(0), *means])
    means = []
    for block in column_blocks(rows):
        # NumPy sorts the columns of 100 x 16384 numbers in 10 ms; torch takes 160 ms.
        columns = np.sort(np.ascontiguousarray(block.numpy().T), axis=1)
        means.append(columns[:, kept].mean(axis=1, dtype=np.float64))
    return torch.from_numpy(np.concatenate([np.empty(0), *means])).to(rows.dtype)
