"""Any t of n shares give the secret, and t - 1 fit every secret."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flfast.channel.secure import secret_sharing
from flfast.channel.secure.secret_sharing import PRIME, RANDOM_BYTES, SHARE_BYTES, combine, split

SECRETS = st.binary(min_size=32, max_size=32)


@st.composite
def shared(draw, least=1):
    num = draw(st.integers(least, 12))
    threshold = draw(st.integers(least, num))
    points = draw(st.lists(st.integers(1, 65536), min_size=num, max_size=num, unique=True))
    secret = draw(SECRETS)
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    shares = split(secret, threshold, points, random.bytes(RANDOM_BYTES * (threshold - 1)))
    order = draw(st.permutations(range(num)))
    return secret, threshold, [points[i] for i in order], [shares[i] for i in order]


@settings(max_examples=25)
@given(shared())
def test_any_shares_above_the_threshold_give_the_secret(case):
    secret, threshold, points, shares = case
    assert {len(share) for share in shares} == {SHARE_BYTES}
    for num in {threshold, len(points)}:
        assert combine(points[:num], shares[:num]) == secret


@settings(max_examples=25)
@given(shared(least=2), SECRETS)
def test_one_share_less_fits_every_secret(case, other):
    """For each secret there is a last share that gives it: t - 1 shares exclude none."""
    _, threshold, points, shares = case
    points, shares = points[:threshold], shares[:threshold]
    weights = [secret_sharing._weight(point, points) for point in points]
    known = sum(
        weight * secret_sharing._unpacked(share).astype(np.int64)
        for weight, share in zip(weights[:-1], shares[:-1], strict=True)
    )
    wanted = np.frombuffer(other, np.uint16).astype(np.int64)
    last = (wanted - known) * pow(weights[-1], -1, PRIME) % PRIME
    forged = secret_sharing._packed(last.astype(np.uint32))
    assert combine(points, [*shares[:-1], forged]) == other


def test_fewer_shares_give_another_secret():
    secret, random = bytes(range(32)), np.random.default_rng(0).bytes(RANDOM_BYTES * 2)
    shares = split(secret, 3, [1, 2, 3, 4], random)
    assert combine([1, 2, 4], [shares[0], shares[1], shares[3]]) == secret
    try:
        found = combine([1, 2], shares[:2])
    except ValueError as error:  # a word of 65536 belongs to no secret
        assert "16-bit words" in str(error)
    else:
        assert found != secret


def test_a_share_is_uniform():
    """Chi-square of the shares of one secret with many polynomials, at 16 classes per word."""
    rng = np.random.default_rng(1)
    shares = [split(bytes(32), 3, [7], rng.bytes(RANDOM_BYTES * 2))[0] for _ in range(400)]
    words = np.concatenate([secret_sharing._unpacked(share) for share in shares])
    counts = np.bincount(words * 16 // PRIME, minlength=16)
    expected = len(words) / 16
    assert ((counts - expected) ** 2 / expected).sum() < 37.7  # 99.9 % at 15 degrees


def test_the_largest_words_survive():
    secret, point = b"\xff" * 32, 65536
    random = np.random.default_rng(2).bytes(RANDOM_BYTES)
    shares = split(secret, 2, [1, point], random)
    assert combine([point, 1], shares[::-1]) == secret


def test_shares_of_different_secrets_are_noticed_or_give_a_third():
    random = np.random.default_rng(3).bytes(RANDOM_BYTES)
    left, right = (split(secret, 2, [1, 2], random) for secret in (bytes(32), b"\x01" * 32))
    try:
        assert combine([1, 2], [left[0], right[1]]) not in {bytes(32), b"\x01" * 32}
    except ValueError as error:
        assert "16-bit words" in str(error)


@pytest.mark.parametrize("num", [2, 60])
def test_many_holders(num):
    secret, threshold = bytes(range(32)), num // 2 + 1
    random = np.random.default_rng(4).bytes(RANDOM_BYTES * (threshold - 1))
    points = list(range(1, num + 1))
    shares = split(secret, threshold, points, random)
    assert combine(points[-threshold:], shares[-threshold:]) == secret
