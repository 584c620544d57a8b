"""Figure of a membership audit: histograms of losses, and the ROC curve."""

from pathlib import Path

import numpy as np

from flfast.audits.threshold_attack import Separation
from flfast.output.callbacks.figures import COLOURS, figure

_DPI = 150
_BINS = 40


def draw_membership(
    path: Path, *, members: np.ndarray, others: np.ndarray, found: Separation, title: str
) -> None:
    """Write a PNG with the losses of members [M] and of others [N]."""
    with figure(path, size=(9.5, 3.8), dpi=_DPI, title=title) as picture:
        histograms, curve = picture.subplots(1, 2, width_ratios=(3, 2))
        # Losses span many orders of magnitude, so the bins are equal on a logarithmic axis.
        logs = [np.log10(np.clip(losses, 1e-8, 1e8)) for losses in (members, others)]
        joined = np.concatenate(logs)
        low, high = float(joined.min()), float(joined.max())
        bins = np.logspace(low, max(high, low + 0.1), _BINS)
        for losses, name, colour in (
            (members, "trained on", COLOURS["local"]),
            (others, "not trained on", COLOURS["global"]),
        ):
            style = {"color": colour, "alpha": 0.5, "label": f"{name} ({len(losses)})"}
            histograms.hist(np.clip(losses, 1e-8, 1e8), bins=bins, **style)
        histograms.set_xscale("log")
        histograms.set_title("Loss of each example")
        histograms.set_xlabel("loss")
        histograms.set_ylabel("examples")
        histograms.legend()
        curve.plot([0, 1], [0, 1], color="#888888", linewidth=1, linestyle="--")
        curve.plot(found.fpr, found.tpr, color=COLOURS["local"])
        curve.set_title(f"ROC: AUC {found.auc:.3f} ({found.low:.3f} to {found.high:.3f})")
        curve.set_xlabel("false positive rate")
        curve.set_ylabel("true positive rate")
        curve.set_aspect("equal")
        curve.grid(visible=True)
