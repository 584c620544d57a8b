"""Costs on a GPU that designs depend on, and what Lightning does to recordings."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu.job import Found, Setting
from flfast.engines.fused.graph.cuda_graphs import CudaGraphs

W1_PARAMETERS = 582_026
_aten = torch.ops.aten


def costs(setting: Setting, found: Found) -> None:
    """Launches, copies, a round's sum, and convolutions of several clients."""
    torch.set_num_threads(1)
    if setting.cuda:
        chip = torch.cuda.get_device_properties(0)
        memory = f"{chip.total_memory / 1e9:.0f} GB"
        found["chip"] = f"{chip.name}, {chip.multi_processor_count} processors, {memory}"
        few = torch.zeros(64, device="cuda")

        def launches() -> None:
            for _ in range(1000):
                few.add_(1)

        found["recorded_kernel_us"] = _ms(launches, setting)
        found["launched_kernel_us"] = _ms(launches, setting, record=False)
    _copies(setting, found)
    _sums(setting, found)
    # Channels in and out, window, and height of the image: of W1's and W3c's models.
    layers = {"W1 1": (1, 32, 5, 28), "W1 2": (32, 64, 5, 12), "W3c": (32, 32, 3, 32)}
    for name, shape in layers.items():
        for width in (20, 50) if setting.cuda else (2,):
            for way, ms in _convolutions(width, shape, setting).items():
                found[f"conv {name}, {width} clients, {way}, ms"] = ms


def _copies(setting: Setting, found: Found) -> None:
    if not setting.cuda:
        return
    there = torch.randn(50, W1_PARAMETERS, device="cuda")
    for kind, pinned in {"pageable": False, "pinned": True}.items():
        here = torch.empty(there.shape, pin_memory=pinned)
        for way, (to, source) in {"to host": (here, there), "to device": (there, here)}.items():
            to.copy_(source)
            torch.cuda.synchronize()
            start = time.perf_counter()
            to.copy_(source)
            torch.cuda.synchronize()
            rate = there.nbytes / (time.perf_counter() - start)
            found[f"copy {way}, {kind}, GB/s"] = rate / 1e9


def _sums(setting: Setting, found: Found) -> None:
    """A round's changes, checked and summed, by the host's core and by the device."""
    clients = 50 if setting.cuda else 4
    ends, start = torch.randn(clients, W1_PARAMETERS), torch.randn(W1_PARAMETERS)
    rows, weights = torch.empty_like(ends), torch.rand(clients)

    def host() -> None:
        torch.sub(ends, start, out=rows)
        rows.sum(1).tolist()
        total = torch.zeros(W1_PARAMETERS)
        for row, weight in zip(rows.unbind(), weights.tolist(), strict=True):
            total.add_(row, alpha=weight)

    host()
    began = time.perf_counter()
    host()
    found[f"sum of {clients} uploads, host, ms"] = 1e3 * (time.perf_counter() - began)
    there = [part.to(setting.device) for part in (ends, start, weights)]

    def device() -> None:
        torch.mv((there[0] - there[1]).t(), there[2])

    found[f"sum of {clients} uploads, device, ms"] = _ms(device, setting)


class _Layer:
    """Forward and both gradients of the same layer of several clients, in three ways."""

    def __init__(self, clients: int, shape: tuple[int, int, int, int], device: str) -> None:
        channels, outputs, self._size, height = shape
        self._clients, self._channels, self._outputs = clients, channels, outputs
        out, batch = height - self._size + 1, 10
        self._given = (
            torch.randn(batch, clients * channels, height, height, device=device),
            torch.randn(clients * outputs, channels, self._size, self._size, device=device),
            torch.randn(batch, clients * outputs, out, out, device=device),
        )
        x, w, grad = self._given
        self._last = tuple(
            part.contiguous(memory_format=torch.channels_last) for part in self._given
        )
        parts = zip(x.split(channels, 1), w.split(outputs), grad.split(outputs, 1), strict=True)
        self._single = [[part.contiguous() for part in client] for client in parts]
        self._images = (
            x.view(batch, clients, channels, height, height).transpose(0, 1).contiguous()
        )
        self._grads = grad.view(batch, clients, outputs, out, out).transpose(0, 1).contiguous()
        self._weights = w.view(clients, outputs, -1)
        turned = w.view(clients, outputs, channels, self._size, self._size).flip(3, 4)
        self._turned = turned.transpose(1, 2).reshape(clients, channels, -1)

    def _grouped(self, given: Sequence[Tensor], groups: int) -> None:
        x, w, grad = given
        torch.conv2d(x, w, groups=groups)
        mask = [self._channels > 1, True, False]  # the first layer's input needs no gradient
        rest = [[1, 1], [0, 0], [1, 1], False, [0, 0], groups, mask]
        _aten.convolution_backward(grad, x, w, None, *rest)

    def groups(self) -> None:
        """One convolution of a group per client."""
        self._grouped(self._given, self._clients)

    def groups_channels_last(self) -> None:
        """The same in another layout."""
        self._grouped(self._last, self._clients)

    def one_by_one(self) -> None:
        """A convolution per client."""
        for client in self._single:
            self._grouped(client, 1)

    def products(self) -> None:
        """Products of all clients' unfolded images at once."""
        seen = self._columns(self._images, 0)
        torch.bmm(seen, self._weights.transpose(1, 2))
        flat = self._grads.permute(0, 1, 3, 4, 2).reshape(self._clients, -1, self._outputs)
        torch.bmm(flat.transpose(1, 2), seen)
        if self._channels > 1:
            torch.bmm(self._columns(self._grads, self._size - 1), self._turned.transpose(1, 2))

    def _columns(self, images: Tensor, padding: int) -> Tensor:
        images = torch.constant_pad_nd(images, [padding] * 4)
        windows = images.unfold(-2, self._size, 1).unfold(-2, self._size, 1)
        windows = windows.permute(0, 1, 3, 4, 2, 5, 6)  # [S, B, H', W', C, *window]
        return windows.reshape(self._clients, -1, prod(windows.shape[-3:]))


