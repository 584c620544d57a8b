"""Keys: private ones from the seed, agreement of two clients, and what is derived from it.

RFC 7748 (X25519), RFC 5869 (HKDF), RFC 8439 (ChaCha20-Poly1305).
"""

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES128
from cryptography.hazmat.primitives.ciphers.modes import CTR
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF


def derived(secret: bytes, purpose: str, *path: int, length: int) -> bytes:
    """`length` bytes for one purpose and path, from HKDF-SHA256.

    Different purposes and paths give independent bytes.

    Args:
        secret: what is to be known to derive them.
        purpose: what they are used for.
        path: round, client, ...; integers in [0, 2^63).
        length: at most 8160.
    """
    info = b"flfast secure\0" + purpose.encode() + b"\0"
    info += b"".join(number.to_bytes(8, "little") for number in path)
    return HKDF(SHA256(), length, salt=None, info=info).derive(secret)


def drawn(secret: bytes, purpose: str, *path: int, length: int) -> bytes:
    """Any number of bytes for one purpose and path; see `derived`."""
    key = derived(secret, purpose, *path, length=16)
    return Cipher(AES128(key), CTR(bytes(16))).encryptor().update(bytes(length))


class KeyPair:
    """A private key and its public one.

    Args:
        secret: 32 random bytes.

    Attributes:
        public: 32 bytes.
    """

    def __init__(self, secret: bytes) -> None:
        self._private = X25519PrivateKey.from_private_bytes(secret)
        self.public = self._private.public_key().public_bytes_raw()

    def exchange(self, other: bytes) -> bytes:
        """The shared secret, 32 bytes, with the owner of another public key."""
        return self._private.exchange(X25519PublicKey.from_public_bytes(other))


class Agreements:
    """What clients agree on.

    Both clients of a pair compute the same, so a simulation computes it once.

    Attributes:
        num: of agreements that were computed.
    """

    def __init__(self) -> None:
        self.num = 0
        self._agreed: dict[frozenset[bytes], bytes] = {}

    def __call__(self, own: KeyPair, other: bytes) -> bytes:
        """The shared secret of a client's keys and another's public key."""
        pair = frozenset((own.public, other))
        if pair not in self._agreed:
            self.num += 1
            self._agreed[pair] = own.exchange(other)
        return self._agreed[pair]
