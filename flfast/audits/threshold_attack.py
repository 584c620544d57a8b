"""An attack that compares a score with a threshold: how well it tells two groups apart.

Yeom, Giacomelli, Fredrikson, Jha: Privacy Risk in Machine Learning: Analyzing the Connection to
Overfitting. CSF 2018. Definition 4 has the advantage, adversary 2 the threshold on the loss.

True positive rates at low false positive rates are reported as Carlini, Chien, Nasr, Song, Terzis,
Tramer: Membership Inference Attacks From First Principles, S&P 2022, section IV, ask for.
"""

import math
from typing import NamedTuple

import numpy as np

_QUANTILE = 1.959964
"""Quantile of the standard normal distribution for intervals of 95 %."""


class Separation(NamedTuple):
    """How well low losses tell members from others, over all thresholds. T thresholds.

    Attributes:
        auc: area under the ROC curve; 0.5 is guessing, 1 is certainty.
        low: lower end of the 95 % interval of the AUC.
        high: upper end of this interval.
        advantage: the largest TPR - FPR of a threshold.
        tpr_at_1_fpr: largest TPR of a threshold whose FPR is at most 1 %.
        fpr: false positive rates, ascending, float64 [T].
        tpr: true positive rates, float64 [T].
    """

    auc: float
    low: float
    high: float
    advantage: float
    tpr_at_1_fpr: float
    fpr: np.ndarray
    tpr: np.ndarray


def separation(members: np.ndarray, others: np.ndarray) -> Separation:
    """How well "a low loss is a member's" works. Equal losses count one half.

    Args:
        members: losses of training examples [M], M >= 1.
        others: losses of examples that nobody trained on [N], N >= 1.
    """
    from sklearn.metrics import auc, roc_curve  # half a second

    largest = np.finfo(np.float64).max
    losses = np.nan_to_num(np.concatenate([members, others]).astype(np.float64), nan=largest)
    is_member = np.repeat([1, 0], [len(members), len(others)])
    fpr, tpr, _ = roc_curve(is_member, -losses, drop_intermediate=False)
    area = float(auc(fpr, tpr))
    half = _QUANTILE * standard_error(area, len(members), len(others))
    return Separation(
        auc=area,
        low=max(area - half, 0.0),
        high=min(area + half, 1.0),
        advantage=float((tpr - fpr).max()),
        tpr_at_1_fpr=float(tpr[fpr <= 0.01].max()),
        fpr=fpr,
        tpr=tpr,
    )


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
