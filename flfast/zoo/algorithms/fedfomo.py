"""FedFomo: each client goes from its model towards those of others that lower its loss.

Zhang, Sapra, Fidler, Yeung, Alvarez: Personalized Federated Learning with First Order Model
Optimization. ICLR 2021, Algorithm 1. https://arxiv.org/abs/2012.08565

    r_kj = (F_k(s_k) - F_k(w_j)) / |w_j - s_k|,   j = k and the M models that k downloads
    s_k := s_k + sum_j max(r_kj, 0) / sum_i max(r_ki, 0) * (w_j - s_k)
    w_k = local training from the new s_k,   P_kj := P_kj + r_kj

s_k is where the last local training began, w_j the model that j uploaded last. F_k is the loss
over training examples, which favours w_k: algorithms do not see validation data. The M models
have the highest P_kj, or with probability max(epsilon - decay * (t - 1), 0) are any. PFLlib never
draws, and sends k's own model among the M. The authors' code divides r_kj by |sum_i r_ki| for P.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from flfast.algorithms.contract.algorithm import Algorithm
from flfast.algorithms.contract.client import Context, Finished, LocalStage, Measure, Task
from flfast.algorithms.contract.records import Records
from flfast.algorithms.contract.uploads import Part, Uploads
from flfast.algorithms.kit.several_models import one_of
from flfast.datamodules.batches import Batch
from flfast.state.near_ties import nearest_whole
from flfast.state.options import Count, NonNegative, UpToOne
from flfast.state.precision import widened
from flfast.state.randomness import torch_generator
from flfast.state.tree import Tree, leaves, merge, part_of, tree_map
from flfast.state.weights import by_name
from flfast.zoo.algorithms.kit.private_models import private_models

COUNTS, MOST, LOSSES = Part("rows", learned=False), 2**30, "losses of models"


def fedfomo(
    *,
    num_models: Count,
    epsilon: UpToOne,
    decay: NonNegative,
    initial: Tree,
    seed: int,
    num_clients: int,
) -> Algorithm:
    """Personal models, mixed on the clients from their own and `num_models` others.

    A download is random with probability `epsilon` in round 1, `decay` less in every later round.
    """
    if num_clients < 2:
        raise ValueError("algorithm=fedfomo mixes models of others; allowed: 2 clients or more")

    def server_state(weights: Tree) -> Tree:
        affinity = torch.zeros(num_clients, num_clients, dtype=torch.float64)
        return {"params": {}, "buffers": {}, "affinity": affinity, "rounds": torch.tensor(0)}

    def send(server: Tree, records: Records, clients: Sequence[int]) -> Tree:
        known, done = frozenset(records.known()), int(server["rounds"])
        explore = epsilon - decay * done

        def choose(k: int) -> list[int]:
            rng, row = torch_generator(seed, "peers", done, k), server["affinity"][k]
            return epsilon_greedy(row, k, known, num=num_models, epsilon=explore, rng=rng)

        peers = torch.tensor([choose(k) for k in clients], dtype=torch.int64)
        rows = records[peers.flatten().tolist()]
        models = tree_map(lambda leaf: leaf.unflatten(0, peers.shape), rows)
        return {"peers": peers, "models": models}

    def finish(done: Finished, ctx: Context) -> tuple[Tree, Tree]:
        found, (upload, state) = gains(ctx)[1:], private.finish(done, ctx)
        both = {"gains": torch.stack([found, -found]).clamp(0, MOST), "peers": ctx.server["peers"]}
        return {**upload, **both}, {**state, "before": mixed(ctx)}

    def mean_of_others(sent: Tree) -> Tree:
        return {"params": tree_map(lambda model: model.mean(0), sent["models"]["params"])}

    private = private_models("fedfomo", initial, known=mean_of_others)
    return replace(
        private,
        server_state=server_state,
        client_state=lambda broadcast: {"before": initial, "own": initial},
        send=send,
        facts=("examples",),
        stages=(Measure(LOSSES, losses), LocalStage(begin=begin_mixed)),
        finish=finish,
        parts={**private.parts, "gains": COUNTS, "peers": COUNTS},
        server_step=with_gains,
    )


def epsilon_greedy(
    affinities: Tensor,
    client_id: int,
    known: Collection[int],
    *,
    num: int,
    epsilon: float,
    rng: torch.Generator,
) -> list[int]:
    """Choose `num` other clients: those with the highest affinity [N], or any with epsilon.

    Clients that have not uploaded are chosen only if the known ones are too few. `rng` also
    orders equal affinities.
    """
    values = affinities.tolist()
    ties, draws = torch.rand(2, len(values), generator=rng).tolist()
    others = [j for j in range(len(values)) if j != client_id]
    best = sorted(others, key=lambda j: (j in known, values[j], ties[j]))
    drawn = sorted(others, key=lambda j: (j in known, draws[j]))
    chosen: list[int] = []
    for explores in (torch.rand(min(num, len(others)), generator=rng) < epsilon).tolist():
        source = drawn if explores else best
        chosen.append(next(j for j in reversed(source) if j not in chosen))
    return chosen


def losses(task: Task, weights: Tree, batch: Batch, ctx: Context) -> Tree:
    """Loss sums [2 + M] of s_k, of the client's own model, and of the M others'."""
    models = ctx.server["models"]
    points = [ctx.client["before"], {"params": {}, "buffers": {}}]
    points += [one_of(models, j) for j in range(len(next(leaves(models))))]
    means = [task({**weights, **by_name(point)}, batch) for point in points]
    return {"sums": torch.stack(means) * len(batch.targets)}


def moves(ctx: Context) -> Tree:
    """From s_k to the client's own model and the M others', each leaf [1 + M, ...]."""
    models = ctx.server["models"]
    return tree_map(
        lambda others, personal, before: torch.cat([personal[None], others]) - before,
        models,
        part_of(ctx.client["own"], models),
        part_of(ctx.client["before"], models),
    )


def gains(ctx: Context) -> Tensor:
    """r_k [1 + M]: loss decrease per distance towards the own and the others' models."""
    before, *others = ctx.measured[LOSSES]["sums"] / ctx.facts["examples"]
    flat = [widened(leaf.flatten(1)) for leaf in leaves(moves(ctx)["params"])]
    far = torch.cat(flat, dim=1).norm(dim=1)
    return torch.where(far == 0, 0.0, (before - torch.stack(others)) / far)


