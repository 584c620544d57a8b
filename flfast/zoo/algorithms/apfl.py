"""APFL: a client's personal model is a mixture of its local model and the server's.

Deng, Kamani, Mahdavi: Adaptive Personalized Federated Learning. 2020, Algorithm 1.
https://arxiv.org/abs/2003.13461

    w_k := w_k - eta * grad F_k(w_k)
    v_k := v_k - eta * alpha_k * grad F_k(m_k),   m_k = alpha_k * v_k + (1 - alpha_k) * w_k
    alpha_k := alpha_k - eta * <v_k - w_k, grad F_k(m_k)>,   if adaptive, clamped to [0, 1]

The authors' code mixes outputs instead, and updates alpha_k in the first step of a round only.
"""

from torch import Tensor

from flfast.algorithms.contract import Algorithm, Batch, Context, Finished, Task, Weighting
from flfast.algorithms.kit.second_model import personal_part, split_personal, with_personal
from flfast.state.options import UpToOne
from flfast.state.tree import Tree, float_type, merge
from flfast.state.weights import model_weights

ALPHA = "apfl/alpha"


def apfl(*, alpha: UpToOne, adaptive: bool, weighting: Weighting) -> Algorithm:
    """FedAvg with personal models mixed from local and federated parameters."""

    def client_state(broadcast: Tree) -> Tree:
        first = next(iter(broadcast["params"].values()))
        share = first.new_tensor(alpha, dtype=float_type(broadcast["params"]))
        return {**model_weights(broadcast), "alpha": share}

    def start(broadcast: Tree, client: Tree) -> Tree:
        joint = with_personal(broadcast, client)
        return merge(joint, {"params": {ALPHA: client["alpha"]}}) if adaptive else joint

    def loss(task: Task, params: Tree, batch: Batch, ctx: Context) -> Tensor:
        alpha_k: Tensor = params[ALPHA] if adaptive else ctx.client["alpha"]
        if adaptive:
            alpha_k.detach().copy_(alpha_k.detach().clamp(0, 1))
        v = personal_part(params)
        mixed = mixture(alpha_k, v, {n: p.detach() for n, p in params.items() if n in v})
        return task(params, batch) + task({**v, **mixed}, batch)

    def finish(done: Finished, ctx: Context) -> tuple[Tree, Tree]:
        upload, v = split_personal(done.weights)
        alpha_k = upload["params"].pop(ALPHA, ctx.client["alpha"])
        return ctx.change(upload), {**v, "alpha": alpha_k.clamp(0, 1)}

    def personal(broadcast: Tree, client: Tree) -> Tree:
        mixed = mixture(client["alpha"], client["params"], broadcast["params"])
        return {"params": mixed, "buffers": client["buffers"]}

    return Algorithm(
        name="apfl",
        weighting=weighting,
        client_state=client_state,
        start=start,
        loss=loss,
        finish=finish,
        personal=personal,
    )


def mixture(alpha: Tensor, local: Tree, federated: Tree) -> Tree:
    """`alpha * local + (1 - alpha) * federated`, by parameter."""
    return {name: alpha * local[name] + (1 - alpha) * p for name, p in federated.items()}
