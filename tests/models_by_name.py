"""Every model of conf/model but U-Net, small, with inputs that it reads."""

from pathlib import Path

import torch
from hydra.utils import instantiate
from omegaconf import OmegaConf

from flfast.state.injection import call_with
from flfast.state.randomness import seed_torch

FOLDER = Path(__file__).parents[1] / "conf" / "model"
FAMILIES = sorted(path.stem for path in FOLDER.glob("family*.yaml"))
NAMES = sorted(
    {path.stem for path in FOLDER.glob("*.yaml")} - {"custom", "lightning", "unet", *FAMILIES}
)
TOKENS = ("lstm", "transformer", "transformers")
NUM_TOKENS = 11
SHAPES = {"cnn1d": (2, 40), "tabular_mlp": (5,), "vgg11": (1, 32, 32), "timm": (3, 32, 32)}
SHAPES |= dict.fromkeys(TOKENS, (6,))
SHAPES["forecaster"] = (2, 48)
IMAGE = (1, 20, 20)
REQUIRED = {
    "timm": {"name": "test_efficientnet"},
    "transformers": {
        "name": "gpt2",
        "options": {
            "n_embd": 8,
            "n_head": 2,
            "n_layer": 1,
            "attn_pdrop": 0,
            "embd_pdrop": 0,
            "resid_pdrop": 0,
        },
    },
}
"""Options that have no default."""

SMALL = {
    "cnn": {"channels": [3, 4], "hidden": 8},
    "cnn1d": {"channels": [3, 4], "kernel_size": 3, "hidden": [8]},
    "digits_cnn": {"channels": [2, 3, 2], "hidden": [5, 4]},
    "heterofl_cnn": {"channels": [3, 4]},
    "lstm": {"hidden": 5},
    "mlp": {"hidden": [9, 7]},
    "multi_exit_cnn": {"channels": [3, 4]},
    "tabular_mlp": {"embedding": 3, "hidden": [7]},
    "transformer": {"width": 8, "layers": 1, "heads": 2},
    "vgg11": {"hidden": [8]},
    **REQUIRED,
}
"""Options of every model that is not small by itself."""


def make_model(
    name, *, shape=None, num_classes=3, task=None, seed=1, options=None, num_tokens=NUM_TOKENS
):
    """A model in training mode.

    Args:
        name: of the YAML.
        shape: of an input; by default that of `SHAPES`.
        num_classes: C; for a language task the vocabulary.
        task: by default `language` for models of tokens, otherwise `classification`.
        seed: of the weights.
        options: by default those of `SMALL`.
        num_tokens: size of the vocabulary.
    """
    task = task or ("language" if name in TOKENS else "classification")
    config = OmegaConf.load(FOLDER / f"{name}.yaml")
    config.pop("defaults", None)  # of other groups
    made = instantiate(
        config,
        **(SMALL.get(name, {}) if options is None else options),
    )
    seed_torch(seed, "initial weights")
    model = call_with(
        made,
        input_shape=shape or SHAPES.get(name, IMAGE),
        num_classes=num_tokens if task == "language" else num_classes,
        num_tokens=num_tokens,
        task=task,
        categories=(3, 2) if name == "tabular_mlp" else (),
        horizon=num_classes if name == "forecaster" else 0,
    )
    if name == "forecaster":  # which begins with a last layer of zeros
        torch.nn.init.normal_(model.fc.weight)
    return model


def make_inputs(name, num, *, shape=None, seed=2):
    """Random inputs [num, ...] for a model."""
    rng = torch.Generator().manual_seed(seed)
    shape = (num, *(shape or SHAPES.get(name, IMAGE)))
    if name in TOKENS:
        return torch.randint(NUM_TOKENS, shape, generator=rng)
    inputs = torch.rand(shape, generator=rng)
    if name == "tabular_mlp":
        inputs[:, -2:] = torch.randint(2, (num, 2), generator=rng).float()
    return inputs
