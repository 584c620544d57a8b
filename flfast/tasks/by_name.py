"""The tasks by name."""

from flfast.tasks.classification import CLASSIFICATION
from flfast.tasks.forecasting import FORECASTING
from flfast.tasks.language import LANGUAGE
from flfast.tasks.module import MODULE
from flfast.tasks.multilabel import MULTILABEL
from flfast.tasks.names import TaskName
from flfast.tasks.regression import REGRESSION
from flfast.tasks.segmentation import SEGMENTATION
from flfast.tasks.survival import SURVIVAL
from flfast.tasks.task_type import TaskType

TASKS: dict[TaskName, TaskType] = {
    task.name: task
    for task in (
        *(CLASSIFICATION, LANGUAGE, REGRESSION, MULTILABEL, SURVIVAL, FORECASTING),
        *(SEGMENTATION, MODULE),
    )
}
"""Every task by name."""
