"""Packs small integers into bytes without gaps."""

import numpy as np

_WIDTHS = (4, 2, 1)


def packed_size(num: int, bits: int) -> int:
    """Bytes of `num` packed values; their number is rounded up to a multiple of 8.

    >>> packed_size(16, 3), packed_size(17, 3)
    (6, 9)
    """
    return -(-num // 8) * bits


def pack(values: np.ndarray, bits: int) -> np.ndarray:
    """Pack values of 0 to 8 bits each, uint8 [N].

    A value is cut into pieces of 4, 2 and 1 bits. A byte holds pieces of values that are far
    apart, so that every operation runs over contiguous memory.

    Returns:
        uint8 [packed_size(N, bits)].
    """
    if len(values) % 8:
        values = np.concatenate([values, np.zeros(-len(values) % 8, np.uint8)])
    if bits == 8:
        return values
    packed, shift = [], 0
    for width in _WIDTHS:
        if bits & width:
            pieces = values >> shift if shift else values
            if shift + width < bits:
                pieces = pieces & (2**width - 1)
            rows = pieces.reshape(8 // width, -1)
            total = rows[0].copy()
            for place in range(1, 8 // width):
                total |= rows[place] << (place * width)
            packed.append(total)
            shift += width
    return np.concatenate(packed) if packed else np.empty(0, np.uint8)


def unpack(packed: np.ndarray, num: int, bits: int) -> np.ndarray:
    """Inverse of `pack`: uint8 [num], from uint8 [packed_size(num, bits)]."""
    if bits == 8:
        return packed[:num]
    eighth = -(-num // 8)
    values, start, shift = np.zeros(8 * eighth, np.uint8), 0, 0
    for width in _WIDTHS:
        if bits & width:
            total = packed[start : start + eighth * width]
            for place, row in enumerate(values.reshape(8 // width, -1)):
                row |= ((total >> (place * width)) & (2**width - 1)) << shift
            start, shift = start + eighth * width, shift + width
    return values[:num]
