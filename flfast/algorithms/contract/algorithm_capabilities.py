"""What an algorithm needs of a run and what it breaks, read from its fields."""

from flfast.algorithms.contract.algorithm import Algorithm
from flfast.algorithms.contract.downloads import shared_weights
from flfast.state.capabilities import Capabilities
from flfast.state.tree import Tree, leaves
from flfast.state.weights import WEIGHTS
from flfast.tasks.names import METRICS


def capabilities_of(algorithm: Algorithm, initial: Tree) -> Capabilities:
    """The capabilities of an algorithm, wrapped or not.

    `initial` are the weights of the model before round 1.
    """
    own_weights = algorithm.has_own_weights or None
    breaks: dict[str, str | None] = {
        **_of_parts(algorithm, shared_weights(algorithm, initial)),
        "equal clients": own_weights and "clients count something of their own",
        "one broadcast": "every client gets something else" if algorithm.send else None,
        "one call": "its rounds are more than one call of the clients"
        if algorithm.round
        else None,
        "server model": None if algorithm.evaluate_server else "the server's model is incomplete",
        "one objective": _why_not_one_objective(algorithm),
    }
    tasks = [task for task in METRICS if algorithm.works_for(task)]
    breaks |= dict.fromkeys(METRICS.keys() - tasks, f"it is for {', '.join(tasks)}")
    if any(local.has_own_weights for local in (algorithm, *algorithm.cohort_calls)):
        breaks["known weights"] = "its weights are not numbers of examples"
    needs: dict[str, object] = {
        "rounds": algorithm.round or algorithm.send or algorithm.record,
        "server examples": algorithm.server_calls or "public" in algorithm.facts,
    }
    return Capabilities(
        frozenset(name for name, is_needed in needs.items() if is_needed),
        {name: why for name, why in breaks.items() if why},
    )


def _of_parts(algorithm: Algorithm, shared: Tree) -> dict[str, str | None]:
    """What the parts of uploads break.

    `shared` are the weights whose changes clients upload.
    """
    every = (algorithm, *algorithm.cohort_calls)
    parts = [pair for local in every for pair in local.parts.items()]
    rows = [name for name, part in parts if part.rule == "rows"]
    bare = [name for name, part in parts if not part.learned or part.over is not None]
    if not bare and any(not leaf.is_floating_point() for leaf in leaves(shared)):
        bare = ["counts of BatchNorm (model.norm=group and bn=local have none)"]
    if not bare and algorithm.has_own_weights:
        bare = ["weights that clients compute from their examples"]
    others = [
        name
        for name, part in algorithm.parts.items()
        if part.learned and (part.over or part.rule == "sum" or part.stale == "refuse")
    ]
    combined = sorted(algorithm.parts.keys() & {*WEIGHTS})
    sliced = algorithm.kit.place and "its uploads are parts of the model of different sizes"
    return {
        "equal uploads": sliced,
        "sums": f"the server needs {rows[0]} of each client" if rows else sliced,
        "protected parts": f"its uploads have {bare[0]}" if bare else None,
        "changes": f"its uploads have {others[0]}, which is no change" if others else None,
        "changes that mix": f"it combines changes of {combined[0]} in its own way"
        if combined
        else None,
    }


def _why_not_one_objective(algorithm: Algorithm) -> str | None:
    """Why clients do more than one training stage of a plain objective; None if they do not."""
    stages = algorithm.training_stages
    reasons = {
        "it calls clients for more than local training": algorithm.calls,
        "it measures clients' examples beside training": len(stages) < len(algorithm.stages),
        "it uses how many examples of each class a client has": "labels" in algorithm.facts,
        f"it trains in {len(stages)} stages": len(stages) != 1,
        "it sets its own number of local epochs": any(s.epochs is not None for s in stages),
        "its local steps are no gradient of an objective": any(
            algorithm.objective(stage)[1] is not None for stage in stages
        ),
        "its objective compares the examples of a batch": not algorithm.separable,
    }
    return next((reason for reason, holds in reasons.items() if holds), None)
