"""What a call gives: a report of each client, and the mean of the uploads."""

from collections.abc import Sequence
from typing import NamedTuple

from flfast.algorithms.contract import Uploads
from flfast.channel.reduced import Reduced, Reduction, Specs
from flfast.channel.sent import NOT_SELECTED, ClientReport
from flfast.distributed.world import World, common_spec, gather


class Trained(NamedTuple):
    """The result of a cohort's call.

    Attributes:
        uploads: as the server step gets them; None if too few arrived.
        reports: one per client, in the order of the cohort.
        shortage: the reason if too few uploads arrived; otherwise empty.
        down_bytes: that each client downloaded.
    """

    uploads: Uploads | None
    reports: list[ClientReport]
    shortage: str
    down_bytes: int


def exchange(
    world: World, reports: list[ClientReport], reduction: Reduction, cohort: Sequence[int]
) -> tuple[list[ClientReport], Specs | None]:
    """All ranks' reports in the order of the cohort, and what uploads look like; collective.

    Both are sent together: each exchange takes as long as a message to the furthest rank.
    """
    together = world.size > 1
    rows = [*map(tuple, reports)]  # pickled several times as fast as named tuples
    ranks = gather(world, (rows, reduction.specs() if together else []), "reports")
    place = {client_id: i for i, client_id in enumerate(cohort)}
    ordered = [ClientReport(*row) for part, _ in ranks for row in part]
    ordered.sort(key=lambda report: place[report.client_id])
    if not together:
        return ordered, None
    return ordered, [common_spec(specs) for specs in zip(*(s for _, s in ranks), strict=True)]


def after_reduction(report: ClientReport, reduced: Reduced) -> ClientReport:
    """A client's report with what the reduction decided or cost."""
    if report.client_id in reduced.left_out:
        return report.refused(NOT_SELECTED)
    if report.accepted and report.client_id in reduced.unhelpful:
        report = report._replace(reason=reduced.unhelpful[report.client_id])
    if reduced.traffic is not None and report.accepted:
        return report._replace(up_bytes=reduced.traffic.up)
    return report