def mixed(ctx: Context) -> Tree:
    """The new s_k. Leaves that the others' models lack are the client's own."""
    found = gains(ctx).clamp(min=0)
    shares = found / found.sum() if found.sum() > 0 else found

    def mix(before: Tensor, to_models: Tensor) -> Tensor:
        move = torch.tensordot(shares, widened(to_models), dims=1)
        move = move if before.is_floating_point() else nearest_whole(move)
        return (before + move).to(before.dtype)

    to_models = moves(ctx)
    return merge(ctx.start, tree_map(mix, part_of(ctx.client["before"], to_models), to_models))


def begin_mixed(weights: Tree, ctx: Context) -> Tree:
    """`mixed`, plus the rounding errors that the fused engine adds to weights in a trial."""
    return tree_map(lambda w, start, new: (w - start) + new, weights, ctx.start, mixed(ctx))


def with_gains(server: Tree, uploads: Uploads) -> Tree:
    """Add the uploaded gains to the affinities P of clients to their peers.

    Of `gains` [K, 2, M], the first row says how far peers lower the loss, the second raise it.
    """
    affinity, (falls, rises) = server["affinity"].clone(), uploads.rows["gains"].unbind(1)
    affinity[uploads.clients[:, None], uploads.rows["peers"]] += falls - rises
    return {**server, "affinity": affinity, "rounds": server["rounds"] + 1}
