"""Streaming DiLoCo: one fragment of the model is synchronised in each round, in turn.

Douillard, Donchev, Rush, Kale, Charles, Garrett, Teston, Lacey, McIlroy, Shen, Ramé, Szlam,
Ranzato, Barham: Streaming DiLoCo with overlapping communication. 2025, Algorithm 2 without overlap
(tau = 0). https://arxiv.org/abs/2501.18512

In round t, with p = (t - 1) mod P, each worker k takes local steps on its whole model w_k. Then

    Delta_p = mean_k (w_k,p when fragment p was last synchronised - w_k,p)
    v_p     = OuterOpt_p(v_p, Delta_p)
    w_k,p   = alpha * w_k,p + (1 - alpha) * v_p

Every fragment has its own state of the outer optimizer. Other fragments train on. Messages have
one fragment each way; workers get v_p at the beginning of the next round. All workers know the
initial model, and keep the state of the local optimizer. The server's model is all v_p. In the
paper all workers take part in all rounds. One that misses a round here keeps its own fragment, and
uploads next what it has learned since its last upload.
"""

from collections.abc import Callable
from dataclasses import replace

from torch import Tensor
from torch.optim import Optimizer

from flfast.algorithms.contract.algorithm import Algorithm, Round, Weighting
from flfast.algorithms.contract.client import Context, Finished, KitFunctions
from flfast.algorithms.contract.uploads import Uploads
from flfast.algorithms.kit.server_optimizer import server_optimized
from flfast.state.options import Count, UpToOne
from flfast.state.tree import Tree, merge, part_of, sub, tree_map
from flfast.state.weights import by_name, model_weights, select_weights


def streaming_diloco(
    *,
    fragments: Count,
    alpha: UpToOne,
    server_optimizer: Callable[..., Optimizer],
    weighting: Weighting,
    initial: Tree,
) -> Algorithm:
    """FedOpt with one fragment of the model in each round; see the YAML for the options.

    Raises:
        ValueError: if the model has too few tensors, or the optimizer does not fit a server.
    """
    parts = _fragments(initial, fragments)
    first, *others = (
        replace(
            _call(part, parts[place - 1], alpha, initial),
            name=f"streaming_diloco's fragment {place}" if place else "streaming_diloco",
            weighting=weighting,
        )
        for place, part in enumerate(parts)
    )
    outer = server_optimized(first, server_optimizer)

    def run(server: Tree, rnd: Round) -> Tree:
        place = (rnd.number - 1) % fragments
        uploads = rnd.call(server, others[place - 1] if place else None)
        return server_step(server, uploads)

    def server_step(server: Tree, uploads: Uploads) -> Tree:
        return merge(server, outer.server_step(server, uploads))

    return replace(outer, round=run, server_step=server_step, calls=tuple(others))


def _call(part: Tree, received: Tree, alpha: float, initial: Tree) -> Algorithm:
    """A round that gets one fragment, that of the round before, and uploads the next one."""

    def mixed(local: Tensor, new: Tensor) -> Tensor:
        return alpha * local + (1 - alpha) * new if local.is_floating_point() else new

    def start(broadcast: Tree, client: Tree) -> Tree:
        own: Tree = client["model"]
        return merge(own, tree_map(mixed, part_of(own, received), model_weights(broadcast)))

    def finish(done: Finished, ctx: Context) -> tuple[Tree, Tree]:
        # Other fragments were not synchronised at the start of this round.
        since = merge(ctx.client["since"], part_of(ctx.start, received))
        upload = sub(part_of(done.weights, part), part_of(since, part))
        # If the client misses the round that sends the fragment back, nothing counts twice.
        since = merge(since, part_of(done.weights, part))
        client = {"model": done.weights, "since": since, "optimizer": done.optimizer}
        return upload, client

    return Algorithm(
        name="",
        client_state=lambda broadcast: {"model": initial, "since": initial, "optimizer": {}},
        broadcast=lambda server: part_of(model_weights(server), received),
        start=start,
        kit=KitFunctions(optimizer=lambda broadcast, client: client["optimizer"]),
        finish=finish,
    )


def _fragments(initial: Tree, num: int) -> list[Tree]:
    """The weights in parts of like size: whole tensors, the largest ones first.

    Buffers come last, so that every part has a parameter.
    """
    sizes, names = [0] * num, [set[str]() for _ in range(num)]
    tensors, params = by_name(initial), initial["params"]
    if num > len(params):
        raise ValueError(
            f"algorithm.fragments={num}: the model has {len(params)} parameter tensors; "
            f"allowed: 1 to {len(params)}"
        )
    for name in sorted(tensors, key=lambda name: (name not in params, -tensors[name].numel())):
        place = sizes.index(min(sizes))
        names[place].add(name)
        sizes[place] += tensors[name].numel()
    return [select_weights(initial, own.__contains__) for own in names]
