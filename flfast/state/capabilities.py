"""What options need of a run, and what they break: the one vocabulary of refused combinations.

An option never names another option. It says which properties of a run it needs, and which ones a
run with it lacks. Objects have this as `capabilities`. Functions of options declare the same in
the annotation of what they return, or of the parameter that has the effect, so that the check
before torch can read it from the source: `def median() -> Annotated[Aggregation, BY_ROW]`.
"""

from collections.abc import Container, Iterable, Iterator, Mapping
from typing import NamedTuple

MEANINGS: Mapping[str, str] = {
    "messages": "clients that send something",
    "sums": "a server that uses only the sum of a cohort's uploads",
    "hidden uploads": "a server that gets nothing but the sum of a cohort's uploads",
    "single uploads": "the upload of one client",
    "protected parts": "noise on all that clients send",
    "statistics": "noise on all that clients send",
    "equal clients": "clients that weigh the same, since its noise is for their mean",
    "one broadcast": "the same broadcast to all clients",
    "one bound": "no other bound than privacy.clip_norm",
    "known weights": "max_weight, if weights are not numbers of examples",
    "equal steps": "steps of one size, in which no example is twice, for noise and accountant",
    "one objective": "one training stage by an objective that is a mean over examples, as of "
    "fedavg, fedprox, scaffold or ditto",
    "single losses": "losses of single examples",
    "kept activations": "activations that are kept, for gradients of single examples",
    "one call": "rounds that are one call of the clients",
    "rounds": "rounds of clients that train from the newest model",
    "whole cohorts": "whole cohorts, drawn independently of clients' data and speed",
    "several uploads": "several uploads in a step",
    "equal uploads": "uploads of one shape",
    "changes": "uploads that are changes of the model that clients downloaded",
    "changes that mix": "uploads that can be mixed with the server's model",
    "single clients": "clients that are replaced one by one",
    "shared state": "a server that averages it",
    "several clients": "several clients",
    "server model": "a complete model of the server",
    "server examples": "examples of the server",
    "validation examples": "validation examples",
    "checkpoints": "checkpoints",
    "earlier run": "the run of an earlier command",
    "given batches": "a batch_size that is a number or -1, of which micro-batches may be a part",
    "small batches": "batches of some examples; micro_batch bounds memory",
    "workers": "worker processes",
    "classification": "options for classes",
    "language": "options for tokens",
    "regression": "options for numbers",
    "multilabel": "options for sets of labels",
    "survival": "options for survival times",
    "forecasting": "options for series",
    "segmentation": "options for masks",
    "module": "options for the step of a LightningModule",
}
"""The properties, and what each of them is, after "needs"."""


class Capabilities(NamedTuple):
    """What an option needs, and what it breaks.

    Attributes:
        needs: properties that the run must have.
        breaks: properties that a run with the option lacks, and why: a clause about the option.
    """

    needs: frozenset[str] = frozenset()
    breaks: Mapping[str, str] = {}

    def __or__(self, other: "Capabilities") -> "Capabilities":
        """What either of them needs and breaks."""
        return Capabilities(self.needs | other.needs, {**self.breaks, **other.breaks})

    def beside(self, others: "Iterable[Capabilities]") -> "Capabilities":
        """What none of the others has said."""
        said = Capabilities()
        for other in others:
            said |= other
        breaks = {name: why for name, why in self.breaks.items() if name not in said.breaks}
        return Capabilities(self.needs - said.needs, breaks)


NEUTRAL = Capabilities()
"""Of an option that combines with all others."""


def needing(*needs: str) -> Capabilities:
    """Capabilities of an option that needs properties."""
    assert MEANINGS.keys() >= {*needs}
    return Capabilities(frozenset(needs))


def breaking(why: str, *properties: str) -> Capabilities:
    """Capabilities of an option that breaks properties, and why: a clause about the option."""
    assert MEANINGS.keys() >= {*properties}
    return Capabilities(breaks=dict.fromkeys(properties, why))


def capabilities_of_sampler(parameters: Container[str]) -> Capabilities:
    """What a sampler breaks.

    Args:
        parameters: names of what it asks for. One with `count` and `fraction`, and without a
            round, draws as many clients as are needed, at any time.
    """
    draws_any = all(name in parameters for name in ("count", "fraction"))
    if draws_any and "round_idx" not in parameters:
        return NEUTRAL
    return breaking("it draws whole cohorts", "single clients")


class Choice(NamedTuple):
    """What a run has chosen.

    Attributes:
        group: group of the config, or a key; a choice never refuses another one of its group.
        setting: key and value, such as `privacy=central`.
        capabilities: capabilities of it.
        instead: a setting without them.
    """

    group: str
    setting: str
    capabilities: Capabilities
    instead: str


def refusals(choices: Iterable[Choice]) -> Iterator[str]:
    """Why a run cannot have these choices together: keys, values, reason, and what is allowed."""
    found = [choice for choice in choices if choice.capabilities != NEUTRAL]
    for needer in found:
        for breaker in found:
            breaks = breaker.capabilities.breaks
            missing = [name for name in MEANINGS if name in needer.capabilities.needs & {*breaks}]
            if missing and needer.group != breaker.group:
                yield (
                    f"{breaker.setting} with {needer.setting}: {breaks[missing[0]]}, but "
                    f"{needer.group} needs {MEANINGS[missing[0]]}; allowed: {breaker.instead}, "
                    f"or {needer.instead}"
                )
