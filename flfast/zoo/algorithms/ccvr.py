"""CCVR: the server retrains the head of FedAvg's model on virtual features of all classes.

Luo, Chen, Hu, Zhang, Liang, Feng: No Fear of Heterogeneity: Classifier Calibration for Federated
Learning with Non-IID Data. NeurIPS 2021, section 4. https://arxiv.org/abs/2106.05001

    mean_c = sum_k sum_{i in k, y_i = c} z_i / N_c,   z = features before the head
    cov_c = (sum_k sum_{i in k, y_i = c} z_i z_i' - N_c * mean_c mean_c') / (N_c - 1)
    head = SGD on cross-entropy of num_virtual draws of N(mean_c, cov_c) for each class c

cov_c equals the paper's, combined from covariances of clients. A second call of the cohort
measures z of the new model. The calibrated head is evaluated and saved, but never sent, so with
bn=local nobody uses it. The paper calibrates once, with all clients: set first_round to `rounds`.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from flfast.algorithms.contract import Algorithm, Context, Finished, Measure, Part, Round, Task
from flfast.algorithms.kit.last_layer import linear_head
from flfast.datamodules.batches import Batch
from flfast.state.options import Count, NonNegativeInt, Positive
from flfast.state.precision import widened
from flfast.state.randomness import torch_generator
from flfast.state.tree import Tree, add, merge, tree_map
from flfast.zoo.algorithms.kit.descent import batches, descended

RULES = {"counts": Part("sum", learned=False), "sums": Part("sum"), "products": Part("sum")}
RANK = 1e-6
"""Directions with less variance, relative to the largest, have none: it would be rounding."""


def ccvr(  # noqa: PLR0913 - one parameter an option
    *,
    num_virtual: Count,
    epochs: NonNegativeInt,
    batch_size: Count,
    head_lr: Positive,
    first_round: Count,
    head: list[str] | None,
    initial: Tree,
    seed: int,
) -> Algorithm:
    """FedAvg whose head is calibrated for evaluation; see the YAML for the options."""
    top = linear_head(initial, head)
    like = top.initial["params"][top.names[0]]

    def moments(task: Task, weights: Tree, batch: Batch, ctx: Context) -> Tree:
        z = task.fixed_features(weights, batch, layer=top.layer)
        return class_moments(z, batch.targets, len(like))

    def finish(done: Finished, ctx: Context) -> tuple[Tree, Tree]:
        return tree_map(lambda leaf: leaf.to(like.dtype), ctx.measured["moments"]), ctx.client

    measuring = Algorithm(
        name="ccvr's moments", stages=(Measure("moments", moments),), finish=finish, parts=RULES
    )

    def run(server: Tree, rnd: Round) -> Tree:
        trained = add(server["trained"], rnd.call(server).mean)
        stepped = {**trained, "trained": trained}
        if epochs == 0 or rnd.number < first_round:
            return stepped
        rng = torch_generator(seed, "virtual features", rnd.number)
        features, labels = gaussian_features(rnd.call(trained, measuring).mean, num_virtual, rng)

        def loss(weights: Tree, at: Tensor) -> Tensor:
            return F.cross_entropy(top.logits(weights, features[at]), labels[at])

        old = {name: trained["params"][name] for name in top.names}
        start = {name: p.to(features.dtype) for name, p in old.items()}
        new = descended(start, loss, batches(len(labels), batch_size, epochs, rng), lr=head_lr)
        return merge(stepped, {"params": {name: new[name].to(p.dtype) for name, p in old.items()}})

    return Algorithm(
        name="ccvr",
        tasks=("classification",),
        server_state=lambda weights: {**weights, "trained": weights},
        broadcast=lambda server: server["trained"],
        round=run,
        calls=(measuring,),
    )


def class_moments(z: Tensor, targets: Tensor, num_classes: int) -> Tree:
    """Sums over features z [B, D] by class, in the widest type.

    Returns:
        `counts` [C], `sums` [C, D], and `products`, sums of z z' [C, D, D].
    """
    z = widened(z)
    own = F.one_hot(targets, num_classes).to(z)
    products = torch.einsum("bc,bi,bj->cij", own, z, z)
    return {"counts": own.sum(0), "sums": own.T @ z, "products": products}


def gaussian_features(
    moments: Tree, num_per_class: int, rng: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Draws of the normal distribution of every class, and their labels; float64 [M, D] and [M].

    Classes without examples have no draws, and those of one example have equal ones. `moments` are
    `class_moments` of all examples, and `rng` is on the CPU.
    """
    counts, sums, products = (moments[n].double() for n in ("counts", "sums", "products"))
    means = sums / counts.clamp(min=1).unsqueeze(1)
    centred = products - torch.einsum("ci,cj->cij", sums, means)
    covariances = centred / (counts - 1).clamp(min=1).view(-1, 1, 1)
    # The symmetric root: eigenvectors alone depend on the machine, if eigenvalues are equal.
    values, vectors = torch.linalg.eigh(covariances)
    floor = RANK * values.amax(1, keepdim=True).clamp(min=0)
    scales = torch.where(values > floor, values, 0).sqrt()
    roots = (vectors * scales.unsqueeze(1)) @ vectors.mT
    shape = (len(means), num_per_class, means.shape[1])
    noise = torch.randn(shape, generator=rng, dtype=torch.float64)
    present = counts > 0
    features = (means.unsqueeze(1) + noise @ roots)[present].flatten(0, 1)
    return features, torch.arange(len(means))[present].repeat_interleave(num_per_class)
