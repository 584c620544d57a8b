"""Records a program's steps as CUDA graphs and replays them, with one launch for many operators.

`programs.py` wraps each compiled program of `executor.py` in `Replayed`, on CUDA only. A replay
reads and writes fixed addresses, so inputs are copied to the recording's own memory first.
"""

import logging
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from flfast.engines.fused.graph.executor import Executor
from flfast.state.messages import first_line

log = logging.getLogger(__name__)

MAX_STEPS = 16
"""Largest number of steps in a recording. A launch then costs little per step, and more steps
would take longer to record."""

WARM_UPS = 3
"""Runs before a recording, in which libraries load kernels and choose between them."""

MAX_RECORDINGS = 64
"""Largest number of recordings per program; one per address of the state and number of clients."""

MAX_BYTES = 2**30
"""Largest size of a program's recordings, the state not counted."""


class Recorder(Protocol):
    """Records a run for replay; the run reads and writes the same memory each time."""

    def warm_up(self, run: Callable[[], None]) -> None:
        """Run on the stream that recordings are made on."""

    def record(self, run: Callable[[], None]) -> Callable[[], None]:
        """Record a run without executing it, and return a function that replays it.

        Raises:
            RuntimeError: if it cannot be recorded.
        """


class Direct:
    """A `Recorder` that records nothing: replaying runs again."""

    def warm_up(self, run: Callable[[], None]) -> None:
        """Run."""
        run()

    def record(self, run: Callable[[], None]) -> Callable[[], None]:
        """Return the run."""
        return run


class CudaGraphs:
    """Records CUDA graphs of a device.

    All graphs share one memory pool, because no graph reads intermediate values of another.
    Random operators draw from the device's default generator, which a replay advances.
    """

    def __init__(self, device: torch.device) -> None:
        # Libraries allocate workspaces per stream. Warm-ups on another stream would leave the
        # allocation to the capture, where it is not allowed.
        self._stream = torch.cuda.Stream(device)
        self._pool = torch.cuda.graph_pool_handle()

    def warm_up(self, run: Callable[[], None]) -> None:
        """Run on the capture stream, synchronised with the current stream."""
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

    State is read and written at its own addresses, so these are part of a recording's key. All
    other inputs are copied into memory of the recording first. Warm-up runs are real local steps,
    so no state has to be restored after them.

    Args:
        executor: runs the steps.
        recorder: records them.
        num_state: number of the first inputs that are state, changed in place.

    Attributes:
        reads: see `Executor`.
    """

    def __init__(self, executor: Executor, recorder: Recorder, *, num_state: int) -> None:
        self._executor, self._recorder, self._num_state = executor, recorder, num_state
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
                steps.replay = self._record(steps.run)
                self._evict()
            steps.replay()

    def _evict(self) -> None:
        kept = self._recordings
        while len(kept) > 1 and sum(entry.num_bytes() for entry in kept.values()) > MAX_BYTES:
            kept.popitem(last=False)

    def _record(self, run: Callable[[], None]) -> Callable[[], None]:
        try:
            return self._recorder.record(run)
        except RuntimeError as error:
            log.warning(
                "A program runs operator by operator, it was not recorded: %s", first_line(error)
            )
            self._recorder = Direct()
            return run

    def _recording(self, fixed: list[Tensor], width: int) -> "_Recording":
        places = [leaf.data_ptr() for leaf in fixed[: self._num_state]]
        # Weights of the first round may have another data type than those of later rounds.
        kinds = [(leaf.dtype, leaf.shape) for leaf in fixed[self._num_state :]]
        key = (width, *places, *kinds)
        if key not in self._recordings:
            self._recordings[key] = _Recording(self._executor, fixed, width, self._num_state)
            if len(self._recordings) > MAX_RECORDINGS:
                self._recordings.popitem(last=False)
        self._recordings.move_to_end(key)
        return self._recordings[key]


@dataclass
class _RecordedSteps:
    """The recording of one number of steps.

    Attributes:
        rows: fixed memory for the rows, each [num, ...].
        run: runs the steps.
        replay: replays them; None until they are recorded.
    """

    rows: list[Tensor]
    run: Callable[[], None]
    replay: Callable[[], None] | None = None


class _Recording:
    """The recordings for one state, with the memory that they read.

    Attributes:
        warm_ups: number of warm-up runs so far.
    """

    def __init__(
        self, executor: Executor, fixed: list[Tensor], width: int, num_state: int
    ) -> None:
        self._executor, self._width, self.warm_ups = executor, width, 0
        # Keep a reference, so that no other tensor is allocated at the state's addresses.
        self._state = fixed[:num_state]
        self._fixed: list[Tensor] = []
        self._steps: dict[int, _RecordedSteps] = {}

    def load(self, fixed: list[Tensor]) -> None:
        """Copy the inputs that all steps share."""
        copied = range(len(self._state), len(fixed))
        reads = self._executor.reads
        if not self._fixed:
            # Inputs that no step reads need no memory.
            copies = [
                torch.empty_like(fixed[i]) if reads[i] else fixed[i].new_empty(0) for i in copied
            ]
            self._fixed = [*self._state, *copies]
        for i in copied:
            if reads[i]:
                self._fixed[i].copy_(fixed[i])

    def steps(self, rows: list[Tensor], num: int) -> _RecordedSteps:
        """The recording of `num` steps, with these rows copied in; there may be no rows."""
        if num not in self._steps:
            copies = [torch.empty_like(row) for row in rows]
            self._steps[num] = _RecordedSteps(copies, partial(self.run, self._fixed, copies, num))
        steps = self._steps[num]
        for copy, row in zip(steps.rows, rows, strict=True):
            copy.copy_(row)
        return steps

    def run(self, fixed: list[Tensor], rows: list[Tensor], num: int) -> None:
        """Run steps without a recording."""
        self._executor(fixed, rows, num=num, width=self._width)

    def num_bytes(self) -> int:
        """Size of the copies, in bytes; the state is not counted."""
        rows = [row for steps in self._steps.values() for row in steps.rows]
        return sum(copy.nbytes for copy in (*self._fixed[len(self._state) :], *rows))


def spans(num: int) -> Iterator[tuple[int, int]]:
    """Cut `num` steps into powers of two, so that few recordings serve any number of steps.

    >>> list(spans(19))
    [(0, 16), (16, 18), (18, 19)]
    """
    start = 0
    while start < num:
        length = min(1 << ((num - start).bit_length() - 1), MAX_STEPS)
        yield start, start + length
        start += length
