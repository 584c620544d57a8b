"""What an author of an algorithm reads: the algorithm, its client, uploads and records."""

from flfast.algorithms.contract.algorithm import ARGUMENTS, Algorithm, Round, Weighting
from flfast.algorithms.contract.client import (
    Context,
    Fact,
    Finished,
    Gradient,
    LocalStage,
    Measure,
    Objective,
    Task,
)
from flfast.algorithms.contract.records import Records
from flfast.algorithms.contract.uploads import Part, Uploads
from flfast.datamodules.batches import Batch

__all__ = ["ARGUMENTS", "Algorithm", "Batch", "Context", "Fact", "Finished", "Gradient"]
__all__ += ["LocalStage", "Measure", "Objective", "Part", "Records", "Round", "Task"]
__all__ += ["Uploads", "Weighting"]
