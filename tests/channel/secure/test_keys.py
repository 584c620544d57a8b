"""Keys agree on both sides, purposes have keys of their own, and masks are AES in counter mode."""

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES128
from cryptography.hazmat.primitives.ciphers.modes import CTR
from hypothesis import given, settings
from hypothesis import strategies as st

from flfast.channel.secure.keys import Agreements, KeyPair, add_mask, derived, drawn

KEYS = st.binary(min_size=32, max_size=32)
KEY = bytes(range(16))
SIZES = [0, 1, 1000, (1 << 16) - 1, 1 << 16, 200_003]


@settings(max_examples=10)
@given(KEYS, KEYS)
def test_both_clients_of_a_pair_agree(left, right):
    one, other = KeyPair(left), KeyPair(right)
    found = Agreements()(one, other.public)
    assert found == Agreements()(other, one.public)
    assert len(found) == len(one.public) == 32


def test_an_agreement_is_computed_once_per_pair():
    one, other = (KeyPair(bytes([number]) * 32) for number in (1, 2))
    agreements = Agreements()
    assert agreements(one, other.public) == agreements(other, one.public)


def test_purposes_and_paths_have_bytes_of_their_own():
    found = [
        make(secret, purpose, *path, length=16)
        for make in (derived, drawn)
        for secret in (bytes(32), b"\x01" * 32)
        for purpose in ("pairwise mask", "self mask")
        for path in ((), (1,), (2,), (1, 2), (2, 1))
    ]
    assert len(set(found)) == len(found)
    assert derived(bytes(32), "self mask", 3, length=16) == derived(
        bytes(32), "self mask", 3, length=16
    )


def test_longer_draws_begin_like_shorter_ones_and_have_any_length():
    long = drawn(bytes(32), "shares", length=100_000)
    assert len(long) == 100_000
    assert long[:16] == drawn(bytes(32), "shares", length=16)


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
