"""The tensors that local steps read and change on the device, for one client or a stack.

`one_client.py` and `client_stack.py` load each client's start before the first step, and read the
outcome after the last one. In between, the steps of `graph/programs.py` change the state in place.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from operator import itemgetter

import torch
from torch import Tensor, device, nn

from flfast.algorithms.contract import Context, Finished, LocalStage
from flfast.channel.sent import LocalResult
from flfast.engines.fused.graph.local_step import LocalStep
from flfast.engines.fused.graph.trace import like
from flfast.engines.local_training import TrainedStack, with_sums
from flfast.engines.site import ClientStart
from flfast.state.precision import placed
from flfast.state.tree import Tree, joined, leaves, num_bytes, part_of, to_host, tree_map
from flfast.state.weights import buffers, model_weights

SMALLEST_LR = 1e-20
"""Replaces a learning rate of zero, by which optimizer states cannot be divided. It is too small
to change any parameter but one that is zero."""

HOST_BYTES = 2**28
"""Size of the client states that are delivered at once: copied from a GPU, or subtracted there."""


class TrainingState:
    """State of S clients' local steps. Every leaf is [S, ...]; a slot is one client's part.

    Args:
        steps: the local step of every stage. Their model is on the device and in the data type
            that it trains in. Each stage continues from the weights of the stage before.
        width: S.
    """

    def __init__(self, steps: Sequence[LocalStep], width: int) -> None:
        self.steps, self.width = steps, width
        model, joint = steps[0].model, steps[0].joint
        param = next(model.parameters())
        joint = tree_map(partial(_as_in_model, like=param), joint)
        params = {**dict(model.named_parameters()), **joint["params"]}
        self._trained = [{name: params[name] for name in step.trained} for step in steps]
        # A sum over examples needs at least float32, also for a 16-bit model.
        loss_dtype = torch.promote_types(param.dtype, torch.float32)
        with torch.inference_mode():
            one_client: Tree = {
                "params": params,
                "buffers": {**buffers(model), **joint["buffers"]},
                "optimizer": {
                    str(stage): step.optimizer.empty(trained)
                    for stage, (step, trained) in enumerate(zip(steps, self._trained, strict=True))
                },
                "loss": torch.zeros((), dtype=loss_dtype, device=param.device),
                "logged": {
                    name: torch.zeros((), dtype=loss_dtype, device=param.device)
                    for name in steps[0].logged
                },
            }
            self.state = tree_map(self._repeat, one_client)
        self._grads: dict[int, Tree] = {}

    def _repeat(self, leaf: Tensor) -> Tensor:
        if self.width == 1 and leaf.is_cpu and isinstance(leaf, nn.Parameter):
            return leaf.detach()[None]  # the model's own: whoever uses it writes its weights first
        # Every slot keeps the strides of the model's leaf, channels last included.
        return like(leaf, self.width).copy_(leaf)

    def slot(self, place: int, stage: int, *, grads: bool = False) -> Tree:
        """One client's state in a stage, as views; `grads` adds buffers for accumulation."""
        wanted = self._stage_state(stage)
        if grads:
            if stage not in self._grads:
                zero = tree_map(torch.zeros_like, self._trained[stage])
                self._grads[stage] = tree_map(self._repeat, zero)
            wanted["grads"] = self._grads[stage]
        return tree_map(lambda leaf: leaf[place], wanted)

    def slots(self, place: int, width: int, stage: int) -> Tree:
        """The states of adjacent clients in a stage, as views [width, ...]."""
        return tree_map(lambda leaf: leaf[place : place + width], self._stage_state(stage))

    def _stage_state(self, stage: int) -> Tree:
        return {**self.state, "optimizer": self.state["optimizer"][str(stage)]}

    def begin(self, place: int, stage: int, context: Context) -> None:
        """Change a client's weights as the stage does at its beginning."""
        change = self.steps[stage].stage.begin
        if change is not None:
            weights = self.weights(place)
            given = context._replace(lr=self.steps[stage].stage.lr * context.lr)
            new = change(tree_map(torch.clone, weights), given)
            tree_map(lambda leaf, changed: leaf.copy_(changed), weights, new)

    def weights(self, place: int) -> Tree:
        """A client's current weights, as views, `{"params": ..., "buffers": ...}`."""
        return tree_map(lambda leaf: leaf[place], model_weights(self.state))

    def load(self, starts: Sequence[ClientStart]) -> None:
        """Write weights and optimizer states of clients into the first slots.

        Their contexts are on the device. What several clients share is copied once.
        """
        slots, values = list[Tensor](), list[Tensor]()
        state = model_weights(self.state)
        given = part_of(joined(*(start.context.start for start in starts), stack=list), state)
        for leaf, given_leaf in zip(leaves(state), leaves(given), strict=True):
            part = leaf[: len(starts)]
            shared = isinstance(given_leaf, Tensor)  # by all; otherwise a list
            slots.extend([part] if shared else part.unbind())
            values.extend([given_leaf.expand_as(part)] if shared else given_leaf)
        torch._foreach_copy_(slots, values)
        for stage, step in enumerate(self.steps):
            states = self.slots(0, len(starts), stage)["optimizer"]
            step.optimizer.load(states, {}, 1.0)
            for place, start in enumerate(starts):
                if saved := start.optimizer_state:
                    lr = step_lr(start.context, step.stage)
                    step.optimizer.load(tree_map(itemgetter(place), states), saved, lr)
        for total in (self.state["loss"], *leaves(self.state["logged"])):
            total[: len(starts)].zero_()

    def trained(
        self, bare: Sequence[LocalResult], starts: Sequence[ClientStart]
    ) -> Iterator[TrainedStack]:
        """What the first clients have trained to, at most `HOST_BYTES` of states at a time.

        The contexts of `starts` are on the device.
        """
        keeps = self.steps[0].algorithm.kit.optimizer is not None
        # Optimizer states that nobody keeps are never read.
        final = {k: part for k, part in self.state.items() if keeps or k != "optimizer"}
        at_once = max(HOST_BYTES * self.width // num_bytes(final), 1)
        for start in range(0, len(bare), at_once):
            members = slice(start, min(start + at_once, len(bare)))
            with torch.inference_mode():
                part = tree_map(itemgetter(members), final)
            weights = [given.context.start for given in starts[members]]
            whole = partial(self._whole, bare[members], starts[members], part)
            yield TrainedStack([*bare[members]], weights, part, whole)

    def _whole(
        self, bare: Sequence[LocalResult], starts: Sequence[ClientStart], final: Tree
    ) -> Iterator[LocalResult]:
        """See `TrainedStack.results`. A GPU is waited for once for all clients."""
        with torch.inference_mode():
            final = to_host(final)
        logged = {name: sums.tolist() for name, sums in final["logged"].items()}
        results = with_sums(bare, final["loss"].tolist(), logged)
        contiguous_copy = partial(torch.clone, memory_format=torch.contiguous_format)
        for place, (result, start) in enumerate(zip(results, starts, strict=True)):
            with torch.inference_mode():
                own, optimizer = tree_map(itemgetter(place), final), Tree()
                for stage, step in enumerate(self.steps if "optimizer" in own else ()):
                    lr = step_lr(start.context, step.stage)
                    state = own["optimizer"][str(stage)]
                    optimizer |= step.optimizer.read(state, step.trained, lr)
                weights = tree_map(contiguous_copy, model_weights(own))
            yield result._replace(done=result.done._replace(weights=weights, optimizer=optimizer))


def bare_result(
    start: ClientStart,
    measured: Tree,
    *,
    num_seen: int,
    num_examples: int,
    num_steps: int,
) -> LocalResult:
    """A client's result without weights, optimizer state and sums; see `TrainedStack`."""
    context = start.context._replace(measured=to_host(measured))
    done = Finished({}, num_examples, num_steps, {})
    return LocalResult(start.data.client_id, context, done, num_seen, 0.0)


def step_lr(context: Context, stage: LocalStage) -> float:
    """The learning rate of a stage; positive, since optimizer states are divided by it."""
    return max(stage.lr * float(context.lr), SMALLEST_LR)


def _as_in_model(leaf: Tensor, *, like: Tensor) -> Tensor:
    """A leaf on the model's device; floating-point leaves also take its data type."""
    return leaf.to(like if leaf.is_floating_point() else like.device)


class ContextCache:
    """Copies contexts to a device. Tensors that clients of a round share are copied once."""

    def __init__(self, device: device) -> None:
        self._device, self._round_idx = device, -1
        self._copies: dict[int, tuple[Tensor, Tensor]] = {}

    def on_device(self, contexts: Sequence[Context], round_idx: int) -> list[Context]:
        """Contexts on the device. Leaves that were the same tensor stay the same tensor.

        Within a round no tensor of a context changes.
        """
        if self._device.type == "cpu":  # where they are
            return [*contexts]
        known = self._copies if round_idx == self._round_idx else {}
        # The cache holds each original: Python could reuse the id of a tensor that was freed.
        # It starts anew with every call, so that it holds no more than the call needs.
        self._copies, self._round_idx = {}, round_idx

        def copy(leaf: Tensor) -> Tensor:
            if id(leaf) not in self._copies:
                self._copies[id(leaf)] = known.get(id(leaf)) or (leaf, placed(leaf, self._device))
            return self._copies[id(leaf)][1]

        return [context.map(partial(tree_map, copy)) for context in contexts]
