"""A picture of a call: a panel a workload, a bar a contender. Torch-free."""

from __future__ import annotations

from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from benchmarks.summary import best_plain, heading, summarise
from flfast.output.callbacks.figures import COLOURS, INK, figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def draw(result: dict[str, Any], path: Path) -> None:
    """Median seconds of training and evaluation, least and largest of the whole, and the floor."""
    entries = [entry for entry in result["workloads"] if summarise(entry)]
    if not entries:
        return
    heights = [1.2 + 0.42 * len(entry["measured"]) for entry in entries]
    machine = result["machine"]
    gpu = f", {machine['gpus'][0]}" if result["options"]["device"] == "cuda" else ""
    title = f"{machine['cpu']}, {machine['cores']} cores{gpu}, torch {machine['torch']}"
    with figure(path, size=(9, sum(heights) + 0.8), dpi=120, title=title) as drawn:
        panels = drawn.subplots(len(entries), 1, squeeze=False, height_ratios=heights)[:, 0]
        for axes, entry in zip(panels, entries, strict=True):
            _panel(axes, entry)
        drawn.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)


def _panel(axes: Axes, entry: dict[str, Any]) -> None:
    lines = summarise(entry)
    names = [line.contender for line in lines]
    train = [line.seconds["train"].median for line in lines]
    evaluate = [line.seconds["eval"].median for line in lines]
    whole = [line.seconds["whole"] for line in lines]
    axes.barh(names, train, color=COLOURS["global"], label="training")
    axes.barh(names, evaluate, left=train, color=COLOURS["local"], label="evaluation")
    spread = [[s.median - s.low for s in whole], [s.high - s.median for s in whole]]
    # Medians of parts need not add up to the median of the whole, where the whisker stands.
    axes.errorbar([s.median for s in whole], names, xerr=spread, fmt="none", ecolor=INK, capsize=3)
    best = best_plain({line.contender: line.seconds for line in lines})
    for line in lines:
        if best and not line.contender.startswith("plain"):
            at = (line.seconds["whole"].high, line.contender)
            said = f"{line.speed['whole']:.2f} x the speed of {best['whole'].contender}"
            axes.annotate(said, at, xytext=(6, 0), textcoords="offset points", va="center")
    axes.margins(x=0.3)  # for these words
    floor = entry["floor"]["train_s"] + entry["floor"]["eval_s"]
    axes.axvline(floor, color=COLOURS["personal"], linestyle="--", label="floor")
    axes.set_title("\n".join(wrap(heading(entry), 90)), fontsize=10)
    axes.set_xlabel("seconds of a round")
    axes.invert_yaxis()
