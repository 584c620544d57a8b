"""FedGen: the server learns a generator of features from the clients' heads, which train on it.

Zhu, Hong, Zhou: Data-Free Knowledge Distillation for Heterogeneous Federated Learning. ICML 2021,
equations 4 and 5, Algorithm 1. https://arxiv.org/abs/2105.10056

    h_k(w) = F_k(w) + alpha * decay^(t-1) * sum_c p(c) * mean_e CE(head of w at G(c, e), c)
    G := Adam on sum_kc n_kc / n * mean_e CE(head of w_k at G(c, e), c) + similarity of G(c, e)

n_kc counts labels in the cohort. p(c) are the last cohort's shares, 0 in round 1. A client draws
its noise e once a round, the server in every step. The decay, the weights n_kc and the similarity
are the authors' code's, which also distils heads to the body, and has BatchNorm in G. Clients send
heads in rows, which the server averages: a robust rule can only leave some of them out. Bodies may
stay on the clients, as in HtFLlib, whose G learns from the mean logits of the heads.
"""

from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from flfast.algorithms.contract import Algorithm, Context, Finished, LocalStage, Task
from flfast.algorithms.contract.uploads import Part, Uploads
from flfast.algorithms.kit.keep_local import keep_local
from flfast.algorithms.kit.last_layer import LinearHead, linear_head
from flfast.algorithms.kit.model_groups import weighted_mean
from flfast.datamodules.batches import Batch
from flfast.state.optimizer_state import load_optimizer_state, state_tensors
from flfast.state.options import Count, NonNegative, Positive, PositiveUpToOne
from flfast.state.randomness import torch_generator
from flfast.state.tree import Tree, add, merge, without
from flfast.state.weights import model_weights

BANK = "generated/features"
"""Name of the buffer in which local training has features."""
NAME, NOISE_DIM, WEIGHT_DECAY = "algorithm=fedgen", 32, 0.01
"""For messages; the others are the values of the authors' code for MNIST."""


def fedgen(  # noqa: PLR0913 - one parameter an option
    *,
    alpha: NonNegative,
    decay: PositiveUpToOne,
    num_virtual: Count,
    hidden_dim: Count,
    server_steps: Count,
    server_lr: Positive,
    share: Literal["model", "head"],
    initial: Tree,
    seed: int,
) -> Algorithm:
    """FedAvg whose heads also train on generated features; see the YAML for the options."""
    top = linear_head(initial, None)
    generator = FeatureGenerator(top, num_virtual, hidden_dim, server_steps, server_lr, seed)
    bank, strengths = {"buffers": {BANK: generator.zeros()}}, generator.zeros()[:, 0, 0]
    wide = torch.promote_types(strengths.dtype, torch.float32)
    start = {"generator": generator.initial(), "strengths": strengths}

    def loss(task: Task, params: Tree, batch: Batch, ctx: Context) -> Tensor:
        errors = class_errors(top.logits(params, params[BANK]))
        return task(params, batch) + (ctx.server["strengths"].to(errors) * errors).sum()

    def finish(done: Finished, ctx: Context) -> tuple[Tree, Tree]:
        change = ctx.change(done.weights)
        heads = {name: change["params"][name] for name in top.names}
        rest = without(change, merge(top.initial, bank))
        return {**rest, "heads": heads, "labels": ctx.facts["labels"]}, {}

    def server_step(server: Tree, uploads: Uploads) -> Tree:
        changes, labels = uploads.rows["heads"], uploads.rows["labels"]
        heads = {name: server["params"][name] + rows for name, rows in changes.items()}
        made, adam = generator.trained(server, heads, labels, uploads.round)
        shares = (labels.sum(0) / labels.sum().clamp(min=1)).to(strengths)
        new = {"generator": made, "adam": adam, "strengths": alpha * decay**uploads.round * shares}
        head = {n: weighted_mean(rows, uploads.weights).to(wide) for n, rows in changes.items()}
        return {**add(server, merge(uploads.mean, {"params": head})), **new}

    federated = Algorithm(
        name="fedgen",
        tasks=("classification",),
        facts=("labels",),
        server_state=lambda weights: {**weights, **start, "adam": {}},
        broadcast=lambda server: {**model_weights(server), **{n: server[n] for n in start}},
        start=lambda broadcast, client: merge(model_weights(broadcast), bank),
        stages=(LocalStage(loss=loss, begin=generator.begin),),
        finish=finish,
        parts={"heads": Part("rows"), "labels": Part("rows", learned=False)},
        server_step=server_step,
    )
    return federated if share == "model" else keep_local(federated, without(initial, top.initial))


