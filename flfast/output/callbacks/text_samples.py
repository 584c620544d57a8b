"""Writes `samples.txt` at the end of a run of the task `language`."""

import logging
from collections.abc import Callable, Sequence
from itertools import islice

import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities import rank_zero_only
from torch import Tensor

from flfast.datamodules.examples import Examples
from flfast.federation.loop import Federation
from flfast.lit.task import evaluation_mode
from flfast.output.callbacks.run_picture import or_warn
from flfast.state.options import Count, Positive
from flfast.state.randomness import torch_generator
from flfast.state.weights import called_with

log = logging.getLogger(__name__)

_MOST_NAMED = 5


class TextSamples(Callback):
    """Samples text from the server's model, as a function of the weights and the seed.

    Nothing is written for other tasks, for data without a vocabulary, or if the server has no
    complete model.
    """

    file_name = "samples.txt"

    def __init__(
        self, *, prompt: str | None, num_samples: Count, num_tokens: Count, temperature: Positive
    ) -> None:
        super().__init__()
        self._prompt, self._temperature = prompt, temperature
        self._num_samples, self._num_tokens = num_samples, num_tokens

    def check(self, examples: Examples) -> None:
        """Check the prompt before the run.

        Raises:
            ValueError: if the prompt has text that is no token, or is empty.
        """
        vocabulary = _vocabulary(examples)
        if self._prompt is not None and vocabulary is not None:
            encode(self._prompt, vocabulary)

    @rank_zero_only
    @or_warn
    def on_run_end(self, federation: Federation) -> None:
        """Write the file."""
        vocabulary = _vocabulary(federation.data.examples)
        if vocabulary is None or not federation.algorithm.evaluate_server:
            return
        prompts = self._prompts(federation, vocabulary)
        tokens = sample_tokens(
            server_logits(federation),
            prompts,
            num_tokens=self._num_tokens,
            window=federation.data.examples.input_shape[0],
            temperature=self._temperature,
            rng=torch_generator(federation.seed, "samples of text"),
        )
        lines = [
            f"Text from the server's model after round {federation.history[-1]['round']}, "
            f"temperature {self._temperature:g}. Each prompt ends at the mark |."
        ]
        for number, (prompt, row) in enumerate(zip(prompts, tokens.tolist(), strict=True), 1):
            texts = [vocabulary[token] for token in row]
            start, rest = "".join(texts[: len(prompt)]), "".join(texts[len(prompt) :])
            lines += ["", f"--- {number} ---", f"{start}|{rest}"]
        path = federation.run_dir / self.file_name
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")

    def _prompts(self, federation: Federation, vocabulary: Sequence[str]) -> Tensor:
        """Prompts of equal length, int64 [num_samples, P]."""
        if self._prompt is not None:
            return torch.tensor([encode(self._prompt, vocabulary)] * self._num_samples)
        data = federation.data
        central = data.central_test if len(data.central_test) else data.splits["train"].indices
        chosen = central[torch.linspace(0, len(central) - 1, self._num_samples).long().numpy()]
        half = max(data.examples.input_shape[0] // 2, 1)
        return torch.stack([data.examples.inputs[int(index)][:half] for index in chosen])


def _vocabulary(examples: Examples) -> tuple[str, ...] | None:
    """Text of every token that a model predicts; None if it predicts no tokens."""
    return examples.vocabulary if examples.task == "language" else None


def server_logits(federation: Federation) -> Callable[[Tensor], Tensor]:
    """The server's model: inputs [B, ...] on the CPU -> logits, float32 on the CPU."""
    model = federation.engine.site.model
    own, like = model.state_dict(), next(model.parameters())
    # Of the model's type, which is that of a frozen base, too.
    weights = {name: value.to(own[name]) for name, value in federation.weights().items()}

    def logits(inputs: Tensor) -> Tensor:
        inputs = inputs.to(like if inputs.is_floating_point() else like.device)
        with evaluation_mode(model):
            found: Tensor = called_with(model, weights, inputs)
        return found.float().cpu()

    return logits


@torch.no_grad()
def sample_tokens(
    logits: Callable[[Tensor], Tensor],
    prompts: Tensor,
    *,
    num_tokens: int,
    window: int,
    temperature: float,
    rng: torch.Generator,
) -> Tensor:
    """Prompts and their continuations, int64 [B, P + num_tokens].

    The model always reads `window` tokens, as in training. Shorter texts are padded at their end,
    which a model that predicts from earlier tokens cannot see.

    Args:
        logits: tokens [B, window] -> logits [B, window, C].
        prompts: int64 [B, P], P >= 1.
        num_tokens: tokens to sample.
        window: tokens that the model reads.
        temperature: > 0.
        rng: the only source of randomness.
    """
    texts = prompts
    for _ in range(num_tokens):
        seen = texts[:, -window:]
        inputs = torch.nn.functional.pad(seen, (0, window - seen.shape[1]))
        scores = logits(inputs)[:, seen.shape[1] - 1].double() / temperature
        chances = torch.softmax(scores.nan_to_num(), dim=-1)  # of a diverged model, too
        texts = torch.cat([texts, torch.multinomial(chances, 1, generator=rng)], dim=1)
    return texts


def encode(prompt: str, vocabulary: Sequence[str]) -> list[int]:
    """Tokens of a text: at every place the longest text of `vocabulary` that fits.

    Raises:
        ValueError: if the text is empty, or no token fits somewhere.
    """
    ids = {text: number for number, text in enumerate(vocabulary) if text}
    longest = max(map(len, ids), default=0)
    tokens, place = [], 0
    while place < len(prompt):
        fitting = (prompt[place : place + size] for size in range(longest, 0, -1))
        text = next((piece for piece in fitting if piece in ids), None)
        if text is None:
            raise ValueError(
                f"callbacks.text_samples.prompt={prompt!r}: no token of the vocabulary begins "
                f"{prompt[place : place + 10]!r}; allowed: texts of the data's tokens, such as "
                f"{', '.join(map(repr, islice(ids, _MOST_NAMED)))}"
            )
        tokens.append(ids[text])
        place += len(text)
    if not tokens:
        raise ValueError("callbacks.text_samples.prompt is empty; allowed: text, or null")
    return tokens
