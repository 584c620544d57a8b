"""The task of a user's LightningModule: its `training_step` is the objective. And its habits."""

from typing import Any, NamedTuple, NoReturn

from lightning.fabric.utilities.exceptions import MisconfigurationException
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import get_proxy_mode

from flfast.datamodules.batches import Batch
from flfast.lit.task import LocalTask
from flfast.lit.user_module import UserModule, call_step, loss_of, observed
from flfast.state.tree import Tree
from flfast.state.weights import layer_inputs
from flfast.tasks.module import MODULE
from flfast.tasks.task_type import TaskType


class Habits(NamedTuple):
    """What a model does in local training.

    Attributes:
        unrepeatable: why it is no program, if that is known.
        logged_in_steps: names of numbers that each step logs.
        validates: whether it needs validation after each epoch.
    """

    unrepeatable: str | None = None
    logged_in_steps: tuple[str, ...] = ()
    validates: bool = False


class UnknownIndex:
    """The number of a batch while a program is recorded, which is for batches of any number."""

    def _refuse(self, *others: Any) -> NoReturn:
        raise NotImplementedError("the module reads batch_idx, which programs do not follow")

    __bool__ = __int__ = __index__ = __float__ = __lt__ = __le__ = __gt__ = __ge__ = _refuse
    __add__ = __radd__ = __sub__ = __mul__ = __rmul__ = __mod__ = __floordiv__ = _refuse
    __truediv__ = __eq__ = __ne__ = __hash__ = __format__ = _refuse


class SkippedStepError(Exception):
    """A training step returned None: there is nothing to learn from this batch."""


class ModuleTask(LocalTask):
    """See `LocalTask`. A batch's inputs are the user's own batch.

    Attributes:
        outputs: what the first call's training step returned.
        batch_idx: the batch's number in its epoch.
    """

    _model: UserModule

    def __init__(self, model: UserModule, **options: Any) -> None:
        super().__init__(model, MODULE, **options)
        self.outputs: Any = None
        self.batch_idx: int | UnknownIndex = UnknownIndex()
        self._is_first = True

    def __call__(self, params: Tree, batch: Batch) -> Tensor:
        """Loss [] of the training step with these weights; see `Task`."""
        is_first, self._is_first = self._is_first, False
        # An algorithm's further call is no step of the user's.
        silent = not (is_first and self._model.flfast_link.local is not None)
        recorded, logged = get_proxy_mode() is not None, self.logged if is_first else {}
        with observed(self._model, logged, silent=silent, recorded=recorded):
            outputs = self._method("training_step", params, batch)
        if is_first:
            self.outputs = outputs
        loss = loss_of(outputs)
        if loss is None:
            raise SkippedStepError
        return loss

    def losses(self, weights: Tree, batch: Batch) -> Tensor:
        """Refused: a step gives one loss for the whole batch."""
        raise self._lacks("losses of single examples")

    def logits(self, weights: Tree, batch: Batch) -> Tensor:
        """What the user's method `logits(batch)` returns, [B, C]; see `Task`."""
        if not callable(getattr(self._model, "logits", None)):
            raise self._lacks("logits; give it a method logits(self, batch) that returns [B, C]")
        found: Tensor = self._method("logits", weights, batch)
        return found

    def features(self, weights: Tree, batch: Batch, *, layer: str) -> tuple[Tensor, Tensor]:
        """Inputs of a layer in the training step, and the loss; see `Task`."""
        with layer_inputs(self._model, layer) as captured:
            loss = self(weights, batch)
        if len(captured) != 1:
            raise self._lacks(f"features: training_step calls {layer} {len(captured)} times")
        return captured[0], loss

    def _method(self, name: str, weights: Tree, batch: Batch) -> Any:
        """What a method of the user's returns with these weights."""
        with self._using(weights):
            return call_step(self._model, name, batch.inputs, self.batch_idx)

    def _lacks(self, what: str) -> MisconfigurationException:
        name = type(self._model).__name__
        return MisconfigurationException(f"model={name}: a LightningModule has no {what}")


def local_task(model: nn.Module, task_type: TaskType, **options: Any) -> LocalTask:
    """The task of a model: a user's LightningModule has its own."""
    if isinstance(model, UserModule):
        return ModuleTask(model, **options)
    return LocalTask(model, task_type, **options)
