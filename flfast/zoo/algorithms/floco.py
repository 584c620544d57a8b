"""Floco: clients train regions of a simplex of classifiers, near clients the same region.

Grinwald, Wiesner, Nakajima: Federated Learning over Connected Modes. NeurIPS 2024.
https://arxiv.org/abs/2403.03333

    W(a) = sum_m a_m * E_m,   a in the standard simplex
    (w_k, E_k) := SGD on the loss of (w, W(a)), with a new a in every local step
    a ~ uniform on the simplex before round tau, then c_k + r * u, r ~ U(0, rho), |u|_1 = 1
    c_k = project(PCA_M(changes of E by client k before tau))

W is the weight of the last layer, and w is all else. The server's model has W(1/M, ..., 1/M), and
that of client k has W(c_k). `positions` has the projection, of github.com/dennis-grinwald/floco.
There all clients train once more in round tau, and these changes are projected. Defaults are those
of Flower's baseline (Dirichlet), which projects all clients' changes in round tau - 1 with the
opposite sign. Here it is each client's last change before tau, and a client without one keeps the
whole simplex. In all of them a may leave it. Endpoints begin at random: of `init_from`, the last
layer's weight is not used. The paper could not be read beside the code. Floco+ is not here.
"""

from operator import itemgetter
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from flfast.algorithms.contract.algorithm import Algorithm, Weighting
from flfast.algorithms.contract.client import Context, Finished, LocalStage, Task
from flfast.algorithms.contract.uploads import Part, Uploads
from flfast.algorithms.kit.last_layer import linear_head
from flfast.algorithms.kit.model_groups import weighted_mean
from flfast.datamodules.batches import Batch
from flfast.state.near_ties import first_lowest
from flfast.state.options import Count, NonNegative, Several
from flfast.state.randomness import torch_generator
from flfast.state.traced_noise import traced_uniform
from flfast.state.tree import Tree, add, merge, tree_map, without
from flfast.state.weights import model_weights
from flfast.zoo.algorithms.kit.nearest_mixture import nearest_mixture

ENDPOINTS, KEY, STEP = "floco/endpoints", "floco/key", "floco/step"
SIZES = torch.linspace(1e-4, 1, 1000, dtype=torch.float64)


def floco(  # noqa: PLR0913 - one parameter an option
    *,
    num_endpoints: Count,
    tau: Several,
    rho: NonNegative,
    head: list[str] | None,
    weighting: Weighting,
    initial: Tree,
    num_clients: int,
    seed: int,
) -> Algorithm:
    """FedAvg of a simplex of last layers, in which clients get regions of their own."""
    name = linear_head(initial, head).names[0]
    simplex = _Simplex(name, initial["params"][name], num_endpoints, tau)

    def loss(task: Task, params: Tree, batch: Batch, ctx: Context) -> Tensor:
        own = params[ENDPOINTS]
        u = traced_uniform(params[KEY], params[STEP], 2 * num_endpoints + 1, own)
        a = mixture(u, ctx.server["centre"].to(u), ctx.server["placed"], rho).to(own)
        params[STEP].add_(1)
        return task({**params, name: torch.tensordot(a, own, 1)}, batch)

    def begin(weights: Tree, ctx: Context) -> Tree:
        key = torch.randint(2**62, (), generator=ctx.generator("floco"))
        return merge(weights, {"buffers": {KEY: key}})

    trains = [*(other for other in initial["params"] if other != name), ENDPOINTS]
    return Algorithm(
        name="floco",
        weighting=weighting,
        server_state=lambda weights: simplex.server_state(weights, num_clients, seed),
        broadcast=simplex.broadcast,
        send=lambda server, _, clients: tree_map(itemgetter([*clients]), server["regions"]),
        start=simplex.start,
        stages=(LocalStage(trains, begin=begin),),
        loss=loss,
        separable=False,
        finish=simplex.finish,
        parts={"endpoints": Part("rows")},
        server_step=simplex.server_step,
        personal=lambda download, client: simplex.model(download),
    )


