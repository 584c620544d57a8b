"""Any image model of timm, by name: https://github.com/huggingface/pytorch-image-models."""

import difflib
from typing import Any

from torch import nn

from flfast.models.images import check_image
from flfast.state.extras import import_extra
from flfast.state.weights import read_state_dict


def timm_model(
    *,
    input_shape: tuple[int, ...],
    num_classes: int,
    name: str,
    pretrained_path: str | None,
    download: bool,
    options: dict[str, Any],
) -> nn.Module:
    """Network from images [B, channels, H, W] to logits [B, C].

    timm adapts pretrained weights to the number of channels, and makes the last layer anew if the
    number of classes is not that of the published weights.

    Raises:
        ValueError: if timm is missing, has no such model, or weights are given twice.
    """
    channels, _, _ = check_image(input_shape, model="model=timm")
    timm = import_extra("timm", extra="timm", by="model=timm")
    if not timm.is_model(name):
        close = difflib.get_close_matches(name, timm.list_models(), n=3)
        hint = f"did you mean {', '.join(close)}?" if close else "see timm.list_models()"
        raise ValueError(f"model.name={name}: timm has no such model; {hint}")
    if download and pretrained_path is not None:
        raise ValueError(
            f"model.download=true with model.pretrained_path={pretrained_path}: set one of them"
        )
    own = {}
    if pretrained_path is not None:
        # Read here, because some versions of timm run code from files of `torch.save`.
        own = {"state_dict": read_state_dict(pretrained_path, key="model.pretrained_path")}
    model: Any = timm.create_model(
        name,
        pretrained=download or bool(own),
        pretrained_cfg_overlay=own,
        num_classes=num_classes,
        in_chans=channels,
        **options,
    )
    if own:
        model.pretrained_cfg.pop("state_dict")  # would be copied with every copy of the model
    made: nn.Module = model
    return made
