"""What the server of a deployment asks its clients for, with the range of each number."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from flfast.channel.wire import Count, NonNegative, Positive
from flfast.state.plan import Batching, LastBatch, RoundPlan

_Fraction = Annotated[float, Field(strict=True, gt=0, le=1)]
_Passes = Annotated[int, Field(strict=True, ge=0, le=10**6)]
_Call = tuple[Count, Count, Count]
"""A `Position`."""


class _Batching(BaseModel, strict=True, extra="forbid"):
    batch_size: Literal[-1] | Positive
    accumulate: Positive
    micro_batch: Positive | None
    last_batch: LastBatch
    drop_single: bool
    limit: Count | NonNegative | None


class _Told(BaseModel, strict=True, extra="forbid"):
    """Fields of a plan that the server decides on; devices and precision are the client's own."""

    round_idx: Positive
    phase: Count
    lr: NonNegative
    local_epochs: _Passes | None
    local_steps: _Passes | None
    work_fraction: _Fraction
    batching: _Batching


class TrainOrder(BaseModel):
    """Asks for an upload; see `RemoteCohort.train`."""

    call: str
    position: _Call
    oldest: Count
    plan: _Told

    def applied(self, plan: RoundPlan) -> RoundPlan:
        """A plan of the client's machine with what the server decides on."""
        told = {**dict(self.plan), "batching": Batching(**self.plan.batching.model_dump())}
        return plan._replace(**told)


class EvaluateOrder(BaseModel):
    """Asks for metrics; see `RemoteCohort.evaluate`."""

    before: _Call
    round: Count
    fraction: _Fraction


def told(plan: RoundPlan) -> dict[str, Any]:
    """What a client is told of its plan."""
    facts = {name: getattr(plan, name) for name in _Told.model_fields}
    return {**facts, "batching": plan.batching._asdict()}