class _Simplex(NamedTuple):
    """M endpoints in place of a weight [C, D]; clients have regions from round tau on."""

    name: str
    like: Tensor
    num: int
    tau: int

    def server_state(self, weights: Tree, num_clients: int, seed: int) -> Tree:
        """Endpoints from the normal distribution of Glorot and Bengio, and no regions."""
        rng = torch_generator(seed, "floco endpoints")
        noise = torch.randn(self.num, *self.like.shape, generator=rng).to(self.like)
        endpoints = noise * (2 / sum(self.like.shape)) ** 0.5
        regions = {
            "centre": self.like.new_full((num_clients, self.num), 1 / self.num),
            "placed": torch.zeros(num_clients, dtype=torch.bool),
        }
        changes = self.like.new_zeros(num_clients, endpoints.numel())
        state = {**weights, "endpoints": endpoints, "regions": regions, "changes": changes}
        return merge(state, {"params": {self.name: endpoints.mean(0)}})

    def broadcast(self, server: Tree) -> Tree:
        """The model without the weight, and the endpoints."""
        rest = without(model_weights(server), {"params": {self.name: 0}})
        return {**rest, "endpoints": server["endpoints"]}

    def model(self, download: Tree) -> Tree:
        """A client's model, of the centre of its region."""
        weight = torch.tensordot(download["centre"], download["endpoints"], 1)
        return merge(model_weights(download), {"params": {self.name: weight}})

    def start(self, download: Tree, client: Tree) -> Tree:
        """The model with the endpoints beside it."""
        zero = torch.zeros((), dtype=torch.int64)
        own = {"params": {ENDPOINTS: download["endpoints"]}, "buffers": {KEY: zero, STEP: zero}}
        return merge(self.model(download), own)

    def finish(self, done: Finished, ctx: Context) -> tuple[Tree, Tree]:
        """Changes of the endpoints and of all else but the weight."""
        change = ctx.change(done.weights)
        own = {"params": {ENDPOINTS: 0, self.name: 0}, "buffers": {KEY: 0, STEP: 0}}
        return {**without(change, own), "endpoints": change["params"][ENDPOINTS]}, {}

    def server_step(self, server: Tree, uploads: Uploads) -> Tree:
        """Add the mean, and place clients once, in the first step from round tau - 1 on."""
        rows, changes = uploads.rows["endpoints"], server["changes"]
        mean = {"endpoints": weighted_mean(rows, uploads.weights).to(rows)}
        new = add(server, uploads.mean | mean)
        new = merge(new, {"params": {self.name: new["endpoints"].mean(0)}})
        if server["regions"]["placed"].any():
            return new
        changes = changes.index_copy(0, uploads.clients, rows.flatten(1).to(changes))
        if uploads.round < self.tau - 1:
            return {**new, "changes": changes}
        placed, centres = changes.any(1), server["regions"]["centre"].clone()
        centres[placed] = positions(changes[placed], self.num).to(centres)
        regions = {"centre": centres, "placed": placed}
        return {**new, "regions": regions, "changes": torch.zeros_like(changes)}


def mixture(u: Tensor, centre: Tensor, placed: Tensor, rho: float) -> Tensor:
    """Weights a [M] of the endpoints in a local step.

    Args:
        u: uniform numbers in (0, 1], [2 M + 1].
        centre: c of the client [M].
        placed: whether the client has one; otherwise a is uniform on the simplex.
        rho: largest distance |a - c|_1.
    """
    waits, (sides, far) = -u[: len(centre)].log(), u[len(centre) :].split([len(centre), 1])
    near = centre + rho * far * F.normalize(2 * sides - 1, p=1, dim=0)
    return torch.where(placed, near, waits / waits.sum())


def positions(changes: Tensor, num: int) -> Tensor:
    """Points [n, M] on the simplex for clients with changes [n, P], float64.

    The first M principal components are projected on simplices of several sizes, which are scaled
    to 1. Of these, the one with the lowest Riesz energy, sum |c_i - c_j|^-2, spreads clients best.
    """
    moves = changes.double() - changes.double().mean(0)
    left, lengths, right = torch.linalg.svd(moves, full_matrices=False)
    # The largest loading is positive, as in scikit-learn. Rows of two classes are opposite.
    signs = right.gather(1, first_lowest(-right.abs()).unsqueeze(1)).sign().flatten()
    scores = (left * lengths * signs)[:, :num]
    scores = F.pad(scores, (0, num - scores.shape[1]))
    tried = (nearest_mixture(scores / size) for size in SIZES)
    # Clients that are nearer than 1e-4 to each other count as so far apart.
    return min(tried, key=lambda c: float(F.pdist(c).clamp(min=1e-4).pow(-2).sum()))
