"""Sizes of the messages of a round, found by training one client for one step."""

from contextlib import suppress

from flfast.engines.engine import Engine
from flfast.federation.calls import Calls, DivergedError, NoUploadsError
from flfast.federation.samplers.cohort import Cohort
from flfast.federation.sampling import NOBODY
from flfast.state.plan import RoundPlan
from flfast.state.tree import Tree


def message_bytes(engine: Engine, initial: Tree, plan: RoundPlan) -> tuple[int, int]:
    """Bytes that a client downloads and uploads in a round, in all of its calls; collective.

    Found by a round with one client and one local step, which is forgotten. An algorithm that
    needs several clients for a call counts up to that call.
    """
    data, algorithm = engine.site.data, engine.site.algorithm
    calls = Calls(
        engine.forgetful(),
        Cohort(data.candidates[:1], NOBODY),
        plan._replace(local_steps=1, local_epochs=None),
        orders={},
        population=len(data.candidates),
        on_client=lambda report: None,
    )
    with suppress(NoUploadsError, DivergedError):  # messages of that call are counted, too
        algorithm.one_round(algorithm.server_state(initial), calls)
    return calls.down_bytes, calls.up_bytes
