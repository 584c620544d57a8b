"""Krum: the single upload that is closest to its neighbours.

Blanchard, El Mhamdi, Guerraoui, Stainer: Machine Learning with Adversaries: Byzantine Tolerant
Gradient Descent. NeurIPS 2017, section 3. https://arxiv.org/abs/1703.02757
"""

from dataclasses import replace

from flfast.channel.aggregations.aggregation import Robust
from flfast.channel.aggregations.multi_krum import multi_krum
from flfast.state.options import NonNegativeInt


def krum(*, num_byzantine: NonNegativeInt) -> Robust:
    """Multi-Krum that selects one upload."""
    one = multi_krum(num_byzantine=num_byzantine, num_selected=1)
    reason = f"aggregation.num_byzantine={num_byzantine} needs {one.min_uploads}"
    return replace(one, name="krum", reason=reason)
