"""The server's side of real clients: what they are asked, and what becomes of their answers.

`node.py` is the other side. In between is an `Exchange` of bytes, such as Flower's messages.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any, Protocol, TypeVar

import numpy as np

from flfast.algorithms.contract.downloads import Download, Downloads
from flfast.channel.channel import Channel
from flfast.channel.secure.round_messages import Mask, Request
from flfast.channel.secure_reduction import MaskedReduction
from flfast.channel.sent import ClientReport, LocalResult, Sent, Status, silent
from flfast.channel.sides import ClientSide
from flfast.channel.wire import (
    Facts,
    MalformedError,
    Message,
    pack,
    read_facts,
    readable,
    sent_of,
    unpack,
)
from flfast.engines.delivery import Delivery
from flfast.engines.evaluation.metrics import GroupMetrics
from flfast.engines.evaluation.passes import Evaluation, FineTune
from flfast.engines.evaluation.remote_metrics import joined_metrics, metrics_of
from flfast.engines.local_training import Deliver, LocalTraining
from flfast.engines.orders import told
from flfast.engines.site import Site
from flfast.state.call_states import Position
from flfast.state.plan import RoundPlan
from flfast.state.tree import Tree, tree_map
from flfast.state.weights import model_weights

log = logging.getLogger(__name__)

NO_ANSWER = "no answer"

Read = TypeVar("Read")


class Exchange(Protocol):
    """Sends requests to real clients."""

    def __call__(self, requests: Mapping[int, bytes]) -> Iterator[tuple[int, bytes | str]]:
        """Send each client its request; yield (client, answer) as they come.

        A text in place of an answer is the reason why there is none. Each client is yielded once
        at most.
        """


class RemoteCohort:
    """The clients of a deployment, who answer one call after another.

    Args:
        exchange: sends requests.
        run: what every request says: the hexadecimal number of the `run`, the same after a resume,
            and the number of `clients`.
        launch: how often the server has been started.
        oldest: (round) -> the earliest round that the server may go back to, after a resume.
        keep_first: uploads after which a call ends; None: all of them.
    """

    def __init__(
        self,
        exchange: Exchange,
        run: Mapping[str, Any],
        launch: int,
        oldest: Callable[[int], int],
        keep_first: int | None = None,
    ) -> None:
        self._exchange, self._run, self._oldest = exchange, run, oldest
        self._keep_first = keep_first
        self._call = Position(0, 0, launch)

    def ask(
        self, kind: str, requests: Mapping[int, Request], answer: type[Facts]
    ) -> Iterator[tuple[int, Facts | str]]:
        """See `Ask`."""
        data = {
            client_id: pack(Message({**self._run, "kind": kind, **request.model_dump()}))
            for client_id, request in requests.items()
        }
        missing = {*requests}
        for client_id, found in self._exchange(data):
            missing.discard(client_id)
            yield client_id, _read(found, partial(read_facts, answer))
        yield from ((client_id, NO_ANSWER) for client_id in missing)

    def train(
        self,
        name: str,
        clients: Sequence[int],
        download: Download,
        plan: RoundPlan,
        hidden: Mapping[int, Mask | str],
    ) -> Iterator[tuple[int, Sent | ClientReport]]:
        """(client, what it sent or why nothing) in the order of `clients`.

        `hidden` is how each client masks its upload, or why it cannot; empty: none does.
        """
        same_round = plan.round_idx == self._call.round_idx
        number = self._call.number + 1 if same_round else 0
        self._call = self._call._replace(round_idx=plan.round_idx, number=number)
        about = {**self._run, "kind": "train", "call": name, "position": self._call}
        about["oldest"] = self._oldest(plan.round_idx)
        lost = {k: why for k, why in hidden.items() if isinstance(why, str)}
        masks = {k: {"mask": m.model_dump()} for k, m in hidden.items() if isinstance(m, Mask)}

        def request(client_id: int) -> Message:
            facts = {**about, "plan": told(download.plan(client_id, plan))}
            trees = {"download": download(client_id)}
            return Message({**facts, **masks.get(client_id, {})}, trees)

        requests = _packed((k, request(k)) for k in clients if k not in lost)
        answers = chain(lost.items(), self._exchange(requests))
        return _in_order(clients, answers, self._keep_first or len(clients))

    def evaluate(
        self,
        plan: RoundPlan,
        model: Tree,
        downloads: Mapping[int, Tree],
        fraction: float,
        read: Callable[[int, Message], dict[str, GroupMetrics]],
    ) -> Iterator[tuple[int, dict[str, GroupMetrics] | str]]:
        """(client, its metrics by set or why there are none); `read` checks a client's answer.

        Their own models are made from `downloads`. `fraction` is of each client's examples.
        """
        about = {**self._run, "kind": "evaluate"}
        about["before"] = self._call._replace(round_idx=self._call.round_idx + 1, number=0)
        facts = {**about, "round": plan.round_idx, "fraction": fraction}
        requests = _packed(
            (client_id, Message(facts, {"model": model, "download": tree}))
            for client_id, tree in downloads.items()
        )
        for client_id, answer in self._exchange(requests):
            yield client_id, _read(answer, partial(read, client_id))


def _packed(asked: Iterable[tuple[int, Message]]) -> dict[int, bytes]:
    """Requests by client. Most clients are told the same, which is packed once."""
    requests: dict[int, bytes] = {}
    last, data = Message({}), b""
    for client_id, message in asked:
        same = all(tree is last.trees.get(name) for name, tree in message.trees.items())
        if not (same and message.facts == last.facts):
            last, data = message, pack(message)
        requests[client_id] = data
    return requests


def _read(answer: bytes | str, read: Callable[[Message], Read]) -> Read | str:
    """What an answer says, or why it says nothing."""
    try:
        return readable(answer) if isinstance(answer, str) else read(unpack(answer))
    except MalformedError as error:
        return str(error)


def _in_order(
    clients: Sequence[int], answers: Iterator[tuple[int, bytes | str]], num: int
) -> Iterator[tuple[int, Sent | ClientReport]]:
    """The first `num` uploads in the order of the clients, which sums of numbers depend on."""
    waiting: dict[int, Sent | ClientReport] = {}
    left = list(clients)
    for client_id, answer in answers:
        found = _read(answer, sent_of)
        if isinstance(found, str):
            status: Status = "lost" if isinstance(answer, str) else "rejected"
            waiting[client_id] = silent(client_id, status, found)
        else:
            waiting[client_id] = found
        num -= isinstance(found, Sent)
        while left and left[0] in waiting:
            first = left.pop(0)
            yield first, waiting.pop(first)
        if not num:
            break
    nothing: tuple[Status, str] = ("lost", NO_ANSWER) if num else ("late", "")
    for client_id in left:
        yield client_id, waiting.get(client_id) or silent(client_id, *nothing)


class RemoteTraining:
    """Lets real clients train; see `LocalTraining`.

    The site has model and described data of the server. `local` trains a client of this process,
    whose upload shows what uploads look like.
    """

    name = "remote"

    def __init__(
        self, site: Site, local: LocalTraining, cohort: RemoteCohort, channel: Channel
    ) -> None:
        self._site, self._local, self._cohort = site, local, cohort
        self._side = ClientSide(site.algorithm, channel.encodes_only)
        self._expected: Tree | None = None

    def choose(self, plan: RoundPlan) -> str:
        """What this machine would choose, since clients decide for themselves."""
        return f"{self.name}, like {self._local.choose(plan)}"

    def train(
        self, clients: Sequence[int], download: Download, plan: RoundPlan, deliver: Deliver
    ) -> None:
        """Train clients where they are; see `LocalTraining`."""
        assert isinstance(deliver, Delivery)
        if self._expected is None and clients:
            self._expected = self._example(clients[0], download, plan)
        expected, hidden = self._expected, dict[int, Mask | str]()
        if isinstance(deliver.reduction, MaskedReduction) and expected is not None:
            expected, hidden = deliver.reduction.agree(expected)
        for client_id, sent in self._cohort.train(
            self._site.algorithm.name, clients, download, plan, hidden
        ):
            assert expected is not None
            deliver.received(client_id, sent, expected, download(client_id))

    def _example(self, client_id: int, download: Download, plan: RoundPlan) -> Tree:
        """An upload like those of real clients, of meta tensors: one step on made-up examples."""
        found: list[Tree] = []

        def keep(results: Iterable[LocalResult]) -> None:
            uploads = (self._side.finish(result)[0] for result in results)
            found.extend(tree_map(lambda leaf: leaf.to("meta"), upload) for upload in uploads)

        few = plan._replace(local_steps=1, local_epochs=None)
        self._local.train([client_id], download, few, keep)
        return found[0]


class RemoteEvaluation(Evaluation):
    """Lets real clients measure models on their own examples; see `Evaluation`."""

    def __init__(self, site: Site, finetune: FineTune | None, cohort: RemoteCohort) -> None:
        super().__init__(site, finetune)
        self._cohort = cohort

    def __call__(
        self, server: Tree, plan: RoundPlan, *, together: bool, fraction: float = 1.0
    ) -> dict[str, GroupMetrics]:
        """Metrics by set, of the clients who answer."""
        site, data = self._site, self._site.data
        clients = np.concatenate([data.participants, data.held_out]).tolist()
        own = dict.fromkeys(clients, Tree())
        if site.algorithm.personal is not None or site.algorithm.kit.fold is not None:
            downloads = Downloads(site.algorithm, server, site.records, clients)
            own = {client_id: downloads(client_id) for client_id in clients}
        model = model_weights(server) if site.algorithm.evaluate_server else Tree()
        parts: dict[str, dict[int, GroupMetrics]] = {}
        read = partial(metrics_of, data, site.module.task_type)
        for client_id, answer in self._cohort.evaluate(plan, model, own, fraction, read):
            if isinstance(answer, str):
                log.warning("client %d is not evaluated: %s", client_id, answer)
                continue
            for name in answer.keys() & self.sets:
                parts.setdefault(name, {})[client_id] = answer[name]
        return {
            name: joined_metrics([part[client_id] for client_id in sorted(part)])
            for name, part in sorted(parts.items())
        }
