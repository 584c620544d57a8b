"""docs/what-leaves.md is what its generator writes, which finds what an algorithm gives away."""

import pytest
import torch
from algorithms_by_name import SAMPLE

from docs.disclosures import labels_in, others_in, weight
from docs.families import families
from docs.watched_rounds import SHOWN, run
from docs.what_leaves import (
    PAGE,
    greeting_table,
    metrics_table,
    page,
    sent_table,
    sent_up,
    table,
)
from flfast.algorithms.contract import Algorithm, Part, Record


@pytest.mark.slow
def test_the_page_is_up_to_date():
    assert page() == PAGE.read_text(encoding="utf-8"), "run python -m docs.what_leaves"


def test_every_algorithm_and_table_is_on_the_page():
    text, names = PAGE.read_text(encoding="utf-8"), sorted(families())
    lines = text.splitlines()
    assert all(any(line.startswith(f"| `{name}` | ") for line in lines) for name in names)
    for made in (table(SAMPLE), sent_table(), greeting_table(), metrics_table()):
        for line in made.splitlines():
            assert line in lines, "run python -m docs.what_leaves"


def watched(**fields):
    """Two rounds of an algorithm, and what the shown client did last."""
    rounds = run(lambda model: Algorithm(name="talkative", **fields))
    return rounds, [seen for seen in rounds.seen if seen.result.client_id == SHOWN][-1]


@pytest.mark.parametrize(
    ("part", "told"),
    [
        (lambda labels: 0.5 * labels, "examples of each class: `part`"),
        (lambda labels: (labels > 0).double(), "classes that it has: `part`"),
        (lambda labels: labels.outer(torch.ones(4)).double(), "zero for classes that it lacks"),
        (lambda labels: labels.square().sum(), "made of label counts: `part`"),
        (lambda labels: torch.ones(6).double(), ""),
    ],
    ids=["counts", "classes", "sums", "function", "nothing"],
)
def test_what_an_upload_tells_of_labels_is_found(part, told):
    def finish(done, ctx):
        return {**ctx.change(done.weights), "part": part(ctx.facts["labels"])}, ctx.client

    parts = {"part": Part("sum", learned=False)}
    rounds, seen = watched(facts=("labels",), finish=finish, parts=parts)
    found = [*labels_in("talkative", rounds)]
    assert [text[: len(told)] for text in found] == [told] * bool(told)
    assert "sum of `part`" in sent_up(seen, rounds.initial)


def test_a_weight_made_of_label_counts_is_found():
    _, seen = watched(facts=("labels",), weighting=lambda done, ctx: float(ctx.facts["labels"][0]))
    assert weight(seen) == "own, from label counts"
    assert weight(watched()[1]) == "examples"


@pytest.mark.parametrize(("share", "found"), [(1.0, ["their weights"]), (0.5, [])])
def test_weights_of_another_client_are_found(share, found):
    def send(server, records, clients):
        first, own = records[[0] * len(clients)], records[clients]
        mixed = {name: share * first[name] + (1 - share) * own[name] for name in own}
        return {"params": {name: leaf + server["params"][name] for name, leaf in mixed.items()}}

    rounds, seen = watched(
        parts={"params": Part("rows")},
        server_step=lambda server, uploads: server,
        record=Record(
            lambda server, uploads: uploads.rows["params"],
            initial=lambda server: {n: torch.zeros_like(x) for n, x in server["params"].items()},
        ),
        send=send,
    )
    assert others_in(seen, rounds) == found
