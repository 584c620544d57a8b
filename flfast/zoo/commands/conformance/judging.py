"""Judges rows: a value, what it should be, and by how much it misses. Torch-free."""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from flfast.output.results.history import Row
from flfast.zoo.commands.conformance.row_files import Claim, ConformanceRow
from flfast.zoo.commands.conformance.run_measures import measured

Histories = Mapping[str, Mapping[int, Sequence[Row]]]
"""Rows of `metrics.csv` by variant and seed."""


class ClaimFinding(NamedTuple):
    """A claim and what the runs say; of a claim about each seed, the worst one.

    Attributes:
        claim: what should be true.
        value: of the variant.
        reference: the published number, or the value of the other variant.
        miss: by how much the value is beyond what is allowed; 0 if the claim holds, infinite if
            nothing was measured.
    """

    claim: Claim
    value: float
    reference: float
    miss: float

    @property
    def holds(self) -> bool:
        """Whether the claim is true."""
        return self.miss == 0

    @property
    def text(self) -> str:
        """The claim in words."""
        claim, other = self.claim, self.claim.than or f"{self.claim.published:g}"
        if claim.tolerance is not None:
            limit = f"is {other} ± {claim.tolerance:g}"
        elif claim.factor is not None:
            limit = f"is {claim.factor[0]:g} to {claim.factor[1]:g} times {other}"
        else:
            margin = claim.above if claim.above is not None else claim.below
            more = f" by {margin:g}" if margin else ""
            limit = f"is {'above' if claim.above is not None else 'below'} {other}{more}"
        return f"{claim.of} {limit}{', each seed' if claim.each else ''}"


class Judgement(NamedTuple):
    """What has become of a row.

    Attributes:
        row: the row.
        findings: by claim; empty if the row was not judged.
        seconds: that its runs trained and evaluated.
        reason: why it was not judged; empty if it was.
        failed: whether a run failed.
    """

    row: ConformanceRow
    findings: Sequence[ClaimFinding] = ()
    seconds: float = 0.0
    reason: str = ""
    failed: bool = False

    @property
    def holds(self) -> bool | None:
        """Whether all claims hold; None if the row was not run."""
        if self.failed:
            return False
        return None if self.reason else all(finding.holds for finding in self.findings)

    @property
    def verdict(self) -> str:
        """`holds`, `misses by ...`, `not run: ...` or `failed: ...`."""
        if self.reason:
            return f"{'failed' if self.failed else 'not run'}: {self.reason}"
        if self.holds:
            return "holds"
        worst = max(self.findings, key=lambda finding: finding.miss)
        by = f"by {worst.miss:.3g}" if math.isfinite(worst.miss) else "altogether"
        return f"misses {by}: {worst.text}"


def judge(row: ConformanceRow, histories: Histories) -> list[ClaimFinding]:
    """What the runs say about each claim of a row."""
    return [_finding(row, claim, histories) for claim in row.claims]


def _finding(row: ConformanceRow, claim: Claim, histories: Histories) -> ClaimFinding:
    values = _values(row, claim, claim.of, histories)
    if claim.than is None:
        assert claim.published is not None
        others = dict.fromkeys(values, claim.published)
    else:
        others = _values(row, claim, claim.than, histories)
    pairs = [(value, others[seed]) for seed, value in values.items()]
    if not claim.each:
        pairs = [(statistics.fmean(values.values()), statistics.fmean(others.values()))]
    found = [ClaimFinding(claim, *pair, _miss(claim, *pair)) for pair in pairs]
    return max(found, key=lambda finding: finding.miss)


def _values(
    row: ConformanceRow, claim: Claim, name: str, histories: Histories
) -> dict[int, float]:
    read = claim.read or row.read
    column = row.variants[name].column or read.column
    return {
        seed: measured(history, column, read.measure, window=read.window, target=read.target)
        for seed, history in histories[name].items()
    }


def _miss(claim: Claim, value: float, reference: float) -> float:
    if math.isnan(value) or math.isnan(reference):
        return math.inf  # not measured
    if math.isinf(value) and math.isinf(reference):
        return math.inf  # neither reaches the target
    low, high = claim.bounds(reference)
    return 0.0 if low <= value <= high else max(low - value, value - high)
