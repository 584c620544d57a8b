"""Records a program's steps as CUDA graphs and replays them, with one launch for many operators.

`programs.py` wraps each compiled program of `executor.py` in `Replayed`, on CUDA only. A replay
reads and writes fixed addresses, so inputs are copied to the recording's own memory first.
"""

import logging
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial

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

MAX_RECORDINGS = 128
"""Largest number of recordings per program; one per address of the state and number of clients.
An uneven cohort of 100 clients has up to 100 numbers of clients."""

MAX_BYTES = 2**30
"""Size of a program's recordings, the state not counted, from which on no further one is begun."""

PATIENCE = 4
"""Calls for which a state waits for the place of a recording that is not used meanwhile."""

MAX_WAITING = 2**12
"""Largest number of states that wait."""


class CudaGraphs:
    """Records CUDA graphs of a device.

    All graphs share one memory pool, because no graph reads intermediate values of another.
    Random operators draw from the device's default generator, which a replay advances.

    Attributes:
        failures: number of runs that could not be recorded. What was recorded before the last of
            them must not be replayed.
    """

    def __init__(self, device: torch.device) -> None:
        # Libraries prepare each stream at its first use, which captures may not allow. So warm-ups
        # run on the stream of captures.
        self._stream = torch.cuda.Stream(device)
        self._pool = torch.cuda.graph_pool_handle()
        self.failures = 0

    def warm_up(self, run: Callable[[], None]) -> None:
        """Run on the capture stream, synchronised with the current stream."""
        current = torch.cuda.current_stream(self._stream.device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            run()
        current.wait_stream(self._stream)

    def record(self, run: Callable[[], None]) -> Callable[[], None]:
        """Record a run without executing it, and return a function that replays it.

        Raises:
            RuntimeError: if it cannot be recorded.
        """
        device = self._stream.device
        before = torch.cuda.current_stream(device)
        generator = torch.cuda.default_generators[device.index]
        random_state, graph = generator.clone_state(), torch.cuda.CUDAGraph()
        try:
            # Calls of other threads, such as the one that pins batches, do not end the capture.
            mode = "thread_local"
            with (
                _fresh_workspaces(),
                torch.cuda.graph(graph, self._pool, self._stream, capture_error_mode=mode),
            ):
                run()
        except BaseException:
            # torch leaves all of this as it was during the capture, if it ends with an error.
            self.failures += 1
            torch.cuda.set_stream(before)
            generator.graphsafe_set_state(random_state)
            with suppress(RuntimeError):  # newer versions have ended it
                torch._C._cuda_endAllocateToPool(before.device_index, self._pool)  # noqa: SLF001
            self._pool = torch.cuda.graph_pool_handle()
            raise
        return graph.replay


@contextmanager
def _fresh_workspaces() -> Iterator[None]:
    """Let matrix products allocate their workspaces anew: within a capture, in its memory pool.

    cuBLAS keeps a workspace for each stream, and a recording refers to its address. Lightning
    frees all workspaces when it tears a device down; some versions of torch free those of a stream
    with each recording. The memory of a pool remains while any of its recordings exists.
    """
    torch._C._cuda_clearCublasWorkspaces()  # noqa: SLF001 - torch's compiler does the same
    try:
        yield
    finally:
        # Without this, warm-ups of other programs would work in the pool, and keep it.
        torch._C._cuda_clearCublasWorkspaces()  # noqa: SLF001 - likewise


class Replayed:
    """An `Executor` that replays recordings of another.

    State is read and written at its own addresses, so these are part of a recording's key. All
    other inputs are copied into memory of the recording first. Warm-up runs are real local steps,
    so no state has to be restored after them. The first `num_state` inputs are state, which is
    changed in place.

    Attributes:
        reads: see `Executor`.
    """

    def __init__(self, executor: Executor, recorder: CudaGraphs, *, num_state: int) -> None:
        self._executor, self._num_state = executor, num_state
        self._recorder: CudaGraphs | None = recorder
        self._recordings: OrderedDict[Hashable, _Recording] = OrderedDict()
        self._waiting: Counter[Hashable] = Counter()
        self.reads = executor.reads

    def __call__(self, fixed: list[Tensor], rows: list[Tensor], *, num: int, width: int) -> None:
        """Run `num` steps; see `Executor`."""
        recorder, recording = self._recorder, None
        if recorder is not None:
            recording = self._recording(fixed, rows, (recorder.failures, width))
        if recorder is None or recording is None:
            self._executor(fixed, rows, num=num, width=width)
            return
        parts = [([row[start:stop] for row in rows], stop - start) for start, stop in spans(num)]
        cold = max(WARM_UPS - recording.warm_ups, 0)
        for part, length in parts[:cold]:
            recording.warm_ups += 1
            recorder.warm_up(partial(recording.run, fixed, part, length))
        if parts[cold:]:
            recording.load(fixed)
        for part, length in parts[cold:]:
            steps = recording.steps(part, length)
            if steps.replay is None:
                steps.replay = self._record(steps.run)
            steps.replay()

    def _record(self, run: Callable[[], None]) -> Callable[[], None]:
        try:
            return self._recorder.record(run) if self._recorder else run
        except RuntimeError as error:
            log.warning(
                "A program runs operator by operator, it was not recorded: %s", first_line(error)
            )
            self._recorder = None
            self._recordings.clear()
            return run

    def _recording(
        self, fixed: list[Tensor], rows: list[Tensor], run: tuple[int, int]
    ) -> "_Recording | None":
        """The recording of a call; None if there is no room for one."""
        places = [leaf.data_ptr() for leaf in fixed[: self._num_state]]
        # Weights of the first round may have another data type than those of later rounds.
        kinds = [(leaf.dtype, leaf.shape) for leaf in fixed[self._num_state :]]
        key, kept = (*run, *places, *kinds), self._recordings
        if key not in kept:
            num_bytes = sum(entry.num_bytes for entry in kept.values())
            if len(kept) == MAX_RECORDINGS or num_bytes > MAX_BYTES:
                # Dropping one at once would never record a cycle of more states than there is
                # room for: each would be dropped before its warm-ups are over.
                self._waiting[key] += 1
                if self._waiting[key] < PATIENCE:
                    if len(self._waiting) > MAX_WAITING:
                        self._waiting.clear()
                    return None
                kept.popitem(last=False)
            kept[key] = _Recording(self._executor, fixed, rows, run[1], num=self._num_state)
            del self._waiting[key]
        elif key == next(iter(kept)):
            self._waiting.clear()  # all recordings are in use
        kept.move_to_end(key)
        return kept[key]


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
        num_bytes: size of all copies that it may make; the state is not counted.
    """

    def __init__(
        self, executor: Executor, fixed: list[Tensor], rows: list[Tensor], width: int, *, num: int
    ) -> None:
        self._executor, self._width, self.warm_ups = executor, width, 0
        copied = zip(fixed[num:], executor.reads[num:], strict=True)
        self.num_bytes = sum(leaf.nbytes for leaf, is_read in copied if is_read)
        # One recording for each power of two.
        self.num_bytes += sum((2 * MAX_STEPS - 1) * row.nbytes // len(row) for row in rows)
        # Keep a reference, so that no other tensor is allocated at the state's addresses.
        self._state = fixed[:num]
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
