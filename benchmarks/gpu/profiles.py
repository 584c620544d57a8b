"""Where a round's time goes: operators on the device, and Python functions."""

from __future__ import annotations

import cProfile
import io
import pstats
import time
from collections.abc import Sequence
from typing import Any

import torch
from torch.profiler import ProfilerActivity

from benchmarks.gpu.job import Found, Setting
from benchmarks.gpu.patching import put
from benchmarks.gpu.runs import Answer, Patch, trained
from flfast.engines.engine import Engine

FILE = "profile.txt"


def profiled(
    workload: str, rounds: int, at: int, *words: str, patches: Sequence[Patch] = ()
) -> Answer:
    """Operators of round `at`, and Python functions of the rounds after it; see `trained`."""

    def run(setting: Setting, found: Found) -> None:
        watch = _Watch(at if setting.cuda else 1, setting)
        try:
            trained(workload, rounds, *words, patches=[*patches, watch.begin])(setting, found)
        finally:
            watch.write(f"{workload} {' '.join(words)}", found)

    return run


class _Watch:
    """Profiles one round's training and evaluation."""

    def __init__(self, at: int, setting: Setting) -> None:
        self._at, self._setting, self._round = at, setting, 0
        activities = [ProfilerActivity.CPU]
        activities += [ProfilerActivity.CUDA] if setting.cuda else []
        self._operators = torch.profiler.profile(activities=activities)
        self._python = cProfile.Profile()
        self._times: list[float] = []

    def begin(self) -> None:
        """Watch this process's engine."""
        train, evaluate = Engine.train, Engine.evaluate

        def trained_round(engine: Engine, *args: Any, **kwargs: Any) -> Any:
            self._round += 1
            if self._round == self._at:
                self._mark()
                self._operators.__enter__()
            elif self._round == self._at + 1:
                self._python.enable()
            done = train(engine, *args, **kwargs)
            if self._round == self._at:
                self._mark()
            return done

        def evaluated(engine: Engine, *args: Any, **kwargs: Any) -> Any:
            done = evaluate(engine, *args, **kwargs)
            if self._round == self._at and len(self._times) == 2:
                self._mark()
                self._operators.__exit__(None, None, None)
            return done

        put(Engine, "train", trained_round)
        put(Engine, "evaluate", evaluated)

    def _mark(self) -> None:
        if self._setting.cuda:
            torch.cuda.synchronize()
        self._times.append(time.perf_counter())

    def write(self, title: str, found: Found) -> None:
        """Add the tables to the folder's file, and what the device did to the findings."""
        self._python.disable()
        if len(self._times) < 3:
            return
        begin, trained_at, end = self._times
        averages = self._operators.key_averages()
        kernels = [row for row in averages if row.device_type == torch.autograd.DeviceType.CUDA]
        found["kernels"] = sum(row.count for row in kernels)
        busy = sum(row.self_device_time_total for row in kernels if not row.is_user_annotation)
        found["device_busy_s"] = busy / 1e6
        found["profiled_round_s"] = end - begin
        text = io.StringIO()
        stats = pstats.Stats(self._python, stream=text)
        stats.sort_stats("cumulative").print_stats(45)
        stats.sort_stats("tottime").print_stats(30)
        key = "self_device_time_total" if self._setting.cuda else "self_cpu_time_total"
        with (self._setting.folder / FILE).open("a") as file:
            file.write(
                f"\n===== {title}, round {self._at}: training {trained_at - begin:.4f} s, "
                f"evaluation {end - trained_at:.4f} s, device busy {busy / 1e6:.4f} s\n"
            )
            file.write(averages.table(sort_by=key, row_limit=30, max_name_column_width=90))
            file.write(f"\n----- Python, the rounds after it\n{text.getvalue()}\n")
