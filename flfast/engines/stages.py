"""What of a plan holds in a stage of local training."""

from flfast.algorithms.algorithm import LocalStage
from flfast.plan import RoundPlan


def stage_plan(plan: RoundPlan, stage: LocalStage) -> RoundPlan:
    """The plan with the stage's epochs, if it has its own and the plan counts epochs."""
    own = stage.epochs is not None and plan.local_epochs is not None
    return plan._replace(local_epochs=stage.epochs) if own else plan
