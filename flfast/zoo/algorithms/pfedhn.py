"""pFedHN: a hypernetwork on the server makes every client's model of an embedding of the client.

Shamsian, Navon, Fetaya, Chechik: Personalized Federated Learning using Hypernetworks. ICML 2021,
Algorithm 1. https://arxiv.org/abs/2103.04628

    w_k = h(v_k; phi),   w~_k = local training from w_k
    phi, v := SGD on mean_k J_k^T (w_k - w~_k),   J_k is the Jacobian of w_k by phi and v

k runs over the round's cohort, which is one client in the paper: `sampler.count=1`. Sizes,
momentum, weight decay and clipping are the authors' code's, whose clients also have momentum 0.9,
weight decay 5e-5, 50 local steps, and gradients clipped to 50. Weight decay and momentum also move
the embeddings v of clients outside the cohort. Biases of the last layers begin at the model's
initial weights, in that code at random. The paper's models have no buffers; here buffers are
averaged. The variant pFedHN-PC, which keeps the last layer on the client, is not here. phi has
about hidden_dim times as many elements as the model.
"""

from collections.abc import Collection, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from flfast.algorithms.contract import Algorithm, Part, Records, Uploads
from flfast.algorithms.kit.own_module import OwnModule
from flfast.algorithms.kit.server_optimizer import optimizer_step
from flfast.state.options import BelowOne, Count, NonNegative, Positive
from flfast.state.randomness import torch_generator
from flfast.state.tree import Tree, add, float_type, scaled, squared_norm, without, zeros
from flfast.state.weights import model_weights

EMBEDDINGS = "embeddings"


def pfedhn(  # noqa: PLR0913 - one parameter an option
    *,
    embedding_dim: Count | None,
    hidden_dim: Count,
    num_hidden: Count,
    server_lr: Positive,
    server_momentum: BelowOne,
    weight_decay: NonNegative,
    clip_norm: Positive,
    num_clients: int,
    initial: Tree,
    seed: int,
    frozen: Collection[str] = (),
) -> Algorithm:
    """Personal models of a hypernetwork, which the server trains; see the YAML for the options."""
    dim = embedding_dim or 1 + num_clients // 4
    trained = {name: leaf for name, leaf in initial["params"].items() if name not in frozen}
    make = partial(Hypernetwork, dim, hidden_dim, num_hidden, trained)
    h = OwnModule("hypernetwork", make, initial, seed=seed)
    rng, dtype = torch_generator(seed, "embeddings"), float_type(initial["params"])
    v = torch.randn(num_clients, dim, generator=rng).to(dtype)
    hypernetwork_state = {"phi": {EMBEDDINGS: v, **h.initial["params"]}, "server_optimizer": {}}
    sgd = partial(
        torch.optim.SGD, lr=server_lr, momentum=server_momentum, weight_decay=weight_decay
    )

    def models(phi: Tree, clients: Tensor) -> Tree:  # each leaf [K, ...]
        made: Tree = h(phi, phi[EMBEDDINGS][clients])
        return made

    def send(server: Tree, records: Records, clients: Sequence[int]) -> Tree:
        return {"params": models(server["phi"], torch.tensor(clients))}

    def server_step(server: Tree, uploads: Uploads) -> Tree:
        of_cohort = partial(models, clients=uploads.clients)
        made, pull = torch.func.vjp(of_cohort, server["phi"])[:2]
        rows = {n: leaf for n, leaf in uploads.rows["params"].items() if n in trained}
        moved = scaled(rows, -1 / len(uploads.clients))
        (gradient,) = pull({**zeros(made), **moved})  # some leaves may stay on the clients
        length = float(squared_norm(gradient).sqrt())
        gradient = scaled(gradient, min(1.0, clip_norm / (length + 1e-6)))
        phi, state = optimizer_step(sgd, server["phi"], gradient, server["server_optimizer"])
        return {**add(server, uploads.mean), "phi": phi, "server_optimizer": state}

    return Algorithm(
        name="pfedhn",
        weighting="uniform",
        evaluate_server=False,
        server_state=lambda weights: {**weights, **hypernetwork_state},
        broadcast=lambda server: without(model_weights(server), {"params": trained}),
        send=send,
        parts={"params": Part("rows")},
        server_step=server_step,
        personal=lambda download, client: model_weights(download),
    )


class Hypernetwork(nn.Module):
    """Embeddings [K, D] -> parameters of a model by name, each leaf [K, ...].

    Args:
        dim: D.
        hidden_dim: width of the hidden layers.
        num_hidden: hidden layers after the first one.
        params: of the model; the biases of the last layers begin with them.
    """

    def __init__(self, dim: int, hidden_dim: int, num_hidden: int, params: Tree) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Linear(dim, hidden_dim)]
        for _ in range(num_hidden):
            layers += [nn.ReLU(), nn.Linear(hidden_dim, hidden_dim)]
        self.hidden = nn.Sequential(*layers)
        last = [nn.Linear(hidden_dim, leaf.numel()) for leaf in params.values()]
        self._shapes = {name: leaf.shape for name, leaf in params.items()}
        with torch.no_grad():
            for layer, leaf in zip(last, params.values(), strict=True):
                layer.bias.copy_(leaf.flatten())
        self.last = nn.ModuleList(last)

    def forward(self, embeddings: Tensor) -> Tree:
        """See above."""
        z = self.hidden(embeddings)
        pairs = zip(self._shapes.items(), self.last, strict=True)
        return {name: layer(z).view(-1, *shape) for (name, shape), layer in pairs}
