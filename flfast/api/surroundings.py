"""Checks that torch is as at its start: modes and defaults of a program would change a run."""

import torch

from flfast.config.errors import ConfigError


def check_surroundings() -> None:
    """Refuse to run in a mode of torch, or with defaults, that would change the numbers.

    Gradients that are off are no matter: training turns them on.

    Raises:
        ConfigError: naming the mode or the default, and what is allowed.
    """
    device, dtype = torch.get_default_device(), torch.get_default_dtype()
    wrong = {
        "inside torch.inference_mode(): nothing can be trained; allowed: outside of it": (
            torch.is_inference_mode_enabled()
        ),
        "inside torch.autocast(): allowed: outside of it, with trainer.precision=bf16-mixed": any(
            map(torch.is_autocast_enabled, ("cpu", "cuda"))
        ),
        f"torch's default device is {device}; allowed: cpu; trainer.accelerator=gpu trains on "
        f"GPUs": device.type != "cpu",
        f"torch's default dtype is {dtype}; allowed: torch.float32; trainer.precision=64-true or "
        f"bf16-true trains in another one": dtype != torch.float32,
    }
    for problem, found in wrong.items():
        if found:
            raise ConfigError(f"flfast.run: {problem}")
