"""A client's part in one round of the protocol; names of the steps as in the paper, figure 4."""

from collections.abc import Collection, Mapping, Sequence

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from flfast.channel.secure.keys import KEY_BYTES, Agreements, KeyPair, add_mask, derived, drawn
from flfast.channel.secure.round_messages import PublicKeys
from flfast.channel.secure.secret_sharing import RANDOM_BYTES, SECRET_BYTES, SHARE_BYTES, split


class Participant:
    """A client in one round. The server sees only what its methods return.

    Args:
        client_id: in [0, 2^32).
        neighbors: clients that it shares masks with.
        points: where a client's shares are evaluated, by client.
        threshold: shares that give a secret.
        agreements: computes what it agrees on with others.
        secret: 32 random bytes of this client and round, of which its keys are derived.

    Attributes:
        public: advertised keys.
    """

    def __init__(
        self,
        client_id: int,
        neighbors: Sequence[int],
        points: Mapping[int, int],
        threshold: int,
        agreements: Agreements,
        *,
        secret: bytes,
    ) -> None:
        self._id, self._neighbors, self._agree = client_id, neighbors, agreements
        self._points, self._threshold, self._secret = points, threshold, secret
        self._mask_secret = derived(secret, "mask key", length=SECRET_BYTES)
        self._mask_key = KeyPair(self._mask_secret)
        self._share_key = KeyPair(derived(secret, "share key", length=SECRET_BYTES))
        self._seed = derived(secret, "self mask", length=SECRET_BYTES)
        self.public = PublicKeys(mask=self._mask_key.public, share=self._share_key.public)
        self._held: dict[int, bytes] = {}
        self._answered: frozenset[int] | None = None

    def share(self, publics: Mapping[int, PublicKeys]) -> dict[int, bytes]:
        """Step ShareKeys: encrypted shares of its secrets, by neighbour; it keeps one itself."""
        holders = [self._id, *self._neighbors]
        points = [self._points[k] for k in holders]
        random = RANDOM_BYTES * (self._threshold - 1)
        of_key, of_seed = (
            split(secret, self._threshold, points, drawn(self._secret, purpose, length=random))
            for purpose, secret in (
                ("shares of mask key", self._mask_secret),
                ("shares of self mask", self._seed),
            )
        )
        plain = [key + seed for key, seed in zip(of_key, of_seed, strict=True)]
        self._held[self._id] = plain[0]
        return {
            k: self._box(publics[k]).encrypt(
                _bytes(self._id), text, _context(k, self.public, publics[k])
            )
            for k, text in zip(self._neighbors, plain[1:], strict=True)
        }

    def receive(self, sender: int, message: bytes, public: PublicKeys) -> None:
        """Keep the shares of a neighbour.

        Raises:
            ValueError: if they, or keys of one of the two, were changed on the way.
        """
        nonce, data = _bytes(sender), _context(self._id, public, self.public)
        try:
            self._held[sender] = self._box(public).decrypt(nonce, message, data)
        except InvalidTag:
            raise ValueError(f"shares or keys of client {sender} are damaged") from None

    def _box(self, other: PublicKeys) -> ChaCha20Poly1305:
        agreed = self._agree(self._share_key, other.share)
        return ChaCha20Poly1305(derived(agreed, "encryption of shares", length=32))

    def add_masks(self, words: Sequence[np.ndarray], publics: Mapping[int, PublicKeys]) -> None:
        """Step MaskedInputCollection: add the self mask and the pairwise masks, in place.

        The words are encoded values, uint32 or uint64 arrays.
        """
        add_mask(words, self_mask_key(self._seed))
        for k in self._neighbors:
            agreed = self._agree(self._mask_key, publics[k].mask)
            # Of a pair, the client with the larger id adds the mask, the other subtracts it.
            add_mask(words, pair_mask_key(agreed), negative=self._id < k)

    def answer(self, arrived: Collection[int]) -> dict[int, bytes]:
        """Step Unmasking: a share of each neighbour and of itself.

        It is a share of the self mask of a client that arrived, and of the key of one that
        dropped out.

        Raises:
            ValueError: if it has answered for other clients: both shares of one client would
                give its upload.
        """
        asked = frozenset(arrived)
        if self._answered not in (None, asked):
            raise ValueError(
                f"client {self._id} answers once a round: its shares of both secrets of a "
                f"client would unmask the upload of that client"
            )
        self._answered = asked
        return {
            k: share[SHARE_BYTES:] if k in asked else share[:SHARE_BYTES]
            for k, share in self._held.items()
        }


def self_mask_key(seed: bytes) -> bytes:
    """Key of a client's own mask."""
    return derived(seed, "self mask", length=KEY_BYTES)


def pair_mask_key(agreed: bytes) -> bytes:
    """Key of the mask of two clients, from what they agreed on."""
    return derived(agreed, "pairwise mask", length=KEY_BYTES)


def _context(receiver: int, sender_keys: PublicKeys, receiver_keys: PublicKeys) -> bytes:
    """What both must agree on. With other keys, the masks of the two would not cancel."""
    return _bytes(receiver) + sender_keys.mask + receiver_keys.mask


def _bytes(client_id: int) -> bytes:
    """12 bytes, as a nonce. A pair's key encrypts one message of each of them."""
    return client_id.to_bytes(12, "little")
