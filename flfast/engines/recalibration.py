"""Measures BatchNorm statistics on a cohort's training data after each round: `bn=recalibrate`."""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.optim.swa_utils import update_bn

from flfast.engines.evaluation.passes import for_evaluation
from flfast.engines.site import Site
from flfast.lit.batchnorm import recalibration_bytes
from flfast.state.plan import RoundPlan
from flfast.state.randomness import generator
from flfast.state.tree import Tree
from flfast.state.weights import read_buffers, write_weights


def recalibrate_batchnorm(
    site: Site, server: Tree, cohort: Sequence[int], plan: RoundPlan
) -> tuple[Tree, int, int]:
    """Measure the server's BatchNorm statistics on batches that mix the cohort's examples.

    Returns:
        The server state with them, and the (down, up) bytes that this costs each client.
    """
    plan = for_evaluation(plan)
    trainer, model = site.trainers.trainer(plan).trainer, site.trainers.module(plan).model
    device = trainer.strategy.root_device
    write_weights(model, server)
    if model is site.model:  # otherwise a sharded copy, which is already on its device
        model.to(device)
    mixed = np.concatenate([site.data.train_clients.indices_of(k) for k in cohort])
    mixed = generator(site.data.seed, "recalibrate", plan.round_idx).permutation(mixed)
    with trainer.precision_plugin.forward_context():
        update_bn(_inputs(site, mixed, device), model)
    down, up = recalibration_bytes(site.model, site.algorithm.broadcast(server))
    return {**server, "buffers": read_buffers(model)}, down, up


def _inputs(site: Site, indices: np.ndarray, device: torch.device) -> Iterator[Tensor]:
    """Batches of inputs [B, ...]; a batch of one is left out, because it has no variance."""
    dtype = next(site.model.parameters()).dtype
    for batch in site.data.eval_loader(indices, device=device):
        if len(batch.targets) > 1 or len(indices) == 1:
            yield site.data.examples.transform(batch.inputs.to(device), dtype=dtype)
