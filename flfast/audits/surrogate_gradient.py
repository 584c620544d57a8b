"""The gradient of a client's step, as the server can compute it for images that it guesses."""

from collections.abc import Collection, Sequence
from copy import deepcopy

import torch
from torch import Tensor, nn
from torch.func import functional_call

from flfast.audits.gradient_matching import Gradient
from flfast.lit.batchnorm import freeze
from flfast.lit.local_module import LocalModule
from flfast.state.tree import Tree


def surrogate_gradient(
    module: LocalModule, start: Tree, names: Collection[str], labels: Tensor
) -> Gradient:
    """Images [B, ...] -> gradient of the task's mean loss, by parameter.

    The model is in training mode, as the client's is, but without dropout, whose masks the server
    does not know. It is a copy on the CPU, in float32.

    Args:
        module: model and task; it stays as it is.
        start: weights that the client started from.
        names: names of the parameters, in order.
        labels: labels of the images, int64 [B].
    """
    model = deepcopy(module.model).cpu().float().train()
    freeze(model, frozen=module.freeze_batchnorm)
    for layer in model.modules():
        if isinstance(layer, nn.modules.dropout._DropoutNd):  # noqa: SLF001 - their common type
            layer.eval()
    given = {**start["params"], **start["buffers"]}
    weights = {
        name: given[name].detach().cpu().to(like.dtype).clone()
        for name, like in (*model.named_parameters(), *model.named_buffers())
        if name in given
    }
    trained = [weights[name].requires_grad_() for name in names]

    def gradient(images: Tensor) -> Sequence[Tensor]:
        # BatchNorm changes its statistics in place.
        buffers = {name: leaf.clone() for name, leaf in weights.items() if not leaf.requires_grad}
        outputs = functional_call(model, {**weights, **buffers}, (images,))
        loss = module.task_type.loss(outputs, labels)
        return torch.autograd.grad(loss, trained, create_graph=True, materialize_grads=True)

    return gradient
