"""FedGH: the server trains a shared head on the clients' class means of features.

Yi, Wang, Liu, Shi, Yu: FedGH: Heterogeneous Federated Learning with Generalized Global Header.
ACM MM 2023, Algorithm 1. https://arxiv.org/abs/2303.13137

    (b_k, h_k) := SGD on F_k(b_k, h),   z_kj = mean features of client k's examples of class j
    h := h - server_lr * grad CE(h(z_kj), j),   for each client k of the cohort, for each class j

Bodies b_k stay on the clients; z_kj are those of final models. The server takes its steps in the
order of the cohort, PFLlib on shuffled batches. The authors' code never changes the head, and
evaluates clients with the heads that they have trained.
"""

from flfast.algorithms.contract import Algorithm, LocalStage, Uploads
from flfast.algorithms.kit.keep_local import keep_local
from flfast.algorithms.kit.last_layer import linear_head
from flfast.algorithms.kit.split import split
from flfast.state.options import NonNegative
from flfast.state.tree import Tree
from flfast.zoo.algorithms.kit.class_means import MEANS, class_sums, means_alone


def fedgh(*, server_lr: NonNegative, head: list[str] | None, initial: Tree) -> Algorithm:
    """Local training from a shared head that the server trains on class means."""
    top, body = linear_head(initial, head), split(initial, head)[1]
    like = initial["params"][top.names[0]]

    def server_step(server: Tree, uploads: Uploads) -> Tree:
        params, means = dict(server["params"]), uploads.rows["means"]
        for client, label in uploads.rows["classes"].nonzero().tolist():
            z = means[client, label]
            error = top.logits(params, z).softmax(0)
            error[label] -= 1  # the gradient of the cross-entropy with respect to logits
            grads = dict(zip(top.names, (error.outer(z), error), strict=False))
            params = {name: param - server_lr * grads[name] for name, param in params.items()}
        return {**server, "params": params}

    federated = Algorithm(
        name="fedgh",
        tasks=("classification",),
        stages=(LocalStage(), class_sums(len(like), top.fixed_features)),
        finish=means_alone(like.dtype),
        parts=MEANS,
        server_step=server_step,
    )
    return keep_local(federated, body)
