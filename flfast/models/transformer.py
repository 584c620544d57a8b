"""A small decoder-only transformer with tied embeddings.

The layout is GPT-2's (Radford, Wu, Child, Luan, Amodei, Sutskever, "Language Models are
Unsupervised Multitask Learners", 2019): layer normalisation before each sublayer, learned
positions, GELU, and its initial weights. The output layer is the embedding (Press and Wolf, "Using
the Output Embedding to Improve Language Models", EACL 2017). With GPT-2's sizes and vocabulary it
has the 124,439,808 parameters of its smallest release.
"""

import math

from torch import Tensor, nn
from torch.nn import functional as F

from flfast.models.token_inputs import check_tokens, token_logits
from flfast.state.options import BelowOne, Count
from flfast.tasks.factored_logits import FactoredLogits
from flfast.tasks.names import TaskName

_SPREAD = 0.02  # standard deviation of initial weights


class DecoderBlock(nn.Module):
    """Causal self-attention and two linear layers, each added to its input [B, T, D]."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.attention = nn.Linear(width, 3 * width)
        self.merge = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.expand = nn.Linear(width, 4 * width)
        self.shrink = nn.Linear(4 * width, width)
        # Dropout(0) would draw random numbers for every batch all the same.
        self.dropout = nn.Dropout(dropout) if dropout else nn.Identity()

    def forward(self, inputs: Tensor) -> Tensor:
        """[B, T, D] -> [B, T, D]; a position reads those up to itself."""
        parts = self.attention(self.norm1(inputs)).unflatten(-1, (3, self.heads, -1))
        query, key, value = (part.transpose(1, 2) for part in parts.unbind(2))  # [B, heads, T, d]
        read = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        hidden = inputs + self.dropout(self.merge(read.transpose(1, 2).flatten(2)))
        expanded = F.gelu(self.expand(self.norm2(hidden)))
        added: Tensor = self.dropout(self.shrink(expanded))
        return hidden + added


class DecoderTransformer(nn.Module):
    """Tokens, int64 [B, T] -> logits [B, T, C]; [B, C] for tasks other than `language`.

    Inputs shorter than T are read, too. For `language` the vocabulary of the inputs must have C
    tokens, and the last layer is the embedding.
    """

    def __init__(  # noqa: PLR0913 - one parameter an option
        self,
        *,
        input_shape: tuple[int, ...],
        num_classes: int,
        num_tokens: int,
        task: TaskName,
        width: Count,
        layers: Count,
        heads: Count,
        dropout: BelowOne,
    ) -> None:
        super().__init__()
        length = check_tokens(input_shape, num_tokens, model="model=transformer")
        if width % heads:
            raise ValueError(f"model.width={width} must be a multiple of model.heads={heads}")
        self._task = task
        self.embedding = nn.Embedding(num_tokens, width)
        self.position = nn.Embedding(length, width)
        self.dropout = nn.Dropout(dropout) if dropout else nn.Identity()
        self.blocks = nn.Sequential(*(DecoderBlock(width, heads, dropout) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.fc = nn.Linear(width, num_classes, bias=False)
        if task == "language":
            self.fc.weight = self.embedding.weight
        self._initialise(layers)

    def _initialise(self, layers: int) -> None:
        for name, p in self.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(p)
            elif p.dim() > 1:
                adds = name.endswith(("merge.weight", "shrink.weight"))
                nn.init.normal_(p, std=_SPREAD / math.sqrt(2 * layers) if adds else _SPREAD)

    def forward(self, tokens: Tensor, *, factored: bool = False) -> Tensor | FactoredLogits:
        """Logits; with `factored` as features and the last layer's weights."""
        embedded = self.embedding(tokens) + self.position.weight[: tokens.shape[1]]
        features = self.norm(self.blocks(self.dropout(embedded)))
        return token_logits(features, self.fc, self._task, tokens, factored=factored)
