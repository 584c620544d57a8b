"""Choice of devices: exactly the requested ones, or an error that lists what exists."""

import torch

from flfast.state.machine import cpu_name, num_cores
from flfast.state.version import __version__

Devices = int | str | list[int]


def choose_devices(accelerator: str, devices: Devices) -> list[int] | int:
    """Resolve `trainer.devices` on this machine to GPU indices or a number of CPU ranks.

    Raises:
        ValueError: if a device does not exist.
    """
    gpus = [] if accelerator == "cpu" else list(range(torch.cuda.device_count()))
    if isinstance(devices, list):
        missing = [index for index in devices if index not in gpus]
        if missing:
            present = f"GPUs {gpus}" if gpus else "no GPU, only the CPU"
            raise ValueError(
                f"trainer.devices={devices}: there is no {missing}; there is {present}"
            )
        return devices
    if devices in ("auto", -1):
        on_cpu = accelerator == "cpu" or (
            accelerator == "auto" and not torch.backends.mps.is_available()
        )
        return gpus or (num_cores() if on_cpu else 1)
    assert isinstance(devices, int)
    if not gpus:
        return devices
    if devices > len(gpus):
        raise ValueError(f"trainer.devices={devices}: there are GPUs {gpus}")
    return gpus[:devices]


def num_devices(chosen: list[int] | int) -> int:
    """Number of chosen devices."""
    return chosen if isinstance(chosen, int) else len(chosen)


def single_device(chosen: list[int] | int, local_rank: int) -> list[int] | int:
    """`devices` of the Lightning Trainer of a rank that has a single device."""
    return 1 if isinstance(chosen, int) else [chosen[local_rank % len(chosen)]]


def hardware() -> str:
    """One line with the hardware and versions that speed, memory and rounding depend on."""
    gpus = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
    parts = [cpu_name(), *(f"{gpu.name} {gpu.total_memory / 2**30:.0f} GiB" for gpu in gpus)]
    return ", ".join([*parts, f"torch {torch.__version__}", f"flfast {__version__}"])
