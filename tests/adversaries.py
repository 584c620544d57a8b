"""Attacks, faults, defences and compressions by name, so that any process can build them."""

from flfast.channel.aggregations.geometric_median import geometric_median
from flfast.channel.aggregations.krum import krum, multi_krum
from flfast.channel.aggregations.median import median
from flfast.channel.aggregations.trimmed_mean import trimmed_mean
from flfast.channel.attacks.attack import choose_attackers
from flfast.channel.attacks.gaussian import gaussian
from flfast.channel.attacks.label_flip import label_flip
from flfast.channel.attacks.sign_flip import sign_flip
from flfast.channel.channel import Channel
from flfast.channel.compression.quantize import quantize
from flfast.channel.compression.sign import sign
from flfast.channel.compression.topk import topk
from flfast.channel.faults.simulated import simulated
from flfast.channel.secure.masks import masks
from flfast.zoo.channel.aggregations.bulyan import bulyan
from flfast.zoo.channel.aggregations.centered_clipping import centered_clipping
from flfast.zoo.channel.aggregations.fltrust import fltrust
from flfast.zoo.channel.aggregations.foolsgold import foolsgold
from flfast.zoo.channel.aggregations.sign_majority import sign_majority
from flfast.zoo.channel.attacks.alie import alie
from flfast.zoo.channel.attacks.ipm import ipm
from flfast.zoo.channel.attacks.min_max import min_max
from flfast.zoo.channel.attacks.scaled import scaled

ROBUST = {
    "median": median(),
    "trimmed_mean": trimmed_mean(trim=0.45),
    "krum": krum(num_byzantine=1),
    "multi_krum": multi_krum(num_byzantine=1, num_selected=None),
    "geometric_median": geometric_median(iterations=50, eps=1e-9),
    "bulyan": bulyan(num_byzantine=1),
}

ON_CHANGES = {
    "centered_clipping": centered_clipping(radius=2.0, iterations=2),
    "fltrust": fltrust(),
    "foolsgold": foolsgold(confidence=1.0),
    "sign_majority": sign_majority(step=0.1),
}
"""Rules for which zero has a meaning, so that they are not tested with shifted uploads."""

COMPRESSIONS = {
    "quantize": quantize(bits=4, bucket=16, downloads=True),
    "topk": topk(share=0.3, feedback=True),
    "sign": sign(feedback=True),
}

FAULTS = {"lost": 0.2, "broken": 0.3, "corruption": "any"}

ADVERSARIES = {
    "median": {
        "aggregation": median(),
        "attack": sign_flip(fraction=0.3, scale=2.0),
    },
    "trimmed_mean": {
        "aggregation": trimmed_mean(trim=0.2),
        "attack": gaussian(fraction=0.3, std=0.1),
        "faults": simulated(**{**FAULTS, "corruption": "shape"}),
    },
    "krum": {
        "aggregation": krum(num_byzantine=1),
        "attack": scaled(fraction=0.3, scale=3.0),
    },
    "multi_krum": {
        "aggregation": multi_krum(num_byzantine=1, num_selected=2),
        "attack": label_flip(fraction=0.5),
    },
    "geometric_median": {
        "aggregation": geometric_median(iterations=20, eps=1e-6),
        "faults": simulated(**{**FAULTS, "corruption": "huge"}),
    },
    "mean": {
        "clip_norm": 0.05,
        "attack": scaled(fraction=0.3, scale=3.0),
        "faults": simulated(**{**FAULTS, "corruption": "not_finite"}),
    },
    "secure": {
        "faults": simulated(lost=0.3, broken=0.0, corruption="any"),
        "secure": masks(
            bits=32,
            max_change=4.0,
            precision=1e-6,
            max_weight=12.0,
            threshold=0.4,
            neighbors=None,
        ),
    },
    "centered_clipping": {
        "aggregation": centered_clipping(radius=0.05, iterations=2),
        "attack": min_max(fraction=0.5, direction="std"),
    },
    "foolsgold": {
        "aggregation": foolsgold(confidence=0.1),
        "attack": alie(fraction=0.5, z=1.5),
    },
    "fltrust": {
        "aggregation": fltrust(),
        "attack": ipm(fraction=0.3, epsilon=2.0),
    },
}


def adversarial_channel(name, data):
    """The channel with an adversary. Label-flipping attacks also change the labels in `data`."""
    options = ADVERSARIES[name]
    attack = options.get("attack")
    attackers = (
        choose_attackers(data.candidates, attack.fraction, seed=data.seed) if attack else ()
    )
    if attack and attack.labels:
        data.relabel(sorted(attackers), attack.labels)
    return Channel(seed=data.seed, attackers=frozenset(attackers), **options)