def _convolutions(
    clients: int, shape: tuple[int, int, int, int], setting: Setting
) -> dict[str, float]:
    """Milliseconds of several clients' convolutions, by way."""
    layer = _Layer(clients, shape, setting.device)
    grouped = (layer.groups, layer.groups_channels_last)
    ways = (*grouped, layer.one_by_one, layer.products)
    found = {_words(way): _ms(way, setting) for way in ways}
    switches: dict[str, tuple[Any, str, bool, tuple[Callable[[], None], ...]]] = {
        "tf32": (torch.backends.cuda.matmul, "allow_tf32", True, (layer.products,)),
        "fastest of all tried": (torch.backends.cudnn, "benchmark", True, grouped),
        "no tf32": (torch.backends.cudnn, "allow_tf32", False, grouped),
    }
    for label, (owner, name, value, chosen) in switches.items() if setting.cuda else ():
        before = getattr(owner, name)
        setattr(owner, name, value)
        found |= {f"{_words(way)} {label}": _ms(way, setting) for way in chosen}
        setattr(owner, name, before)
    return found


def _words(way: Callable[[], None]) -> str:
    return way.__name__.replace("_", " ")


def _ms(run: Callable[[], None], setting: Setting, *, record: bool = True) -> float:
    """Milliseconds of a call; recorded, so that launches do not count."""
    if not setting.cuda:
        run()
        start = time.perf_counter()
        run()
        return 1e3 * (time.perf_counter() - start)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            run()
    torch.cuda.synchronize()
    call = run
    if record:
        recording = torch.cuda.CUDAGraph()
        with torch.cuda.graph(recording):
            run()
        call = recording.replay
    for _ in range(3):
        call()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    times = 20 if record else 5
    begin.record()
    for _ in range(times):
        call()
    end.record()
    torch.cuda.synchronize()
    return float(begin.elapsed_time(end)) / times


def teardown(setting: Setting, found: Found) -> None:
    """Whether a recording survives that Lightning tears the device down. It may end this process.

    Raises:
        RuntimeError: if the replay gives other numbers, or writes to memory of others.
    """
    device = setting.device
    given = torch.randn(10, 8192, device=device), torch.randn(8192, 512, device=device)
    out = torch.empty(10, 512, device=device)
    recorder = CudaGraphs(torch.device("cuda", 0))

    def product() -> None:
        torch.mm(*given, out=out)

    for _ in range(3):
        recorder.warm_up(product)
    replay = recorder.record(product)
    replay()
    torch.cuda.synchronize()
    expected = out.clone()
    torch._C._cuda_clearCublasWorkspaces()  # noqa: SLF001 - as Lightning does
    torch.cuda.empty_cache()
    # Whoever gets that memory next shows whether a replay writes into it.
    probes = [torch.full((2**20,), 7.0, device="cuda") for _ in range(64)]
    out.zero_()
    replay()
    torch.cuda.synchronize()
    found["relative_error"] = float((out - expected).norm() / expected.norm())
    found["numbers_of_others"] = sum(int((probe != 7).sum()) for probe in probes)
    if found["relative_error"] > 1e-6 or found["numbers_of_others"]:
        raise RuntimeError("a recording does not survive Lightning's teardown")
