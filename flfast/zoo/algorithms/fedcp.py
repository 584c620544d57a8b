"""FedCP: a gate splits the features of every example between a shared and a personal head.

Zhang, Hua, Wang, Song, Xue, Ma, Guan: FedCP: Separating Feature Information for Personalized
Federated Learning via Conditional Policy. KDD 2023, Algorithm 1. https://arxiv.org/abs/2307.01217

    r, s = softmax over both of gate(z * v / |v|),   gate = relu(norm(linear)), [D] -> [2, D]
    logits = H_k(r * z) + H(s * z),   v = sum over classes of the rows of H_k's matrix
    h_k = mean_i CE(logits_i, y_i) + lam * MMD^2(features z, features of the received body)

Clients upload the body, the gate and (H_k + H) / 2. H and v are constants in a round. H_k starts
as the first H. MMD has the widths of the authors' code, which also adds Gumbel noise to the gate.
"""

from torch import Tensor, nn
from torch.nn import functional as F

from flfast.algorithms.contract import Algorithm, Batch, Context, Finished, Task, Weighting
from flfast.algorithms.kit.last_layer import linear_head
from flfast.algorithms.kit.own_module import OwnModule
from flfast.algorithms.kit.second_model import personal_part, split_personal, with_personal
from flfast.state.options import NonNegative
from flfast.state.tree import Tree, merge, move, part_of
from flfast.state.weights import by_name
from flfast.zoo.algorithms.kit.discrepancy import squared_mmd


def fedcp(
    *, lam: NonNegative, head: list[str] | None, weighting: Weighting, initial: Tree, seed: int
) -> Algorithm:
    """FedAvg of body and gate; two heads predict together."""
    top = linear_head(initial, head)
    d = top.shape[1]
    gate = OwnModule(
        "gate", lambda: nn.Sequential(nn.Linear(d, 2 * d), nn.LayerNorm(2 * d)), initial, seed=seed
    )

    def logits(weights: Tree, z: Tensor, shared: Tree, personal: Tree) -> Tensor:
        v = F.normalize(personal[top.names[0]].sum(0), dim=0).to(z)
        r, s = gate(weights, z * v).relu().unflatten(1, (2, -1)).softmax(1).unbind(1)
        return top.logits(personal_part(weights), r * z) + top.logits(shared, s * z)

    def loss(task: Task, params: Tree, batch: Batch, ctx: Context) -> Tensor:
        z = top.features(task, params, batch)
        received = top.fixed_features(task, by_name(ctx.start), batch)
        found = logits(params, z, ctx.server["params"], ctx.client["params"])
        far = squared_mmd(z, received, widths=(20, 30, 40, 100))
        return F.cross_entropy(found, batch.targets) + lam * far

    def finish(done: Finished, ctx: Context) -> tuple[Tree, Tree]:
        upload, own = split_personal(done.weights)
        return ctx.change(merge(upload, move(part_of(upload, own), own, 0.5))), own

    def predict(task: Task, w: Tree, batch: Batch) -> Tensor:
        return logits(w, top.fixed_features(task, w, batch), w, personal_part(w))

    return Algorithm(
        name="fedcp",
        tasks=("classification",),
        weighting=weighting,
        evaluate_server=False,
        server_state=lambda weights: merge(weights, gate.initial),
        client_state=lambda broadcast: part_of(broadcast, top.initial),
        start=with_personal,
        loss=loss,
        separable=False,
        finish=finish,
        personal=with_personal,
        predict=predict,
    )