class FeatureGenerator(NamedTuple):
    """G(c, e) = V relu(U e + u_c) + v, features of class c from normal noise e."""

    head: LinearHead
    num_per_class: int
    hidden_dim: int
    steps: int
    lr: float
    seed: int

    def initial(self) -> Tree:
        """Weights before round 1, uniform as those of `nn.Linear`."""
        num_classes, num_features = self.head.shape
        rng = torch_generator(self.seed, "initial generator")
        fan_in = NOISE_DIM + num_classes  # the noise, and a one-hot class

        def uniform(*shape: int, fan_in: int) -> Tensor:
            values = torch.rand(shape, generator=rng, dtype=torch.float32) * 2 - 1
            return (values * fan_in**-0.5).to(self.zeros())

        return {
            "U": uniform(self.hidden_dim, NOISE_DIM, fan_in=fan_in),
            "u": uniform(num_classes, self.hidden_dim, fan_in=fan_in),
            "V": uniform(num_features, self.hidden_dim, fan_in=self.hidden_dim),
            "v": uniform(num_features, fan_in=self.hidden_dim),
        }

    def zeros(self) -> Tensor:
        """Zeros of the shape of features of every class, [C, M, D]."""
        weight: Tensor = self.head.initial["params"][self.head.names[0]]
        return weight.new_zeros(len(weight), self.num_per_class, weight.shape[1])

    def draw(self, weights: Tree, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        """Features of every class [C, M, D], and their noise [C, M, E]."""
        shape = (len(weights["u"]), self.num_per_class, NOISE_DIM)
        noise = torch.randn(shape, generator=rng, dtype=torch.float32).to(weights["U"])
        hidden = (F.linear(noise, weights["U"]) + weights["u"].unsqueeze(1)).relu()
        return F.linear(hidden, weights["V"], weights["v"]), noise

    def begin(self, weights: Tree, ctx: Context) -> Tree:
        """The weights of local training with features that it draws once."""
        z, _ = self.draw(ctx.server["generator"], ctx.generator("features"))
        return merge(weights, {"buffers": {BANK: z}})

    @torch.enable_grad()
    def trained(
        self, server: Tree, heads: Tree, labels: Tensor, round_idx: int
    ) -> tuple[Tree, Tree]:
        """(weights, state of Adam) after a round's steps, for heads [K, ...] and labels [K, C]."""
        own = {name: nn.Parameter(leaf.clone()) for name, leaf in server["generator"].items()}
        optimizer = torch.optim.Adam(own.values(), lr=self.lr, weight_decay=WEIGHT_DECAY)
        if server["adam"]:
            load_optimizer_state(optimizer, server["adam"], own)
        shares = (labels / labels.sum().clamp(min=1)).to(own["U"])
        heads = {name: leaf.clone() for name, leaf in heads.items()}
        rng = torch_generator(self.seed, "generator", round_idx)
        for _ in range(self.steps):
            optimizer.zero_grad()
            z, noise = self.draw(own, rng)
            clients = ({n: rows[k] for n, rows in heads.items()} for k in range(len(labels)))
            errors = torch.stack([class_errors(self.head.logits(head, z)) for head in clients])
            ((shares * errors).sum() + similarity(z, noise)).backward()
            optimizer.step()
        adam = {n: state_tensors(optimizer.state[p], option=NAME) for n, p in own.items()}
        return {name: p.detach() for name, p in own.items()}, adam


def class_errors(logits: Tensor) -> Tensor:
    """Mean cross-entropy by class [C], of logits [C, M, C] of M features of each class.

    >>> class_errors(torch.tensor([[[0.0, 0.0]], [[0.0, 1.0]]]))
    tensor([0.6931, 0.3133])
    """
    return -logits.log_softmax(2).diagonal(dim1=0, dim2=2).mean(0)


def similarity(z: Tensor, noise: Tensor) -> Tensor:
    """exp(-mean_ij |e_i - e_j|^2 / E * |z_i - z_j|_1 / D) []: low if features vary with noise."""
    z, noise = z.flatten(0, 1), noise.flatten(0, 1)
    far = torch.cdist(z, z, p=1) / z.shape[1]
    return torch.exp(-(far * torch.cdist(noise, noise).square() / noise.shape[1]).mean())
