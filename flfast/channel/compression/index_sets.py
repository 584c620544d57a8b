"""Sets of indices in close to as few bits as possible.

Elias: Efficient Storage and Retrieval by Content and Address of Static Files. Journal of the ACM
21 (1974). Fano: On the Number of Bits Required to Implement an Associative Memory. MIT, 1971.

A set of k indices below D takes at most 2 + log2(D / k) bits each, and never more than D bits. At
least log2(D / k) bits each are necessary.
"""

import numpy as np

from flfast.channel.compression.bits import pack, packed_size, unpack


def _num_low_bits(num: int, size: int) -> int | None:
    """Bits of each index that are stored as they are; None if a bitmap is smaller."""
    low = max(size // num, 1).bit_length() - 1
    return low if num * low + num + (size >> low) < size else None


def encode_indices(indices: np.ndarray, size: int) -> bytes:
    """Encode a set of indices below D = `size`, int64 [k], ascending and without repetition.

    Returns:
        Bytes, whose number is a function of k and D.
    """
    num = len(indices)
    if num in {0, size}:
        return b""
    low = _num_low_bits(num, size)
    if low is None:
        return _bitmap(indices, size)
    # In a bitmap of the high parts, a one stands for an index and a zero for the next high part.
    high = _bitmap((indices >> low) + np.arange(num), num + (size >> low) + 1)
    whole, rest = divmod(low, 8)
    parts = [(indices >> (8 * place)).astype(np.uint8) for place in range(whole)]
    last = ((indices >> (8 * whole)) & (2**rest - 1)).astype(np.uint8)
    return b"".join([high, *(part.tobytes() for part in parts), pack(last, rest).tobytes()])


def decode_indices(data: bytes, num: int, size: int) -> np.ndarray:
    """Inverse of `encode_indices`: int64 [num], ascending, from data that begin with the set."""
    if num in {0, size}:
        return np.arange(num)
    low = _num_low_bits(num, size)
    if low is None:
        return _ones(data, size)
    length = num + (size >> low) + 1
    indices = (_ones(data, length) - np.arange(num)) << low
    whole, rest = divmod(low, 8)
    raw = np.frombuffer(data, np.uint8, offset=-(-length // 8))
    for place in range(whole):
        indices |= raw[place * num : (place + 1) * num].astype(np.int64) << (8 * place)
    last = unpack(raw[whole * num : whole * num + packed_size(num, rest)], num, rest)
    return indices | (last.astype(np.int64) << (8 * whole))


def _bitmap(places: np.ndarray, length: int) -> bytes:
    marks = np.zeros(length, np.uint8)
    marks[places] = 1
    return np.packbits(marks).tobytes()


def _ones(data: bytes, length: int) -> np.ndarray:
    raw = np.frombuffer(data, np.uint8, -(-length // 8))
    return np.flatnonzero(np.unpackbits(raw, count=length).view(bool))
