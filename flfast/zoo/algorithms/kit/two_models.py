"""A shared model and a client's own one, which train in the same local steps.

Both have the architecture of the run's model; or the shared one is a small `common` model beside
models of any architecture (`model.common`). Only changes of the shared model are uploaded.
"""

from collections.abc import Mapping
from copy import deepcopy
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.nn import functional as F

from flfast.algorithms.contract import Batch, Context, Finished, Task
from flfast.algorithms.kit.last_layer import LinearHead
from flfast.algorithms.kit.own_module import OwnModule
from flfast.algorithms.kit.second_model import personal_part, upload_shared, with_personal
from flfast.models.adapters.layer_names import layer_of
from flfast.models.family import with_same_features
from flfast.state.tree import Tree, merge, part_of
from flfast.state.weights import model_weights


class Outputs(NamedTuple):
    """Features [B, D] of one model, its mean loss [], and its logits [B, C]."""

    features: Tensor
    loss: Tensor
    logits: Tensor


class TwoModels:
    """The two models of a client.

    Args:
        common: the shared model; None: it has the architecture of the client's own one.
        initial: weights of the run's model before round 1.
        seed: seed of the run.
        beside: what trains with the client's own model and stays with it, before round 1.
        common_dim: number of features of `common`, with a new head; None leaves it as it is.

    Attributes:
        shared: weights of the shared model before round 1.
        fields: of an `Algorithm` that trains both, and federates the shared one.
    """

    def __init__(
        self,
        common: nn.Module | None,
        initial: Tree,
        seed: int,
        *,
        beside: Tree | None = None,
        common_dim: int | None = None,
    ) -> None:
        beside = beside or {"params": {}, "buffers": {}}
        self._common: OwnModule | None = None
        self.shared = initial
        if common is None:
            self.fields: Mapping[str, Any] = {
                "client_state": lambda broadcast: merge(model_weights(broadcast), beside),
                "start": with_personal,
                "finish": upload_shared,
            }
            return

        def make() -> nn.Module:
            return with_same_features(deepcopy(common), common_dim) if common_dim else common

        own = merge(initial, beside)
        self._common = OwnModule("common", make, initial, seed=seed)
        self.shared = shared = self._common.initial
        self._layer = layer_of(list(shared["params"])[-1]).removeprefix(".common.")

        def finish(done: Finished, ctx: Context) -> tuple[Tree, Tree]:
            return ctx.change(part_of(done.weights, shared)), part_of(done.weights, own)

        self.fields = {
            "evaluate_server": False,
            "server_state": lambda weights: shared,
            "client_state": lambda broadcast: own,
            "start": lambda broadcast, client: merge(model_weights(broadcast), client),
            "finish": finish,
        }

    def own_part(self, params: Tree) -> Tree:
        """Leaves of the client's own model by name, of all that train."""
        return params if self._common is not None else personal_part(params)

    def logits(self, task: Task, params: Tree, batch: Batch) -> tuple[Tensor, Tensor]:
        """Logits [B, C] of the shared model, and of the client's own one."""
        if self._common is None:
            return task.logits(params, batch), task.logits(personal_part(params), batch)
        return self._common(params, batch.inputs), task.logits(params, batch)

    def outputs(
        self, task: Task, params: Tree, batch: Batch, top: LinearHead
    ) -> tuple[Outputs, Outputs]:
        """What the shared model computes, and the client's own one with the last layer `top`."""

        def of(weights: Tree) -> Outputs:
            z, loss = task.features(weights, batch, layer=top.layer)
            return Outputs(z, loss, top.logits(weights, z))

        if self._common is None:
            return of(params), of(self.own_part(params))
        z, logits = self._common.features(params, batch.inputs, layer=self._layer)
        errors = F.cross_entropy(logits, batch.targets, reduction="none")
        return Outputs(z, task.mean(errors), logits), of(params)

    def personal(self, broadcast: Tree, client: Tree) -> Tree:
        """Weights of the client's own model, and beside them those of the shared one."""
        if self._common is None:
            return with_personal(client, model_weights(broadcast))
        return merge(model_weights(broadcast), client)

    def fixed_features(
        self, task: Task, weights: Tree, batch: Batch, top: LinearHead
    ) -> tuple[Tensor, Tensor]:
        """Features [B, D] of the shared and the own model in evaluation mode, of `personal`."""
        own = top.fixed_features(task, weights, batch)
        if self._common is None:
            return top.fixed_features(task, personal_part(weights), batch), own
        return self._common.features(weights, batch.inputs, layer=self._layer)[0].detach(), own
