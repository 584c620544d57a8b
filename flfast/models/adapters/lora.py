"""LoRA: beside each weight W of chosen layers, a product B A of low rank is trained.

Hu, Shen, Wallis, Allen-Zhu, Li, Wang, Wang, Chen: LoRA: Low-Rank Adaptation of Large Language
Models. ICLR 2022. https://arxiv.org/abs/2106.09685

    h = W x + (alpha / rank) B A x

A is random and B zero at first, so that the first model is the base. FedAvg of the factors is not
FedAvg of the products: mean(B_k) mean(A_k) is not mean(B_k A_k).

`freeze_a` is FFA-LoRA: A keeps its random values, which all clients have from the seed. Only B is
trained and sent, and mean(B_k) A is mean(B_k A).

Sun, Li, Li, Ding: Improving LoRA in Privacy-preserving Federated Learning. ICLR 2024.
https://arxiv.org/abs/2403.12313
"""

from typing import Literal

from torch import nn

from flfast.models.adapters.adapted import Adapted
from flfast.models.adapters.injected import adapt_with, known_layers, target_layers
from flfast.state.extras import import_extra
from flfast.state.options import BelowOne, Positive, Rank


def lora(  # noqa: PLR0913 - one parameter an option
    model: nn.Module,
    *,
    rank: Rank | list[Rank],
    alpha: Positive,
    dropout: BelowOne,
    target_modules: list[str] | None,
    train_bias: bool,
    freeze_a: bool,
    base_bits: Literal[8] | None,
    member: int = 0,
    num_members: int = 1,
) -> Adapted:
    """Add low-rank factors to linear and convolutional layers, by the library peft.

    The model is changed in place. It is one of the members of a family; with a rank for each of
    them, alpha is that of the first one, and alpha / rank is the same for all.

    Raises:
        ValueError: if peft is missing, the model has no such layers, or ranks and members differ
            in number.
    """
    ranks = [rank] * num_members if isinstance(rank, int) else [*rank]
    if len(ranks) != num_members:
        raise ValueError(
            f"adapter.rank={ranks}: allowed: a number, or one for each member of model=family, "
            f"here {num_members}"
        )
    if base_bits is not None and train_bias:
        raise ValueError(
            f"adapter.base_bits={base_bits} with adapter.train_bias=true: biases are of the base; "
            f"allowed: adapter.base_bits=null, or adapter.train_bias=false"
        )
    peft = import_extra("peft", extra="lora", by="adapter=lora")
    known = known_layers(model, peft.utils.TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING)
    _, layers = target_layers(model, "target_modules", target_modules or known)
    settings = peft.LoraConfig(
        r=ranks[member],
        lora_alpha=alpha * (ranks[member] / ranks[0]),
        lora_dropout=dropout,
        target_modules=layers,
        bias="lora_only" if train_bias else "none",
    )
    fixed = "lora_A" if freeze_a else None
    return adapt_with("lora", model, settings, fixed=fixed, rounds=base_bits is not None)
