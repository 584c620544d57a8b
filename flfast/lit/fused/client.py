"""Local training of one client after another, in the same memory, by compiled programs."""

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from flfast.algorithms.algorithm import Context, Finished
from flfast.datamodules.examples import Examples
from flfast.datamodules.federated import ClientDataModule
from flfast.lit.fused.padding import notices_padding
from flfast.lit.fused.passes import Call, Chunk, epoch_chunks
from flfast.lit.fused.step import LocalStep
from flfast.lit.fused.torchscript import Script
from flfast.lit.fused.trace import trace
from flfast.plan import Batching, RoundPlan
from flfast.state.tree import Tree, leaves, tree_map
from flfast.state.weights import buffers

CACHED_EXAMPLES = 64
"""Of a full batch at a time on the CPU: 177 µs an example of a small CNN, where all took 302."""

SMALLEST_LR = 1e-20
"""Stands for a learning rate of zero: it changes no parameter that is not zero itself."""

_ROWS = ("inputs", "targets")


class Outcome(NamedTuple):
    """What local training left.

    Attributes:
        done: what it arrived at, on the CPU.
        num_seen: examples processed, every pass counted.
        loss_sum: of the local objective over the examples seen.
    """

    done: Finished
    num_seen: int
    loss_sum: float


class ClientProgram:
    """Trains clients in work tensors of its own; one instance a device and precision.

    Args:
        step: the local step, with its model where and in the type that it trains in.
    """

    def __init__(self, step: LocalStep) -> None:
        self.step = step
        self._exact: bool | None = None  # found out with the first client
        weights = dict(step.model.named_parameters())
        first = next(iter(weights.values()))
        self._dtype, self._device = first.dtype, first.device
        # Weights of examples are no numbers of 16 bits, whatever the model's are.
        dtype = torch.promote_types(self._dtype, torch.float32)
        self._exactly: Any = {"dtype": dtype, "device": self._device}
        with torch.inference_mode():
            params = {name: p.clone() for name, p in weights.items()}
            self._trained = {name: params[name] for name in step.trained}
            self._state: Tree = {
                "params": params,
                "buffers": {name: b.clone() for name, b in buffers(step.model).items()},
                "optimizer": step.optimizer.empty(self._trained),
                "loss": torch.zeros((), **self._exactly),
            }
            self._lr = torch.zeros((), dtype=torch.float64, device=self._device)
        self._examples: tuple[Tensor, Tensor] | None = None
        self._programs: dict[object, Script] = {}
        self._weights: dict[tuple[int, int, float], Tree] = {}

    def train(
        self, data: ClientDataModule, context: Context, optimizer_state: Tree, plan: RoundPlan
    ) -> Outcome:
        """Local training of one client, from `context.start`.

        Args:
            data: the client's.
            context: what it may read.
            optimizer_state: by parameter name; empty for a fresh optimizer.
            plan: epochs or steps, learning rate.
        """
        optimizer = self.step.optimizer
        context = self._on_device(context)
        # A state that is kept in multiples of the rate could not be read at none.
        lr = max(context.lr, SMALLEST_LR)
        num_seen, num_examples, num_steps, epoch_idx = 0, 0, 0, 0
        with torch.inference_mode():
            for kind in context.start:
                tree_map(torch.Tensor.copy_, self._state[kind], context.start[kind])
            optimizer.load(self._state["optimizer"], optimizer_state, lr)
            self._state["loss"].zero_()
            self._lr.fill_(lr)
            exact = self._is_exact(data, context)
            batching = data.batching if exact else self._in_cache(data.batching)
            while num_steps != plan.local_steps and epoch_idx != plan.local_epochs:
                left = None if plan.local_steps is None else plan.local_steps - num_steps
                chunks = epoch_chunks(len(data.indices), batching, num_steps=left, exact=exact)
                order = data.next_order()
                for chunk in chunks:
                    self._run(chunk, self._rows(chunk, order, data), context)
                num_seen += chunks[-1].stop
                num_steps += sum(chunk.num_steps for chunk in chunks)
                num_examples = num_examples or min(num_seen, len(data.indices))
                epoch_idx += 1
            loss_sum = float(self._state["loss"])
        done = Finished(
            weights={
                kind: tree_map(_to_host, self._state[kind]) for kind in ("params", "buffers")
            },
            num_examples=num_examples,
            num_steps=num_steps,
            optimizer=optimizer.read(self._state["optimizer"], self.step.trained, lr),
        )
        return Outcome(done, num_seen, loss_sum)

    def _is_exact(self, data: ClientDataModule, context: Context) -> bool:
        """Whether batches must keep their size, since padding would change what they say."""
        if self._exact is None:
            few = data.data.train_clients.indices[:4]
            examples = Chunk(0, len(few), 0, ())
            # Random numbers that nobody else draws from.
            own = data.data.client(data.client_id, batching=data.batching)
            trees = [
                {**self._state, "grads": tree_map(torch.zeros_like, self._trained)},
                {"server": context.server, "client": context.client, "start": context.start},
                {"lr": self._lr},
            ]
            self._exact = notices_padding(self.step, trees, self._rows(examples, few, own))
        return self._exact

    def _on_device(self, context: Context) -> Context:
        server, client, start = (
            tree_map(lambda leaf: leaf.to(self._device), tree)
            for tree in (context.server, context.client, context.start)
        )
        return Context(server, client, start, context.lr)

    def _rows(self, chunk: Chunk, order: np.ndarray, data: ClientDataModule) -> list[Tensor]:
        inputs, targets = self._stored(data.data.examples)
        index = torch.from_numpy(order[chunk.start : chunk.stop]).to(inputs.device)
        inputs = inputs.index_select(0, index).to(self._device)
        inputs = data.augmented(inputs, dtype=self._dtype)
        targets = targets.index_select(0, index).to(self._device)
        if chunk.padding:  # any example will do: its weight is zero
            inputs = torch.cat([inputs, inputs[:1].expand(chunk.padding, *inputs.shape[1:])])
            targets = torch.cat([targets, targets[:1].expand(chunk.padding)])
        return [inputs, targets]

    def _in_cache(self, batching: Batching) -> Batching:
        """B = infinity in parts that stay in a core's cache, which changes no number."""
        whole = batching.batch_size == -1 and batching.micro_batch is None
        small = whole and self._device.type == "cpu"
        return batching._replace(micro_batch=CACHED_EXAMPLES) if small else batching

    def _stored(self, examples: Examples) -> tuple[Tensor, Tensor]:
        """All examples as they are stored, on the device where they fit beside the model."""
        if self._examples is None:
            assert isinstance(examples.inputs, Tensor)
            inputs, targets = examples.inputs, examples.targets
            if self._device.type == "cuda":
                free, _ = torch.cuda.mem_get_info(self._device)
                if inputs.nbytes + targets.nbytes < free / 2:
                    inputs, targets = inputs.to(self._device), targets.to(self._device)
            self._examples = inputs, targets
        return self._examples

    def _run(self, chunk: Chunk, rows: list[Tensor], context: Context) -> None:
        for call in chunk.calls:
            batch = self._batch(call)
            needed = [row[call.offset :] for row in rows] if call.size else []
            trees = [
                self._needed_state(call),
                {"server": context.server, "client": context.client, "start": context.start},
                {"lr": self._lr},
                batch,
            ]
            fixed = [leaf for tree in trees for leaf in leaves(tree)]
            program = self._program(call, trees, needed)
            with torch.autocast(self._device.type, enabled=False):  # it is in the program
                program(fixed, needed, num=call.num, size=call.size)

    def _needed_state(self, call: Call) -> Tree:
        if call.kind == "whole":
            return {name: leaf for name, leaf in self._state.items() if name != "grads"}
        if "grads" not in self._state:
            self._state["grads"] = tree_map(torch.zeros_like, self._trained)
        return self._state

    def _batch(self, call: Call) -> Tree:
        """What the steps of a call share of their batches: tensors, made once."""
        key = (call.size, call.real, call.share)
        if key not in self._weights and call.size:
            weights = torch.zeros(call.size, **self._exactly)
            weights[: call.real] = 1 / call.real
            num, share = torch.tensor([call.real, call.share], **self._exactly).unbind()
            self._weights[key] = {"weights": weights, "num": num, "share": share}
        return self._weights.get(key, {})

    def _program(self, call: Call, trees: list[Tree], rows: list[Tensor]) -> Script:
        context = tuple(_names(trees[1]))
        key = (call.kind, call.size, context, torch.is_autocast_enabled(self._device.type))
        if key not in self._programs:
            *rest, batch = trees
            inputs = dict(zip(_ROWS, (row[: call.size] for row in rows), strict=False))
            step = getattr(self.step, call.kind)
            with torch.inference_mode(mode=False):
                module = trace(step, [*rest, {**batch, **inputs}])
            self._programs[key] = Script(module, sliced=len(rows))
        return self._programs[key]


def _names(tree: Tree, prefix: str = "") -> list[str]:
    return [
        full
        for name, leaf in tree.items()
        for full in (
            _names(leaf, f"{prefix}{name}.") if isinstance(leaf, dict) else [prefix + name]
        )
    ]


def _to_host(leaf: Tensor) -> Tensor:
    return leaf.clone(memory_format=torch.contiguous_format).cpu()
