"""The character LSTM of FedAvg: an embedding and two LSTM layers.

McMahan, Moore, Ramage, Hampson, Aguera y Arcas, "Communication-Efficient Learning of Deep Networks
from Decentralized Data", AISTATS 2017, section 3. With the 90 characters of Reddi et al.,
"Adaptive Federated Optimization", ICLR 2021, it has their 820,522 parameters, and 2,048 more
because torch gives each layer two bias vectors.
"""

from torch import Tensor, nn

from flfast.models.token_inputs import check_tokens, token_logits
from flfast.state.options import Count
from flfast.tasks.factored_logits import FactoredLogits
from flfast.tasks.names import TaskName


class TokenLSTM(nn.Module):
    """Tokens, int64 [B, T] -> logits [B, T, C]; [B, C] for tasks other than `language`."""

    def __init__(  # noqa: PLR0913 - one parameter an option
        self,
        *,
        input_shape: tuple[int, ...],
        num_classes: int,
        num_tokens: int,
        task: TaskName,
        embedding: Count,
        hidden: Count,
        layers: Count,
    ) -> None:
        super().__init__()
        check_tokens(input_shape, num_tokens, model="model=lstm")
        self._task = task
        self.embedding = nn.Embedding(num_tokens, embedding)
        self.lstm = nn.LSTM(embedding, hidden, num_layers=layers, batch_first=True)
        self.fc = nn.Linear(hidden, num_classes)

    def forward(self, tokens: Tensor, *, factored: bool = False) -> Tensor | FactoredLogits:
        """Logits; with `factored` as features and the last layer's weights."""
        features, _ = self.lstm(self.embedding(tokens))
        return token_logits(features, self.fc, self._task, tokens, factored=factored)
