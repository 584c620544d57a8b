"""The tables of docs/algorithms.md, from docstrings, configs and a round of every algorithm.

`python -m docs.algorithms` writes them anew.
"""

import inspect
import json
import re
from collections.abc import Callable
from importlib import import_module
from operator import itemgetter
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf

from docs.families import filled, markdown
from docs.watched_rounds import new_trainer
from flfast.algorithms.contract.algorithm import Algorithm
from flfast.algorithms.contract.downloads import first_downloads, first_record
from flfast.engines.eager import EagerTraining
from flfast.engines.engine import Engine
from flfast.engines.fused.training import FusedTraining
from flfast.engines.site import Site
from flfast.lit.trainers import Trainers
from flfast.setup.learner import learner_of
from flfast.setup.plans import build_plan
from flfast.state.plan import RoundPlan
from flfast.state.store import ClientStates
from flfast.state.tree import Tree, num_bytes, tree_map

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "algorithms.md"
COLUMNS = (
    *("`algorithm=`", "paper", "down", "up", "server keeps", "clients keep"),
    *("engines", "strategies", "options"),
)
STRATEGIES: dict[str, Callable[[RoundPlan], RoundPlan]] = {
    "single": lambda plan: plan._replace(strategy="single"),
    "dp": lambda plan: plan._replace(strategy="dp"),
    "ddp": lambda plan: plan._replace(strategy="ddp", shard="clients"),
    "ddp/batch": lambda plan: plan._replace(strategy="ddp", shard="batch"),
    "fsdp": lambda plan: plan._replace(strategy="fsdp"),
}
_SMALL = (
    *("data=synthetic", "data.num_examples=400", "partition=iid", "local_epochs=1"),
    "split.server_examples=40",
)
_MODEL = ("params", "buffers")


def page() -> str:
    """The page, with tables that are up to date."""
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        return filled(PAGE.read_text(encoding="utf-8"), table)


def table(names: list[str]) -> str:
    """A row for every algorithm."""
    config = compose("config", [*_SMALL])
    rows = []
    for name in names:
        # As Hydra composes `algorithm=NAME`, in a tenth of the time.
        config.algorithm = OmegaConf.load(ROOT / "conf" / "algorithm" / f"{name}.yaml")
        rows.append(row(config))
    named = ([f"`{name}`", *cells] for name, cells in zip(names, rows, strict=True))
    return markdown([*COLUMNS], *named)


def row(config: DictConfig) -> list[str]:
    """Cells of an algorithm, after a round of two clients."""
    learner = learner_of(config)
    algorithm, states = learner.module.algorithm, ClientStates()
    server = algorithm.server_state(learner.initial)
    trainers = Trainers(learner.module, lambda plan: new_trainer())
    site = Site(learner.module, learner.data, trainers, states)
    engine = Engine(site, EagerTraining(site))
    engines = (engine.training, FusedTraining(site, {}, stack="auto"))
    plan = build_plan(0, config, learner.module.model)
    uploads = engine.train(server, [0, 1], plan, on_client=lambda report: None).uploads
    assert uploads is not None
    upload = {**uploads.mean, **tree_map(itemgetter(0), uploads.rows)}
    download = first_downloads(algorithm, learner.initial)(0)
    if algorithm.kit.place is not None:  # it adds where a slice is
        upload = {name: part for name, part in upload.items() if name in download}
    node = config.algorithm
    source = inspect.getdoc(import_module(node._target_.rpartition(".")[0])) or ""
    return [
        paper(source),
        sized(download, learner.initial) + calls(algorithm),
        sized(upload, learner.initial),
        ", ".join(filter(None, (kept(server), records(algorithm, learner.initial)))),
        sized(states.get(0) or {}, learner.initial, nothing=""),
        ", ".join(engine.name for engine in engines if allows(engine.choose, plan)),
        ", ".join(name for name, how in STRATEGIES.items() if allows(engine.choose, how(plan))),
        options(node),
    ]


def calls(algorithm: Algorithm) -> str:
    """How often a round calls the cohort, if more than once."""
    return f", {1 + len(algorithm.cohort_calls)} calls" if algorithm.cohort_calls else ""


def records(algorithm: Algorithm, initial: Tree) -> str:
    """What the server keeps of each client, if anything."""
    if algorithm.record is None:
        return ""
    record = first_record(algorithm, initial)
    return f"{sized(record, initial)} of each client"


def allows(choose: Callable[[RoundPlan], str], plan: RoundPlan) -> bool:
    """Whether an engine takes a plan."""
    try:
        choose(plan)
    except ValueError:
        return False
    return True


def paper(docstring: str) -> str:
    """First author, year and link of the first paper that a docstring cites."""
    for paragraph in docstring.split("\n\n"):
        found = re.search(
            r"^([^,:]+)(,?)[^:]*:.*\b((?:19|20)\d\d)\b.*?(https://\S+)", paragraph, re.DOTALL
        )
        if found:
            first, others, year, link = found.groups()
            return f"[{first}{' et al.' if others else ''} {year}]({link})"
    return ""


def sized(tree: Tree, weights: Tree, *, nothing: str = "nothing") -> str:
    """Size against the model's, and what there is beside it."""
    share = num_bytes(tree) / num_bytes(weights)
    # Wrappers keep the state of what they wrap, which may be empty.
    others = [
        f"`{name}`" for name, part in tree.items() if name not in _MODEL and not _is_empty(part)
    ]
    return ", ".join([f"{share:.3g} x", *others]) if share else nothing


def _is_empty(part: Any) -> bool:
    return part is None or (isinstance(part, dict) and not part)


def kept(server: Tree) -> str:
    """What the server keeps beside the model."""
    return ", ".join(f"`{name}`" for name in server if name not in _MODEL)


def options(node: DictConfig) -> str:
    """Options with their defaults; those that follow others are not to be set."""
    values: Any = OmegaConf.to_container(node, resolve=False)
    return ", ".join(
        f"`{name}: {_shown(value)}`"
        for name, value in values.items()
        if not name.startswith("_") and "${" not in str(value)
    )


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return value["_target_"].rpartition(".")[2]
    return json.dumps(value) if value is None or isinstance(value, bool) else str(value)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
