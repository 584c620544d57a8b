"""What an author of an algorithm reads: the algorithm, its client, uploads and records."""

from flfast.algorithms.contract.algorithm import Algorithm, Round, ServerCall, Weighting
from flfast.algorithms.contract.client import (
    Context,
    Fact,
    Finished,
    Gradient,
    KitFunctions,
    LocalStage,
    Measure,
    Objective,
    Task,
)
from flfast.algorithms.contract.records import Record, Records
from flfast.algorithms.contract.uploads import Part, Uploads
from flfast.datamodules.batches import Batch

__all__ = ["Algorithm", "Batch", "Context", "Fact", "Finished", "Gradient", "KitFunctions"]
__all__ += ["LocalStage", "Measure", "Objective", "Part", "Record", "Records", "Round"]
__all__ += ["ServerCall", "Task", "Uploads", "Weighting"]
