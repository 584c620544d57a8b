"""The ascent direction of FedLESAM and its variants: the way back to a client's last download.

`fedlesam` has paper and equations.
"""

from dataclasses import replace

from torch import Tensor

from flfast.algorithms.contract import Algorithm, Batch, Context, Finished, Task
from flfast.state.tree import Tree, tree_map
from flfast.zoo.algorithms.kit.sharpness_aware import ascent, moved


def estimated_ascent(algorithm: Algorithm, *, rho: float) -> Algorithm:
    """The algorithm with the task's gradients at w + e; its own loss is not used.

    Clients keep their last download. A client's first e is zero.
    """

    def loss(task: Task, params: Tree, batch: Batch, ctx: Context) -> Tensor:
        # Of what was broadcast: a client's state begins with the parameters that stay there, too.
        back = tree_map(lambda w_t, old: old - w_t, ctx.server["params"], ctx.client["download"])
        # e is the same in all steps, and the fused engine hoists it.
        return task(moved(params, ascent(back, rho=rho, scales={})), batch)

    def finish(done: Finished, ctx: Context) -> tuple[Tree, Tree]:
        upload, state = algorithm.finish(done, ctx)
        return upload, {**state, "download": ctx.server["params"]}

    return replace(
        algorithm,
        client_state=lambda b: {**algorithm.client_state(b), "download": b["params"]},
        loss=loss,
        finish=finish,
    )
