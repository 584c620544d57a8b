"""Keys agree on both sides, and purposes have keys of their own."""

from hypothesis import given, settings
from hypothesis import strategies as st

from flfast.channel.secure.keys import Agreements, KeyPair, derived, drawn

KEYS = st.binary(min_size=32, max_size=32)


@settings(max_examples=20)
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
    assert agreements.num == 1


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
