"""A program recorded once and replayed: on CUDA many steps, in one launch instead of thousands."""

import logging
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from flfast.engines.fused.graph.executor import Executor

log = logging.getLogger(__name__)

MOST_STEPS = 16
"""Of a recording: then launching it costs each step little, and more would be longer to record."""

WARM_UPS = 3
"""Runs before a recording, in which libraries load kernels and choose among them."""

KEPT = 64
"""Places of state and numbers of clients whose recordings a program keeps."""

KEPT_BYTES = 2**30
"""Of what a program's recordings read, beside the state."""


class Recorder(Protocol):
    """Makes a run repeatable; a run reads and writes the same memory each time."""

    def warm_up(self, run: Callable[[], None]) -> None:
        """Run, where recordings will be made."""

    def record(self, run: Callable[[], None]) -> Callable[[], None]:
        """Run it without effect; what comes back runs it again, with effect.

        Raises:
            RuntimeError: if it cannot be recorded.
        """


class Direct:
    """Records nothing: what is replayed is the run itself."""

    def warm_up(self, run: Callable[[], None]) -> None:
        """Run."""
        run()

    def record(self, run: Callable[[], None]) -> Callable[[], None]:
        """The run."""
        return run


class CudaGraphs:
    """Records CUDA graphs, in one pool of memory: none reads what another has left there.

    Random operators draw from the device's default generator, which a replay reads and advances.

    Args:
        device: of all tensors.
    """

    def __init__(self, device: torch.device) -> None:
        # Libraries keep memory by stream: warmed up on another they would ask for it in a capture.
        self._stream = torch.cuda.Stream(device)
        self._pool = torch.cuda.graph_pool_handle()

    def warm_up(self, run: Callable[[], None]) -> None:
        """Run on the stream of the captures, in order with the current one."""
        current = torch.cuda.current_stream(self._stream.device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            run()
        current.wait_stream(self._stream)

    def record(self, run: Callable[[], None]) -> Callable[[], None]:
        """Capture a run."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
            run()
        return graph.replay


class Replayed:
    """An `Executor` that replays recordings of another.

    State is read and written where it lies, so its addresses are part of what a recording is
    kept by. Everything else is copied into memory of the recording's own first. The first runs
    are real steps, too: warming up changes no state that would have to be put back.

    Args:
        executor: runs the steps.
        recorder: makes them repeatable.
        in_place: number of the first inputs that are state.

    Attributes:
        reads: see `Executor`.
    """

    def __init__(self, executor: Executor, recorder: Recorder, *, in_place: int) -> None:
        self._executor, self._recorder, self._in_place = executor, recorder, in_place
        self._recordings: OrderedDict[Hashable, _Recording] = OrderedDict()
        self.reads = executor.reads

    def __call__(self, fixed: list[Tensor], rows: list[Tensor], *, num: int, width: int) -> None:
        """Run `num` steps; see `Executor`."""
        recording = self._recording(fixed, width)
        parts = [([row[start:stop] for row in rows], stop - start) for start, stop in spans(num)]
        cold = max(WARM_UPS - recording.warm_ups, 0)
        for part, length in parts[:cold]:
            recording.warm_ups += 1
            self._recorder.warm_up(partial(recording.run, fixed, part, length))
        if parts[cold:]:
            recording.load(fixed)
        for part, length in parts[cold:]:
            steps = recording.steps(part, length)
            if steps.replay is None:
                steps.replay = self._recorded(steps.run)
                self._forget()
            steps.replay()

    def _forget(self) -> None:
        kept = self._recordings
        while len(kept) > 1 and sum(own.num_bytes() for own in kept.values()) > KEPT_BYTES:
            kept.popitem(last=False)

    def _recorded(self, run: Callable[[], None]) -> Callable[[], None]:
        try:
            return self._recorder.record(run)
        except RuntimeError as error:
            reason = str(error).splitlines()[0]
            log.warning("A program runs operator by operator, it was not recorded: %s", reason)
            self._recorder = Direct()
            return run

    def _recording(self, fixed: list[Tensor], width: int) -> "_Recording":
        places = [leaf.data_ptr() for leaf in fixed[: self._in_place]]
        # Weights of the first round may be of another type than those that training returned.
        kinds = [(leaf.dtype, leaf.shape) for leaf in fixed[self._in_place :]]
        key = (width, *places, *kinds)
        if key not in self._recordings:
            self._recordings[key] = _Recording(self._executor, fixed, width, self._in_place)
            if len(self._recordings) > KEPT:
                self._recordings.popitem(last=False)
        self._recordings.move_to_end(key)
        return self._recordings[key]


class _Steps:
    """So many steps.

    Attributes:
        rows: what they read, each [num, ...].
        run: runs them.
        replay: their recording, once there is one.
    """

    def __init__(self, rows: list[Tensor], run: Callable[[], None]) -> None:
        self.rows, self.run = rows, run
        self.replay: Callable[[], None] | None = None


class _Recording:
    """Steps at one place, with the memory that they read.

    Attributes:
        warm_ups: runs so far that were not recorded.
    """

    def __init__(self, executor: Executor, fixed: list[Tensor], width: int, in_place: int) -> None:
        self._executor, self._width, self.warm_ups = executor, width, 0
        # State is held: memory that is in use is never given to another tensor.
        self._state = fixed[:in_place]
        self._fixed: list[Tensor] = []
        self._steps: dict[int, _Steps] = {}

    def load(self, fixed: list[Tensor]) -> None:
        """Take inputs that all steps share."""
        own = range(len(self._state), len(fixed))
        reads = self._executor.reads
        if not self._fixed:
            # Of what no step reads there is nothing.
            made = [torch.empty_like(fixed[i]) if reads[i] else fixed[i].new_empty(0) for i in own]
            self._fixed = [*self._state, *made]
        for i in own:
            if reads[i]:
                self._fixed[i].copy_(fixed[i])

    def steps(self, rows: list[Tensor], num: int) -> _Steps:
        """`num` steps, with these rows loaded; steps that read none have none."""
        if num not in self._steps:
            own = [torch.empty_like(row) for row in rows]
            self._steps[num] = _Steps(own, partial(self.run, self._fixed, own, num))
        found = self._steps[num]
        for static, row in zip(found.rows, rows, strict=True):
            static.copy_(row)
        return found

    def run(self, fixed: list[Tensor], rows: list[Tensor], num: int) -> None:
        """Run steps."""
        self._executor(fixed, rows, num=num, width=self._width)

    def num_bytes(self) -> int:
        """Of the memory that is its own."""
        rows = [row for steps in self._steps.values() for row in steps.rows]
        return sum(own.nbytes for own in (*self._fixed[len(self._state) :], *rows))


def spans(num: int) -> Iterator[tuple[int, int]]:
    """Cut steps into few lengths, powers of two, so that few recordings serve every number.

    >>> list(spans(19))
    [(0, 16), (16, 18), (18, 19)]
    """
    start = 0
    while start < num:
        length = min(1 << ((num - start).bit_length() - 1), MOST_STEPS)
        yield start, start + length
        start += length
