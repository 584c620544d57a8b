"""How far predictions are from those of a teacher."""

from torch import Tensor
from torch.nn import functional as F


def divergence(logits: Tensor, teacher: Tensor) -> Tensor:
    """KL divergence [B] from the teacher's predictions, by logits [B, C]; no gradient for it."""
    own, given = logits.log_softmax(1), teacher.detach().log_softmax(1)
    return F.kl_div(own, given, reduction="none", log_target=True).sum(1)
