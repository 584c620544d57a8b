"""PFL-DA: clients have bodies of their own below a shared head, and personal heads near it.

Shi, Kontar: Personalized Federated Learning via Domain Adaptation with an Application to
Distributed 3D Printing. Technometrics, 2023. https://par.nsf.gov/biblio/10404518

    (b_k, h) := SGD on F_k(b_k, h) from the server's h[t],   h[t+1] = mean_k h
    h_k := (h_k - lr * grad F_k(b_k, h_k) + lr * lam * h[t]) / (1 + lr * lam)

Bodies b_k answer covariate shift, heads h_k concept shift; a client predicts with both of them.
The second line is a proximal step on F_k + lam / 2 * |h_k - h[t]|^2. Both are inferred from the
code github.com/UMDataScienceLab/Personalized_FL_with_DA, since the paper could not be read. There,
h_k becomes a mean with h[t] after each step: weights of 0.9 and 0.99 on h[t] are lam = 9 / lr and
99 / lr. It takes both steps in turn on each batch, and PFLlib all steps of h_k first, without a
gradient of its regulariser. Here they are taken at once.
"""

from torch import Tensor
from torch.nn import functional as F

from flfast.algorithms.contract import Algorithm, Batch, Context, Task, Weighting
from flfast.algorithms.kit.keep_local import keep_local
from flfast.algorithms.kit.last_layer import linear_head
from flfast.algorithms.kit.second_model import personal_part, upload_shared, with_personal
from flfast.algorithms.kit.split import split
from flfast.state.options import NonNegative
from flfast.state.tree import Tree, merge, part_of, squared_norm, sub
from flfast.state.weights import model_weights


def pfl_da(
    *, lam: NonNegative, head: list[str] | None, weighting: Weighting, initial: Tree
) -> Algorithm:
    """Local bodies, a federated head, and personal heads with a proximal term."""
    top, (kept, body) = linear_head(initial, head), split(initial, head)

    def loss(task: Task, params: Tree, batch: Batch, ctx: Context) -> Tensor:
        z, shared = task.features(params, batch, layer=top.layer)
        own = {name: personal_part(params)[name] for name in top.names}
        errors = F.cross_entropy(top.logits(own, z.detach()), batch.targets, reduction="none")
        far = squared_norm(sub(own, part_of(ctx.start["params"], own)))
        personal = task.mean(errors) + lam / 2 * far
        return shared + personal / (1 + lam * ctx.lr.to(far))

    federated = Algorithm(
        name="pfl_da",
        tasks=("classification",),
        weighting=weighting,
        client_state=lambda broadcast: part_of(broadcast, kept),
        start=with_personal,
        loss=loss,
        finish=upload_shared,
        personal=lambda broadcast, client: merge(model_weights(broadcast), client),
    )
    return keep_local(federated, body)
