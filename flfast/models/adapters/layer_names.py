"""Names of leaves that adapters have, and the layers that they belong to. Torch-free."""

import re

_OF_PEFT = re.compile(r"\.(base_layer|lora_[AB]|ia3_l)(\..*)?$")


def layer_of(name: str) -> str:
    """Path of the layer that a parameter or buffer belongs to, in the model without an adapter.

    >>> layer_of("block.fc.weight"), layer_of("block.fc.lora_A.default.weight")
    ('block.fc', 'block.fc')
    """
    found = _OF_PEFT.search(name)
    return name[: found.start()] if found else name.rpartition(".")[0]
