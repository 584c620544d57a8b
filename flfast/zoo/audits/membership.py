"""Membership inference: can the final model's losses tell who was in the training data?

Yeom, Giacomelli, Fredrikson, Jha: Privacy Risk in Machine Learning: Analyzing the Connection to
Overfitting. CSF 2018, adversary 2: an example whose loss is below a threshold is said to be a
member. We report all thresholds, the advantage of definition 4, and true positive rates at low
false positive rates, as Carlini, Chien, Nasr, Song, Terzis, Tramer: Membership Inference Attacks
From First Principles, S&P 2022, section IV, ask for.
"""

import logging
import math
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from flfast.audits.audit import OF_MODELS, Audit, Leak, ModelAudit
from flfast.datamodules.federated import FederatedDataModule
from flfast.federation.loop import Federation
from flfast.lit.task import LocalTask, evaluation_mode
from flfast.output.callbacks.figures import COLOURS, figure
from flfast.state.options import Count
from flfast.state.randomness import generator

log = logging.getLogger(__name__)

_BINS = 40


def membership(*, max_examples: Count, per_client: bool) -> ModelAudit:
    """Losses of members against losses of others, equally many.

    Members are training examples of the clients that were called and in time in some round. Others
    are all test examples, and all examples of clients that are held out.
    """
    return Audit(
        "membership",
        check=_check,
        measure=partial(_measure, max_examples=max_examples, per_client=per_client),
        capabilities=OF_MODELS,
    )


def _check(federation: Federation) -> None:
    if not len(_others(federation.data)):
        raise ValueError(
            "audit=membership: there are no examples that nobody trains on; allowed: "
            "split.test > 0, data with a test set, or sampler.holdout_clients >= 1"
        )


def _measure(federation: Federation, *, max_examples: int, per_client: bool) -> Leak | None:
    if federation.engine.site.world.rank != 0:
        return None
    rng = generator(federation.seed, "membership audit")
    members, owner = _members(federation)
    others = _others(federation.data)
    num = min(len(members), len(others), max_examples)
    if not num:
        log.warning("audit=membership: no cohort had a client, so there are no members")
        return None
    chosen = np.sort(rng.choice(len(members), num, replace=False))
    members, owner = members[chosen], owner[chosen]
    others = np.sort(rng.choice(others, num, replace=False))
    losses = example_losses(federation, np.concatenate([members, others]))
    inside, outside = losses[:num], losses[num:]
    found = separation(inside, outside)
    round_idx = federation.history[-1]["round"]
    rows = [_row(round_idx, -1, found, inside, outside)]
    if per_client:
        for client_id in np.unique(owner).tolist():
            own = inside[owner == client_id]
            rows.append(_row(round_idx, client_id, separation(own, outside), own, outside))
    return Leak(
        rows=rows,
        sentence=(
            f"losses of {num} members and {num} others: "
            "AUC {auc:.3f} (95 % interval {auc_low:.3f} to {auc_high:.3f}), best advantage "
            "{advantage:.3f}, TPR {tpr_at_1_fpr:.1%} at 1 % FPR".format_map(found.scores)
        ),
        draw=partial(
            draw_membership,
            members=inside,
            others=outside,
            roc=found,
            title=f"Membership inference · {federation.title}",
        ),
    )


def _row(
    round_idx: int, client_id: int, roc: "Separation", inside: np.ndarray, outside: np.ndarray
) -> dict[str, Any]:
    return {
        "audit": "membership",
        "round": round_idx,
        "client_id": client_id,  # -1: all of them
        "members": len(inside),
        "others": len(outside),
        **roc.scores,
        "member_loss": float(inside.mean()),
        "other_loss": float(outside.mean()),
    }


def _members(federation: Federation) -> tuple[np.ndarray, np.ndarray]:
    """Training examples of the clients that were called, and their clients, int64 [M] each."""
    data, train = federation.data, federation.data.splits["train"]
    drawn, history = set[int](), federation.history
    if not data.pooled:
        pace = federation.new_pace()
        for round_idx in range(1, len(history)):
            plan = federation.plans(round_idx, history[:round_idx])
            # Nobody trains, so that what clients download may be empty.
            drawn.update(pace.turn(plan, dict).cohort.clients.tolist())
            if len(drawn) == federation.population:
                break
    clients = data.participants if data.pooled else np.array(sorted(drawn), dtype=np.int64)
    chosen = train.only(clients)
    return chosen.indices, chosen.owner()


