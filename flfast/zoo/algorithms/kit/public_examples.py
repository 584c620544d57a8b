"""What models say of public examples: those of the server, which are the fact `public`."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from flfast.algorithms.contract import Batch, Context, Measure, ServerCall, Task
from flfast.state.tree import Tree, float_type, merge, without
from flfast.state.weights import model_weights

_LOGITS = "public logits"
_PLACE: Tree = {"buffers": {"public/place": torch.tensor(0)}}
_AT_ONCE = 256
"""Examples of a forward pass."""


def with_place(weights: Tree) -> Tree:
    """The weights that a client starts from, for `next_places`."""
    return merge(weights, _PLACE)


def next_places(params: Tree, batch: Batch, num: int) -> Tensor:
    """Places [B] in [0, num) of the next public examples, as many as the batch has.

    They begin at 0, and go round at the end.
    """
    (name,) = _PLACE["buffers"]
    first = params[name]
    places = (first + torch.arange(len(batch.targets), device=first.device)) % num
    first.add_(len(batch.targets))
    return places


def of_server(name: str, sent: Callable[[Tree], Tree], **fields: Any) -> ServerCall:
    """A call of the server on public examples, of which a step may take the `next_places`.

    `sent` is weights -> what it reads beside the model, for the trials of engines.
    """
    made = ServerCall(
        name=name,
        weighting="uniform",
        server_state=lambda weights: model_weights(weights) | sent(model_weights(weights)),
        broadcast=lambda server: server,
        start=lambda broadcast, client: with_place(model_weights(broadcast)),
        facts=("public",),
        finish=lambda done, ctx: (without(ctx.change(done.weights), _PLACE), ctx.client),
    )
    return replace(made, **fields)


def public_batch(ctx: Context, rows: Tensor) -> Batch:
    """Public examples, by their numbers [B]."""
    public = ctx.facts["public"]
    return Batch(public["inputs"][rows], public["targets"][rows])


def public_logits(
    logits: Callable[[Task, Tree, Batch, Context], Tensor], rows: str | None = None
) -> Measure:
    """A measure of logits [R, C] of public examples.

    Args:
        logits: (task, weights by name, batch, context) -> logits [B, C].
        rows: name of the examples' numbers in the broadcast, int64 [R]; None: all.
    """

    def sums(task: Task, weights: Tree, batch: Batch, ctx: Context) -> Tree:
        inputs = batch.inputs if rows is None else batch.inputs[ctx.server[rows]]
        parts = (batch._replace(inputs=part) for part in inputs.split(_AT_ONCE))
        return {"logits": torch.cat([logits(task, weights, part, ctx) for part in parts])}

    return Measure(_LOGITS, sums, public=True)


def measured_logits(ctx: Context) -> Tensor:
    """The logits [R, C] that `public_logits` found, in the data type of the weights."""
    found: Tensor = ctx.measured[_LOGITS]["logits"]
    return found.to(float_type(ctx.start))
