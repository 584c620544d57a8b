"""A client's side of a deployment: trains on request, and keeps its own state between requests.

`remote.py` is the server's side.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from typing import Any

import torch

from flfast.algorithms.contract.downloads import OwnDownloads
from flfast.channel.client_side import Answer, ClientSide
from flfast.channel.sent import LocalResult, Sender
from flfast.channel.wire import MalformedError, Message, message_of
from flfast.engines.engine import Engine
from flfast.engines.evaluation.passes import Evaluation, for_evaluation
from flfast.engines.remote import TOLD, message_of_metrics
from flfast.state.plan import Batching, RoundPlan
from flfast.state.tensor_file import write_tensors
from flfast.state.tree import Tree

_SUFFIX = ".state"
_RUN = re.compile(r"[0-9a-f]{8,64}")
Position = tuple[int, int]
"""Round and call of the round, from 0."""
Plans = Callable[[int, Sequence[Mapping[str, Any]]], RoundPlan]
"""(round, rows so far) -> plan."""


class Node:
    """A client's process, which answers requests of the server.

    Args:
        engine: model and examples of the client; a rank alone.
        plans: plans of this machine, for devices and precision.
        initial: weights before round 1.
        client_id: in [0, num_clients).
        folder: for the client's states, one subfolder for each run of a server. A state is kept
            until the server cannot go back before it.
    """

    def __init__(
        self, engine: Engine, plans: Plans, initial: Tree, client_id: int, folder: Path
    ) -> None:
        self._engine, self._plans, self._initial = engine, plans, initial
        self._client_id, self._folder, self._run = client_id, folder, ""
        site = engine.site
        # The server's part of an evaluation is what it sends: its model, and the download.
        told = replace(site.algorithm, broadcast=itemgetter("download"), send=None)
        self._evaluation = Evaluation(site.of(told, states=site.states), engine.finetune)

    def answer(self, message: Message) -> Message:
        """The answer to a request.

        Raises:
            MalformedError: if it is none.
        """
        kinds = {"train": self._train, "evaluate": self._evaluate}
        kind, run = (message.facts.get(name) for name in ("kind", "run"))
        if kind not in kinds or not isinstance(run, str) or not _RUN.fullmatch(run):
            raise MalformedError(f"no request of a server: {kind}, run {run}")
        self._run = run
        return kinds[kind](message)

    def _train(self, message: Message) -> Message:
        facts, download = message.facts, message.trees["download"]
        site, training = self._engine.part_of(facts["call"])
        now: Position = tuple(facts["position"])
        told = {name: facts["plan"][name] for name in TOLD}
        batching = Batching(**facts["plan"]["batching"])
        plan = self._own(told["round_idx"])._replace(**told, batching=batching)
        if site.keeps_states:
            self._load_state(now)
        side, answers = ClientSide(site.algorithm, self._engine.channel), list[Answer]()

        def deliver(result: LocalResult) -> None:
            sender = Sender(self._client_id, plan.round_idx)
            answers.append(side(result, sender, site.residual(self._client_id)))

        downloads = OwnDownloads({self._client_id: download})
        training.train([self._client_id], downloads, plan, deliver)
        (answer,) = answers
        if answer.sent.is_finite:
            site.keep_state(self._client_id, answer.state, answer.residual)
        if site.keeps_states:
            self._save_state(now, facts["oldest"])
        return message_of(answer.sent)

    def _own(self, round_idx: int) -> RoundPlan:
        """The plan of this machine."""
        return self._plans(round_idx, [])

    def _evaluate(self, message: Message) -> Message:
        facts = message.facts
        if self._engine.site.keeps_states:
            self._load_state((facts["after"] + 1, 0))
        # What has no complete model at the server is measured from initial weights, or not at all.
        server = {**self._initial, **message.trees["model"]}
        server["download"] = message.trees["download"]
        plan = for_evaluation(self._own(facts["round"]))
        found = self._evaluation(server, plan, together=False, fraction=facts["fraction"])
        return message_of_metrics(found)

    def _load_state(self, before: Position) -> None:
        """Load the newest state that is older than a call."""
        states = self._engine.site.states
        older = [position for position in self._kept() if position < before]
        if older:
            saved: Any = torch.load(self._path(max(older)), weights_only=True)
            states.load_state_dict(saved)
        else:
            states.drop(self._client_id)

    def _save_state(self, now: Position, oldest: int) -> None:
        write_tensors(self._path(now), self._engine.site.states.state_dict())
        needed = max(
            position for position in [*self._kept(), (0, 0)] if position < (oldest + 1, 0)
        )
        for position in self._kept():
            if position < needed:
                self._path(position).unlink(missing_ok=True)

    def _path(self, position: Position) -> Path:
        return self._folder / self._run / f"{position[0]}-{position[1]}{_SUFFIX}"

    def _kept(self) -> list[Position]:
        """Calls after which there is a state."""
        found = [path.stem.split("-") for path in (self._folder / self._run).glob(f"*-*{_SUFFIX}")]
        return sorted((int(round_idx), int(number)) for round_idx, number in found)
