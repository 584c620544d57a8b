"""Device choice: exact, or an error that lists what there is."""

import logging

import torch

log = logging.getLogger(__name__)


def single_device(accelerator: str, devices: int | str | list[int]) -> int | list[int]:
    """What Lightning should get for a run on one device.

    Args:
        accelerator: `trainer.accelerator`.
        devices: `trainer.devices`: a count, -1, `auto`, or a list of indices.

    Raises:
        ValueError: if a device is not there.
    """
    gpus = [] if accelerator == "cpu" else list(range(torch.cuda.device_count()))
    if isinstance(devices, list):
        missing = [index for index in devices if index not in gpus]
        if missing:
            there = f"GPUs {gpus}" if gpus else "no GPU, only the CPU"
            raise ValueError(f"trainer.devices={devices}: there is no {missing}; there is {there}")
    elif isinstance(devices, int) and gpus and devices > len(gpus):
        raise ValueError(f"trainer.devices={devices}: there are GPUs {gpus}")
    asked = devices if isinstance(devices, int) else len(devices)
    if isinstance(devices, list):
        chosen: int | list[int] = devices[:1]
    else:
        chosen = 1
    if devices not in ("auto", -1) and asked > 1:
        log.warning("strategy=single uses one of the %d devices asked for", asked)
    return chosen