def _others(data: FederatedDataModule) -> np.ndarray:
    """Examples that nobody trains on, int64, ascending."""
    held_out = [split.only(data.held_out).indices for split in data.splits.values()]
    return np.unique(np.concatenate([data.central_test, data.splits["test"].indices, *held_out]))


@torch.no_grad()
def example_losses(federation: Federation, indices: np.ndarray) -> np.ndarray:
    """Loss of the server's model on examples, int64 [M], in evaluation mode, float64 [M]."""
    site, data = federation.engine.site, federation.data
    like = next(site.model.parameters())
    weights = {name: leaf.to(like.device) for name, leaf in federation.weights().items()}
    task = LocalTask(site.model, data.examples.task_type)
    found = []
    with evaluation_mode(site.model):
        for batch in data.eval_loader(indices):
            inputs = data.examples.transform(batch.inputs.to(like.device), dtype=like.dtype)
            moved = batch._replace(inputs=inputs, targets=batch.targets.to(like.device))
            found.append(task.losses(weights, moved).cpu().double())
    losses: np.ndarray = torch.cat(found).numpy()
    return losses


def draw_membership(
    path: Path, *, members: np.ndarray, others: np.ndarray, roc: "Separation", title: str
) -> None:
    """Write a PNG with the losses of members [M] and of others [N]."""
    with figure(path, size=(9.5, 3.8), dpi=150, title=title) as picture:
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
        curve.plot(roc.fpr, roc.tpr, color=COLOURS["local"])
        title = "ROC: AUC {auc:.3f} ({auc_low:.3f} to {auc_high:.3f})"
        curve.set_title(title.format_map(roc.scores))
        curve.set_xlabel("false positive rate")
        curve.set_ylabel("true positive rate")
        curve.set_aspect("equal")
        curve.grid(visible=True)


_QUANTILE = 1.959964
"""Quantile of the standard normal distribution for intervals of 95 %."""


class Separation(NamedTuple):
    """How well low losses tell members from others, over all thresholds. T thresholds.

    Attributes:
        scores: columns of `audit.csv`. `auc` is the area under the ROC curve, 0.5 is guessing;
            `auc_low` and `auc_high` end its 95 % interval. `advantage` is the largest TPR - FPR
            of a threshold, `tpr_at_1_fpr` the largest TPR with an FPR of at most 1 %.
        fpr: false positive rates, ascending, float64 [T].
        tpr: true positive rates, float64 [T].
    """

    scores: dict[str, float]
    fpr: np.ndarray
    tpr: np.ndarray


def separation(members: np.ndarray, others: np.ndarray) -> Separation:
    """How well "a low loss is a member's" works. Equal losses count one half.

    Losses are those of M >= 1 training examples, and of N >= 1 that nobody trained on.
    """
    from sklearn.metrics import auc, roc_curve  # half a second

    largest = np.finfo(np.float64).max
    losses = np.nan_to_num(np.concatenate([members, others]).astype(np.float64), nan=largest)
    is_member = np.repeat([1, 0], [len(members), len(others)])
    fpr, tpr, _ = roc_curve(is_member, -losses, drop_intermediate=False)
    area = float(auc(fpr, tpr))
    half = _QUANTILE * standard_error(area, len(members), len(others))
    scores = {
        "auc": area,
        "auc_low": max(area - half, 0.0),
        "auc_high": min(area + half, 1.0),
        "advantage": float((tpr - fpr).max()),
        "tpr_at_1_fpr": float(tpr[fpr <= 0.01].max()),
    }
    return Separation(scores, fpr, tpr)


def standard_error(auc: float, num_positive: int, num_negative: int) -> float:
    """Standard error of an AUC, with the distribution-free bound of exponential scores.

    Hanley, McNeil: The Meaning and Use of the Area under a Receiver Operating Characteristic (ROC)
    Curve. Radiology 1982, equations 1 and 2. It is 0 where the AUC is 0 or 1.
    """
    both_positive, both_negative = auc / (2 - auc), 2 * auc**2 / (1 + auc)
    variance = (
        auc * (1 - auc)
        + (num_positive - 1) * (both_positive - auc**2)
        + (num_negative - 1) * (both_negative - auc**2)
    ) / (num_positive * num_negative)
    return math.sqrt(max(variance, 0.0))
