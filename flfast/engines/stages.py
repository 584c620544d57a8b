"""What of a plan holds in a phase of local training."""

from flfast.algorithms.algorithm import LocalPhase
from flfast.plan import RoundPlan


def phase_plan(plan: RoundPlan, phase: LocalPhase) -> RoundPlan:
    """The plan with the phase's epochs, if it has its own and the plan counts epochs."""
    own = phase.epochs is not None and plan.local_epochs is not None
    return plan._replace(local_epochs=phase.epochs) if own else plan
