"""How a GPU multiplies float32 numbers in products and convolutions: `trainer.fp32_precision`.

torch keeps this for the whole process, in two ways at once: by `allow_tf32`, and since 2.9 by
`fp32_precision`. Where the two differ, reading the first one raises, as Lightning does for every
GPU. So both are set here, and given back as they were.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import torch

from flfast.state.plan import Fp32

Restore = Callable[[], None]

_given_back: list[Restore] = []
_used: list[Fp32] = []


def use_fp32(value: Fp32 | None) -> None:
    """Multiply so from here on; None gives back what the process had before the first call."""
    if [value] == _used or (value is None and not _used):
        return
    if not _given_back:
        _given_back.extend(_settings())
    _used.clear()
    if value is None:
        for restore in _given_back:
            restore()
        _given_back.clear()
        return
    _used.append(value)
    torch.set_float32_matmul_precision("high" if value == "tf32" else "highest")
    torch.backends.cudnn.allow_tf32 = value == "tf32"
    for part in _parts():
        part.fp32_precision = value
    if _parts() and value == "tf32":  # which is for GPUs: this server's own sums stay as they are
        _on_cpu().fp32_precision = "none"


def describe_fp32() -> str:
    """How this process multiplies on a GPU, in words.

    >>> describe_fp32()
    'float32 in products ieee, in convolutions tf32'
    """
    parts = (torch.backends.cuda.matmul, torch.backends.cudnn)
    products, convolutions = ("tf32" if _allows_tf32(part) else "ieee" for part in parts)
    return f"float32 in products {products}, in convolutions {convolutions}"


def allows_tf32() -> bool:
    """Whether a GPU may round the factors of any product or convolution."""
    return any(map(_allows_tf32, (torch.backends.cuda.matmul, torch.backends.cudnn)))


def _allows_tf32(part: Any) -> bool:
    newer = getattr(part, "conv", part)
    if hasattr(torch.backends.cudnn, "conv"):
        return bool(newer.fp32_precision == "tf32")
    return bool(part.allow_tf32)


def _parts() -> list[Any]:
    """What has an `fp32_precision`; nothing before torch 2.9."""
    products, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    return [products, cudnn.conv, cudnn.rnn] if hasattr(cudnn, "conv") else []


def _on_cpu() -> Any:
    """Products of a CPU, which `set_float32_matmul_precision` means, too."""
    backend: Any = torch.backends.mkldnn
    return backend.matmul


def _settings() -> Iterator[Restore]:
    """Functions that give back today's settings, to be called in order."""
    newer = [*_parts(), *(_on_cpu() for _ in _parts()[:1])]
    values = [part.fp32_precision for part in newer]
    for part in (torch.backends.cuda.matmul, torch.backends.cudnn):
        try:
            allowed = part.allow_tf32
        except RuntimeError:  # it differs from what `fp32_precision` says
            allowed = not _allows_tf32(part)
        yield partial(setattr, part, "allow_tf32", allowed)
    with suppress(RuntimeError):  # which also tells high from medium
        yield partial(torch.set_float32_matmul_precision, torch.get_float32_matmul_precision())
    for part, value in zip(newer, values, strict=True):
        yield partial(setattr, part, "fp32_precision", value)
