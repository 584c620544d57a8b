"""Which algorithms train a module that optimizes by hand, or with several optimizers."""

from flfast.algorithms.contract.algorithm import Algorithm
from flfast.algorithms.contract.downloads import joint_leaves
from flfast.state.tree import Tree


def refused_by(algorithm: Algorithm, initial: Tree) -> str | None:
    """Why an algorithm cannot train such a module, in a clause; None if it can.

    It must see no more than the start and the end of local training. `initial` are the weights
    before round 1.
    """
    every = (algorithm, *algorithm.calls)
    own = {one.objective(stage) for one in every for stage in one.training_stages}
    parts = [stage.trains for one in every for stage in one.training_stages if stage.trains]
    joint = joint_leaves(algorithm, initial)
    reasons = {
        "has a local objective of its own": own - {(Algorithm.loss, None)},
        "corrects gradients": any(one.correct for one in every),
        "trains parts of the model": any(initial["params"].keys() - {*part} for part in parts),
        "measures examples": any(one.training_stages != [*one.stages] for one in every),
        "trains leaves beside the model": joint["params"] or joint["buffers"],
        "keeps the state of an optimizer": any(one.kit.optimizer for one in every),
        "has an optimizer of its own": any(
            stage.optimizer for one in every for stage in one.training_stages
        ),
    }
    return next((why for why, holds in reasons.items() if holds), None)
