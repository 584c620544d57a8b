"""Any text model of Hugging Face's transformers: https://github.com/huggingface/transformers."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from flfast.models.token_inputs import check_tokens
from flfast.state.extras import import_extra
from flfast.tasks.factored_logits import FactoredLogits, factored_logits
from flfast.tasks.names import TaskName


class TextModel(nn.Module):
    """Tokens, int64 [B, T] -> logits [B, T, C] of a causal language model, or [B, C].

    Args:
        model: a model of the library transformers.
        task: `language` for a causal language model, otherwise of sequence classification.
        padding: token that sequence classification does not read.
    """

    def __init__(self, model: nn.Module, *, task: TaskName, padding: int) -> None:
        super().__init__()
        self.model: Any = model
        self._task, self._padding = task, padding
        self._last = _plain_last_layer(self.model.eval()) if task == "language" else None
        self.train()

    def forward(self, tokens: Tensor, *, factored: bool = False) -> Tensor | FactoredLogits:
        """Logits; with `factored` as features and the last layer's weights where they are that."""
        if factored and self._last is not None:
            last = self.model.get_submodule(self._last)
            features = self.model.base_model(input_ids=tokens).last_hidden_state
            return factored_logits(features, last)
        mask = None if self._task == "language" else (tokens != self._padding).long()
        logits: Tensor = self.model(input_ids=tokens, attention_mask=mask).logits
        return logits


def transformers_model(  # noqa: PLR0913 - one parameter an option
    *,
    input_shape: tuple[int, ...],
    num_classes: int,
    num_tokens: int,
    task: TaskName,
    name: str | None,
    pretrained_path: str | None,
    download: bool,
    options: dict[str, Any],
) -> nn.Module:
    """A causal language model for the task `language`, otherwise a model with one output per text.

    Raises:
        ValueError: if transformers is missing, has no such model, or the model does not fit the
            data.
    """
    length = check_tokens(input_shape, num_tokens, model="model=transformers")
    if (name is None) == (pretrained_path is None):
        raise ValueError(
            f"model.name={name} with model.pretrained_path={pretrained_path}: set one of them"
        )
    library = import_extra("transformers", extra="transformers", by="model=transformers")
    made_for = library.AutoModelForCausalLM
    if task != "language":
        made_for = library.AutoModelForSequenceClassification
        options = {"num_labels": num_classes, **options}
    if pretrained_path is not None and not Path(pretrained_path).is_dir():
        raise ValueError(f"model.pretrained_path={pretrained_path}: there is no such folder")
    if download or pretrained_path is not None:
        model = _loaded(made_for, name or str(pretrained_path), options, download=download)
    else:
        model = made_for.from_config(_config(str(name), {"vocab_size": num_tokens, **options}))
    model.config.use_cache = False
    padding = model.config.pad_token_id or 0
    # Language models that know a padding token search their inputs for it, only to warn.
    model.config.pad_token_id = None if task == "language" else padding
    _check(model.config, length=length, num_tokens=num_tokens)
    if task == "language" and model.config.vocab_size != num_classes:
        raise ValueError(
            f"model=transformers has a vocabulary of {model.config.vocab_size} tokens, the data "
            f"have {num_classes}; use the tokenizer of the model for the data"
        )
    return TextModel(model, task=task, padding=padding)


def _loaded(made_for: Any, source: str, options: dict[str, Any], *, download: bool) -> Any:
    from transformers.utils import logging

    logging.disable_progress_bar()
    try:
        model = made_for.from_pretrained(source, local_files_only=not download, **options)
    except (OSError, ValueError) as error:
        key = "name" if download else "pretrained_path"
        raise ValueError(f"model.{key}={source}: {error}") from None
    finally:
        logging.enable_progress_bar()
    return model.float()


def _config(name: str, changes: dict[str, Any]) -> Any:
    from transformers import CONFIG_MAPPING, AutoConfig

    if name not in CONFIG_MAPPING:
        raise ValueError(
            f"model.name={name}: transformers has no such type of model; allowed: gpt2, bert, "
            "... (see transformers.CONFIG_MAPPING), or model.download=true"
        )
    # The special tokens of a type's own vocabulary may lie outside of the data's.
    special = {f"{kind}_token_id": None for kind in ("bos", "eos", "pad")}
    return AutoConfig.for_model(name, **{**special, **changes})


def _check(config: Any, *, length: int, num_tokens: int) -> None:
    longest = getattr(config, "max_position_embeddings", None)
    if longest is not None and length > longest:
        raise ValueError(f"model=transformers reads {longest} tokens, the data have {length}")
    if config.vocab_size < num_tokens:
        raise ValueError(
            f"model=transformers has a vocabulary of {config.vocab_size} tokens, the data have "
            f"{num_tokens}; use the tokenizer of the model for the data"
        )


@torch.no_grad()
def _plain_last_layer(model: Any) -> str | None:
    """Path of the last layer if the logits are its outputs; some models change them.

    The model is in evaluation mode.

    Raises:
        ValueError: if a position's logits depend on later tokens.
    """
    tokens, other = torch.tensor([[0, 0], [0, 1]])[:, None]
    logits = model(input_ids=tokens).logits
    if not torch.equal(logits[:, 0], model(input_ids=other).logits[:, 0]):
        raise ValueError(
            f"model={model.config.model_type} reads the tokens that it shall predict; try "
            "+model.options.is_decoder=true"
        )
    last = model.get_output_embeddings()
    path = next((path for path, module in model.named_modules() if module is last), None)
    if path is None or not isinstance(last, nn.Linear):
        return None
    # In place of its outputs, because a cap on logits leaves small ones almost as they are.
    large = 1e4 * torch.arange(logits.numel(), dtype=logits.dtype).view_as(logits)
    read: list[Tensor] = []

    def replace(_: nn.Module, inputs: tuple[Tensor, ...], __: Tensor) -> Tensor:
        read.append(inputs[0])
        return large

    hook = last.register_forward_hook(replace)
    unchanged = torch.equal(model(input_ids=tokens).logits, large)
    hook.remove()
    features = model.base_model(input_ids=tokens).last_hidden_state
    return path if unchanged and torch.equal(read[0], features) else None
