"""FedAsync: the server mixes every upload with its model as soon as it arrives.

Xie, Koyejo, Gupta: Asynchronous Federated Optimization. OPT 2020, Algorithm 1.
https://arxiv.org/abs/1903.03934

    w[t+1] = (1 - a) w[t] + a w_k,   a = mixing * s(t_k)

t_k is the staleness of client k's upload, s a discount. The paper's clients train with a proximal
term, which is `algorithm=fedprox`.
"""

from typing import Annotated

from flfast.federation.paces.buffered import ONE_BY_ONE, Buffered
from flfast.federation.paces.discounts import DiscountName, discount_of
from flfast.federation.paces.pace import Setting
from flfast.state.options import NonNegative, PositiveUpToOne


def asynchronous(
    *,
    mixing: PositiveUpToOne,
    discount: DiscountName,
    strength: NonNegative | None,
    patience: NonNegative | None,
    setting: Setting,
) -> Annotated[Buffered, ONE_BY_ONE]:
    """FedAsync."""
    function = discount_of(discount, strength, patience)
    return Buffered(1, function, scale=mixing, mixes=True, setting=setting)
