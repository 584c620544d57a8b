"""A wrapper that selects clients by what they reported when they last trained.

A client uploads its statistical utility with its update. The server remembers it in its state, as
vectors over the population. The wrapped algorithm sees neither.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from flfast.algorithms.contract.algorithm import Algorithm, Round
from flfast.algorithms.contract.client import Context, Finished, Measure, Task
from flfast.algorithms.contract.uploads import Part, Uploads
from flfast.algorithms.kit.wrapping import viewed
from flfast.datamodules.batches import Batch
from flfast.federation.selections.selected import SelectedRound
from flfast.state.tree import Tree

KEY = "selection"
"""Name of the vectors in the server state."""

UTILITY, LAST = "utility", "last"
"""Keys of the reports: utilities, float64 [N], and rounds of them, int64 [N]; 0 for no report.
The first one is also the name of the part of uploads."""

Select = Callable[[Sequence[int], Tensor, Tensor, int], list[int]]
"""(K clients of the cohort, their utilities [K], rounds of these [K], round) -> those that train,
ascending."""


def select_by_utility(algorithm: Algorithm, select: Select, *, num_clients: int) -> Algorithm:
    """Let those clients of the cohort train that `select` chooses.

    `num_clients` are those of the population, held-out clients included.
    """

    def server_state(weights: Tree) -> Tree:
        utility = torch.zeros(num_clients, dtype=torch.float64)
        last = torch.zeros(num_clients, dtype=torch.int64)
        return {**algorithm.server_state(weights), KEY: {UTILITY: utility, LAST: last}}

    def finish(done: Finished, ctx: Context) -> tuple[Tree, Tree]:
        upload, state = algorithm.finish(done, ctx)
        # |B| * sqrt(sum / |B|)
        utility = (ctx.facts["examples"] * ctx.measured[SQUARES.name]["sum"]).sqrt()
        return {**upload, UTILITY: utility}, state

    def run(server: Tree, rnd: Round) -> Tree:
        utility, last = server[KEY][UTILITY], server[KEY][LAST]
        clients = list(rnd.clients)
        chosen = select(clients, utility[clients], last[clients], rnd.number)
        found: list[Uploads] = []

        def receive(uploads: Uploads) -> Uploads:
            found.append(uploads)
            return _without_utility(uploads)

        selected = SelectedRound(rnd, chosen, receive)
        stepped = algorithm.one_round(_without_reports(server), selected)
        utility, last = utility.clone(), last.clone()
        for uploads in found:
            utility[uploads.clients] = uploads.rows[UTILITY].to(utility)
            last[uploads.clients] = rnd.number
        return {**stepped, KEY: {UTILITY: utility, LAST: last}}

    return replace(
        viewed(algorithm, {"server": _without_reports, "uploads": _without_utility}),
        server_state=server_state,
        facts=tuple(dict.fromkeys((*algorithm.facts, "examples"))),
        stages=(SQUARES, *algorithm.stages),
        finish=finish,
        parts={**algorithm.parts, UTILITY: Part("rows", learned=False)},
        round=run,
    )


def _squares(task: Task, weights: Tree, batch: Batch, ctx: Context) -> Tree:
    return {"sum": task.losses(weights, batch).square().sum()}


SQUARES = Measure("squared losses", _squares)
"""Sum of squared losses over a client's training examples."""


def _without_reports(server: Tree) -> Tree:
    return {name: part for name, part in server.items() if name != KEY}


def _without_utility(uploads: Uploads) -> Uploads:
    rows = {name: part for name, part in uploads.rows.items() if name != UTILITY}
    return uploads._replace(rows=rows)
