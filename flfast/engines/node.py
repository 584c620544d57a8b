"""A client's side of a deployment: trains on request, and keeps its own state between requests.

`remote.py` is the server's side.
"""

import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from flfast.algorithms.contract import Algorithm
from flfast.algorithms.contract.downloads import OwnDownloads
from flfast.channel.secure.round_messages import Advertise, Mask, Share, Unmask
from flfast.channel.secure_reduction import Encoding, warn_of_clamping
from flfast.channel.sent import LocalResult, Sender, Sent
from flfast.channel.sides import Answer, ClientSide
from flfast.channel.wire import MalformedError, Message, message_of, read_facts
from flfast.engines.engine import Engine
from flfast.engines.evaluation.module_evaluation import evaluation_of
from flfast.engines.evaluation.passes import for_evaluation
from flfast.engines.evaluation.remote_metrics import message_of_metrics
from flfast.engines.orders import EvaluateOrder, TrainOrder
from flfast.state.call_states import CallStates, Position
from flfast.state.plan import RoundPlan
from flfast.state.tree import Tree, leaves

if TYPE_CHECKING:
    from flfast.channel.secure.client_round import ClientRound

log = logging.getLogger(__name__)

_RUN = re.compile(r"[0-9a-f]{8,64}")
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
        self._client_id, self._folder, self._kept = client_id, folder, CallStates(folder)
        site = engine.site
        # The server's part of an evaluation is what it sends: its model, and the download.
        told = replace(site.algorithm, broadcast=itemgetter("download"), send=None)
        self._evaluation = evaluation_of(site.of(told, states=site.states), engine.finetune)
        self._secure = self._hides()

    def answer(self, message: Message) -> Message:
        """The answer to a request.

        Raises:
            MalformedError: if it is none.
        """
        kinds: dict[object, Callable[[Message], Message]]
        kinds = {"train": self._train, "evaluate": self._evaluate}
        if secure := self._secure:
            kinds |= {
                "advertise": lambda facts: _facts(secure.advertise(read_facts(Advertise, facts))),
                "share": lambda facts: _facts(secure.share(read_facts(Share, facts))),
                "unmask": lambda facts: _facts(secure.answer(read_facts(Unmask, facts))),
            }
        kind, run = (message.facts.get(name) for name in ("kind", "run"))
        is_run = isinstance(run, str) and _RUN.fullmatch(run)
        if not isinstance(kind, str) or kind not in kinds or not is_run:
            raise MalformedError(f"no request of a server: {kind}, run {run}")
        if any(leaf.is_meta for leaf in leaves(dict(message.trees))):
            raise MalformedError(f"{kind}: a tensor without values")
        self._kept = CallStates(self._folder / str(run))
        try:
            return kinds[kind](message)
        except (KeyError, TypeError, AttributeError, IndexError, RuntimeError) as error:
            log.exception("client %d cannot answer", self._client_id)
            raise MalformedError(f"{kind}: cannot be answered: {type(error).__name__}") from error

    def _hides(self) -> "ClientRound | None":
        """What hides the client's uploads, if they are to be hidden."""
        channel = self._engine.channel
        if channel.secure.make_round is None:
            return None
        make_terms = channel.secure.make_terms
        assert make_terms is not None, "the server has refused this protocol"
        from flfast.channel.secure.client_round import ClientRound  # needs cryptography

        return ClientRound(
            self._client_id,
            lambda cohort, path: make_terms(cohort, channel.seed, path),
            self._folder / "secure.json",
        )

    def _train(self, message: Message) -> Message:
        order, download = read_facts(TrainOrder, message), message.trees["download"]
        site, training = self._engine.part_of(order.call)
        mask = None
        if self._secure is not None:  # no upload leaves in the clear, whatever is asked
            mask = read_facts(Mask, Message(message.facts.get("mask", {})))
            self._secure.receive(mask)
        now = Position(*order.position)
        plan = order.applied(self._plans(order.plan.round_idx, []))
        if site.keeps_states:
            self._kept.load(site.states, before=now)
        side, answers = ClientSide(site.algorithm, self._engine.channel), list[Answer]()

        def deliver(results: Iterable[LocalResult]) -> None:
            sender = Sender(self._client_id, plan.round_idx)
            residual = site.residual(self._client_id)
            answers.extend(side(result, sender, residual) for result in results)

        downloads = OwnDownloads({self._client_id: download})
        training.train([self._client_id], downloads, plan, deliver)
        (answer,) = answers
        if answer.sent.is_finite:
            site.keep_state(self._client_id, answer.state, answer.residual)
        if site.keeps_states:
            self._kept.save(site.states, after=now, oldest=order.oldest)
        sent = answer.sent if mask is None else self._masked(answer.sent, mask, site.algorithm)
        return message_of(sent)

    def _masked(self, sent: Sent, mask: Mask, algorithm: Algorithm) -> Sent:
        """An upload with its weight, as the server may see it; nothing if training diverged."""
        assert self._secure is not None
        bare = sent._replace(upload={}, weight=0.0)
        if not sent.is_finite:
            return bare
        encoding = Encoding(algorithm.parts, mask.max_weight)
        vectors = encoding.vectors(self._client_id, sent.upload, sent.weight)
        upload, num_clamped = self._secure.mask(mask, *vectors)
        warn_of_clamping("the change", num_clamped, len(vectors[0]))
        return bare._replace(upload=upload)

    def _evaluate(self, message: Message) -> Message:
        order = read_facts(EvaluateOrder, message)
        if self._secure is not None:
            self._secure.forget()  # the round is over
        if self._engine.site.keeps_states:
            self._kept.load(self._engine.site.states, before=Position(*order.before))
        # What has no complete model at the server is measured from initial weights, or not at all.
        server = {**self._initial, **message.trees["model"]}
        server["download"] = message.trees["download"]
        plan = for_evaluation(self._plans(order.round, []))
        found = self._evaluation(server, plan, together=False, fraction=order.fraction)
        return message_of_metrics(found)


def _facts(facts: BaseModel) -> Message:
    return Message(facts.model_dump())
