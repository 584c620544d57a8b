"""Masks that cancel in the sum of a cohort's uploads.

Bonawitz et al.: Practical Secure Aggregation for Privacy-Preserving Machine Learning. CCS 2017,
section 4 and figure 4, for a server and clients that follow the protocol.
https://eprint.iacr.org/2017/281

`neighbors` is the sparse graph of Bell et al., CCS 2020: see `round_terms`.

A simulation derives private keys from the seed, so that runs can be repeated. In a deployment,
clients draw them from the operating system. docs/secure.md says what the protocol does not protect
against.
"""

from collections.abc import Sequence

from flfast.channel.secure.fixed_point import fixed_point
from flfast.channel.secure.keys import derived
from flfast.channel.secure.masked_round import MaskedRound
from flfast.channel.secure.round_terms import RoundTerms, round_terms
from flfast.channel.secure.secure import Hiding, Secure
from flfast.state.options import ModulusBits, Positive, PositiveUpToOne, Several
from flfast.state.randomness import generator


def masks(
    *,
    bits: ModulusBits,
    max_change: Positive,
    precision: Positive,
    max_weight: Positive | None,
    threshold: PositiveUpToOne,
    neighbors: Several | None,
) -> Hiding:
    """Secure aggregation of fixed-point integers modulo 2^bits.

    The number of `neighbors` is rounded up to an even one.
    """

    def check(num: int) -> None:
        if num < 2:
            raise ValueError(
                f"secure=masks: the largest cohort has {num} client, but masks are removed from a "
                f"sum of 2 or more; allowed: a larger cohort or population, or secure=none"
            )
        errors = {more: fixed_point(more, max_change, num).step / 2 for more in range(bits, 63)}
        if errors[bits] <= precision:
            return
        enough = next((more for more, error in errors.items() if error <= precision), None)
        allowed = "" if enough is None else f"secure.bits >= {enough}, "
        raise ValueError(
            f"secure.bits={bits} with secure.max_change={max_change:g} and a cohort of {num} "
            f"clients: the mean would be rounded by up to {errors[bits]:.2g}, more than "
            f"secure.precision={precision:g}; allowed: {allowed}a smaller max_change, a larger "
            f"precision, or a smaller cohort"
        )

    def make_terms(cohort: Sequence[int], seed: int, path: tuple[int, ...]) -> RoundTerms:
        numbers = fixed_point(bits, max_change, max(len(cohort), 1))
        rng = generator(seed, "secure neighbors", *path)
        return round_terms(cohort, rng, numbers=numbers, threshold=threshold, neighbors=neighbors)

    def make_round(cohort: Sequence[int], seed: int, path: tuple[int, ...]) -> MaskedRound:
        secret = derived(seed.to_bytes(8, "little"), "round", *path, length=32)
        return MaskedRound(make_terms(cohort, seed, path), secret)

    return Secure("masks", make_round, check, max_weight, make_terms)
