"""Label flipping: attackers train honestly on wrong labels.

Tolpegin, Truex, Gursoy, Liu: Data Poisoning Attacks Against Federated Learning Systems. ESORICS
2020, section 3. https://arxiv.org/abs/2007.08432
"""

from flfast.channel.attacks.attack import Attack, ClassPoison
from flfast.state.options import UpToOne


def label_flip(*, fraction: UpToOne) -> ClassPoison:
    """Train on label C - 1 - y instead of y; validation and test labels stay as they are."""
    return Attack(fraction, labels=lambda labels, num_classes: num_classes - 1 - labels)
