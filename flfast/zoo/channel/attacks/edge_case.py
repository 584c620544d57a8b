"""Edge-case backdoor: a rare kind of images of one class becomes another class.

Wang, Sreenivasan, Rajput, Vishwakarma, Agarwal, Sohn, Lee, Papailiopoulos: Attack of the Tails:
Yes, You Really Can Backdoor Federated Learning. NeurIPS 2020, section 3.
https://arxiv.org/abs/2007.05084

The paper's edge cases come from other datasets, such as sevens of another handwriting that become
ones. Here they are the attackers' own images of the source class, turned by 180 degrees: honest
clients have none of them, so that nobody unlearns the backdoor. With `shift=rotation` they may
have some.
"""

from torch import Tensor

from flfast.channel.attacks.attack import Attack, ClassPoison, boosted
from flfast.datamodules.backdoor import Backdoor
from flfast.state.options import NonNegativeInt, Positive, PositiveUpToOne, UpToOne


def edge_case(
    *,
    fraction: UpToOne,
    source: NonNegativeInt,
    target: NonNegativeInt,
    share: PositiveUpToOne,
    scale: Positive,
) -> ClassPoison:
    """Images of the source class that are upside down shall be put into the target class."""
    backdoor = Backdoor(trigger=_turned, target=target, share=share, source=source)
    return Attack(fraction, upload=boosted(scale), backdoor=backdoor)


def _turned(images: Tensor) -> Tensor:
    return images.flip(-1, -2)
