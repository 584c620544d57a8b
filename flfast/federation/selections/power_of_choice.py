"""Power-of-Choice: the clients of the cohort with the largest losses train.

Cho, Wang, Joshi: Towards Understanding Biased Client Selection in Federated Learning. AISTATS
2022, section 4, strategy pow-d; first as Client Selection in Federated Learning: Convergence
Analysis and Power-of-Choice Selection Strategies. https://arxiv.org/abs/2010.01243

    A = the cohort: d candidates, drawn in proportion to their numbers of examples
    S = the m candidates of A with the largest F_k(w[t]),   w[t] = the server's model
    w[t+1] = one round of the algorithm with the clients of S

F_k is measured over all training examples, in evaluation mode. Ties go to the lower id, and losses
that differ by rounding only are ties; the paper breaks them at random. The paper averages with
`algorithm.weighting=uniform`. Candidates download the model to measure it, and the selected ones
download it again to train, which `comm/` counts. A candidate that drops out, or whose loss is NaN
or infinite, is not selected.
"""

from dataclasses import replace

import numpy as np

from flfast.algorithms.contract import Algorithm, Context, Finished, Part, Round
from flfast.algorithms.kit.measures import LOSS, mean_loss
from flfast.federation.selections.selected import SelectedRound, Selecting
from flfast.state.near_ties import largest
from flfast.state.options import Count
from flfast.state.tree import Tree


def power_of_choice(algorithm: Algorithm, *, count: Count) -> Selecting:
    """Train the clients of the cohort on whose examples the server's model has the largest loss.

    Fewer clients than `count` train if fewer candidates report a loss. The algorithm is any whose
    server has a complete model.

    Raises:
        ValueError: if the server has no complete model, or clients have parts of it.
    """
    if not algorithm.evaluate_server:
        raise ValueError(
            f"selection=power_of_choice with algorithm={algorithm.name}: clients measure the loss "
            f"of the server's model, which is not complete; allowed: selection=oort or none, or "
            f"an algorithm and a policy bn that share the whole model"
        )
    if algorithm.kit.place is not None:
        raise ValueError(
            f"selection=power_of_choice with algorithm={algorithm.name}: clients measure the loss "
            f"of the whole model, of which they have a part; allowed: selection=oort or none"
        )

    def reported(done: Finished, ctx: Context) -> tuple[Tree, Tree]:
        return {"loss": mean_loss(ctx)}, ctx.client

    measuring = Algorithm(
        name="power_of_choice's losses",
        weighting="uniform",
        facts=("examples",),
        stages=(LOSS,),
        finish=reported,
        parts={"loss": Part("rows", learned=False)},
    )

    def run(server: Tree, rnd: Round) -> Tree:
        found = rnd.call(server, measuring)
        chosen = largest_losses(found.clients.numpy(), found.rows["loss"].numpy(), count)
        return algorithm.one_round(server, SelectedRound(rnd, chosen))

    return replace(algorithm, round=run, calls=(*algorithm.calls, measuring))


def largest_losses(clients: np.ndarray, losses: np.ndarray, count: int) -> list[int]:
    """The clients with the largest losses, ascending; ties go to the lower id.

    The losses [K] are finite. If there are fewer clients than `count`, it is all of them.
    """
    order = np.argsort(clients)
    places = largest(losses[order], min(count, len(order)))
    return [int(client_id) for client_id in clients[order][places]]
