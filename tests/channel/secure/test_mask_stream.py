"""Masks are AES in counter mode, word by word."""

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES128
from cryptography.hazmat.primitives.ciphers.modes import CTR

from flfast.channel.secure.keys import add_mask

KEY = bytes(range(16))
SIZES = [0, 1, 1000, (1 << 16) - 1, 1 << 16, 200_003]


def stream(key, num):
    """All bytes at once, by the cipher itself."""
    return Cipher(AES128(key), CTR(bytes(16))).encryptor().update(bytes(num))


@pytest.mark.parametrize("dtype", [np.uint32, np.uint64])
@pytest.mark.parametrize("num", SIZES)
def test_a_mask_is_the_cipher_and_comes_off_again(num, dtype):
    starts = [np.arange(num, dtype=dtype), np.arange(3, dtype=np.uint64)]
    totals, size = [start.copy() for start in starts], starts[0].nbytes
    add_mask(totals, KEY)
    expected = stream(KEY, size + 24)
    assert np.array_equal(totals[0], starts[0] + np.frombuffer(expected[:size], dtype))
    assert np.array_equal(totals[1], starts[1] + np.frombuffer(expected[size:], np.uint64))
    add_mask(totals, KEY, negative=True)
    assert all(map(np.array_equal, totals, starts))


def test_keys_have_masks_of_their_own():
    masks = [np.zeros(1000, dtype=np.uint32) for _ in range(2)]
    for mask, key in zip(masks, (KEY, bytes(16)), strict=True):
        add_mask([mask], key)
    assert (masks[0] == masks[1]).mean() < 0.01
