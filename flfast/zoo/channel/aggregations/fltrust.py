"""FLTrust: clients are trusted as far as their changes agree with the server's own.

Cao, Fang, Liu, Gong: FLTrust: Byzantine-robust Federated Learning via Trust Bootstrapping. NDSS
2021, Algorithm 2. https://arxiv.org/abs/2012.13995

    TS_k = max(cos(g_k, g_0), 0)
    result = sum_k TS_k * |g_0| / |g_k| * g_k / sum_k TS_k

g_k are the changes of clients. g_0 is the change that the same local training gives on the
server's own examples (`split.server_examples`). All uploads weigh the same otherwise.
"""

from torch import Tensor

from flfast.channel.aggregations.aggregation import Aggregation, Combined, Known, Trusting
from flfast.state.row_statistics import distances, row_products, weighted_sum


def fltrust() -> Trusting:
    """The mean of changes, scaled to the server's and weighted by their cosine with it."""

    def combine(rows: Tensor, weights: Tensor, known: Known) -> Combined:
        own = known.trusted.double()
        lengths = distances(rows, own.new_zeros(own.shape))
        length = own.norm()
        # A change of zero has no direction: its trust is 0.
        trust = (row_products(rows, own) / (lengths * length)).nan_to_num(nan=0.0).clamp(0, 1)
        used = trust > 0
        share = trust[used] / trust.sum()
        vector = weighted_sum(rows[used], share * length / lengths[used])
        return Combined(vector.to(rows.dtype), used)

    return Aggregation("fltrust", combine, trusted=True, on_device=True)
