"""Groups runs by the settings in which they differ; runs of one group differ in the seed."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from flfast.output.results.runs import RunRecord
from flfast.state.config_keys import flat, influence

SEED = "seed"


class RunGroup(NamedTuple):
    """Runs that differ only in the seed.

    Attributes:
        label: the values that distinguish it, such as `algorithm=fedprox · algorithm.mu=0.1`.
        values: by differing key; `-` where a run lacks the key.
        runs: one per seed, in the order of the folders.
    """

    label: str
    values: dict[str, str]
    runs: list[RunRecord]

    @property
    def finished(self) -> list[RunRecord]:
        """Runs whose results count."""
        return [run for run in self.runs if run.counts]


def group_runs(runs: Sequence[RunRecord]) -> tuple[list[RunGroup], list[RunRecord]]:
    """Settings in order of first appearance, and runs that are left out.

    Of runs with the same settings and the same seed, only the last one that counts is kept:
    two copies of a run are not two seeds.
    """
    keys = differing_keys(runs)
    found = [flat_settings(run) for run in runs]
    groups: dict[tuple[str, ...], dict[str, RunRecord]] = {}
    left_out: list[RunRecord] = []
    for run, settings in zip(runs, found, strict=True):
        seeds = groups.setdefault(tuple(settings.get(key, "-") for key in keys), {})
        earlier = seeds.get(run.seed)
        if earlier is None:
            seeds[run.seed] = run
        elif earlier.counts and not run.counts:
            left_out.append(run)
        else:
            seeds[run.seed] = run
            left_out.append(earlier)
    settings_of_groups = [
        RunGroup(_label(keys, values), dict(zip(keys, values, strict=True)), list(seeds.values()))
        for values, seeds in groups.items()
    ]
    return settings_of_groups, left_out


def differing_keys(runs: Sequence[RunRecord]) -> list[str]:
    """Keys in which runs differ, but for the seed: config groups first, then other settings.

    If a group's options differ, then so do most of the settings inside the group. Such a setting
    is listed only if it differs between two runs with the same option.
    """
    found = [flat_settings(run) for run in runs]
    names = dict.fromkeys(key for settings in found for key in settings)
    chosen = {key for run in runs for key in run.choices}
    names = dict.fromkeys(sorted(names, key=lambda key: (key not in chosen, key == SEED)))
    return [key for key in names if key != SEED and _differs(key, runs, found)]


def flat_settings(run: RunRecord) -> dict[str, str]:
    """Config groups' options and all other settings as text, by dotted key."""
    choices = {k: v for k, v in run.choices.items() if not _only_of_output(k)}
    kept = {
        key: "null" if value is None else str(value)
        for key, value in flat(run.config)
        if not _only_of_output(key) and key.rpartition(".")[2] not in _HYDRA_KEYS
    }
    return {**kept, **choices}


def _only_of_output(key: str) -> bool:
    """Whether a key changes neither the numbers of a run nor how they are computed."""
    return influence(key) in ("output", "command")


_OPTIONS_THAT_SPEAK = ("algorithm", "data", "model", "partition")
_HYDRA_KEYS = ("_partial_", "_convert_", "_recursive_")


def _differs(key: str, runs: Sequence[RunRecord], by_run: Sequence[Mapping[str, str]]) -> bool:
    group = key.partition(".")[0]
    inside = key != group and any(group in run.choices for run in runs)
    by_option: dict[str, set[str | None]] = {}
    for run, settings in zip(runs, by_run, strict=True):
        option = run.choices.get(group, "") if inside else ""
        by_option.setdefault(option, set()).add(settings.get(key))
    return any(len(values) > 1 for values in by_option.values())


def _label(keys: Sequence[str], values: Sequence[str]) -> str:
    """`fedprox · mu=0.1`: an option stands for itself, other values have the key's last part."""
    last = [key.rpartition(".")[2] for key in keys]
    short = [n if last.count(n) == 1 else key for key, n in zip(keys, last, strict=True)]
    pairs = zip(keys, short, values, strict=True)
    words = (
        value if key in _OPTIONS_THAT_SPEAK else f"{name}={value}"
        for key, name, value in pairs
        if value != "-"
    )
    return " · ".join(words)
