import inspect
from importlib import import_module

import pytest
from omegaconf import OmegaConf

from flfast.config.signature import module_path, read_signature


def targets(root):
    """Every `_target_` that conf/ names."""

    def walk(node):
        if isinstance(node, dict):
            if "_target_" in node:
                yield node["_target_"]
            for child in node.values():
                yield from walk(child)

    for path in sorted((root / "conf").rglob("*.yaml")):
        if path.parent.name not in {"experiment", "hydra"}:
            yield from walk(OmegaConf.to_container(OmegaConf.load(path)))


def test_source_says_what_import_says(root):
    """For every target of ours and torch's: the same parameters as inspect sees."""
    seen = 0
    for target in sorted({*targets(root), "lightning.pytorch.trainer.trainer.Trainer"}):
        if "?" in target or "wandb" in target.lower() or "mlflow" in target.lower():
            continue
        module, _, name = target.rpartition(".")
        actual = inspect.signature(getattr(import_module(module), name)).parameters
        found = read_signature(target)
        assert found is not None, target
        named = {n for n, p in actual.items() if p.kind is not p.VAR_KEYWORD}
        assert found.parameters.keys() == named, target
        for parameter in named:
            required = actual[parameter].default is inspect.Parameter.empty
            assert found.parameters[parameter].required == required, (target, parameter)
        seen += 1
    assert seen > 25


def test_our_options_carry_their_ranges():
    alpha = read_signature("flfast.datamodules.partitions.dirichlet.dirichlet").parameters["alpha"]
    assert "Gt(gt=0)" in str(alpha.annotation)
    weighting = read_signature("flfast.algorithms.fedavg.fedavg").parameters["weighting"]
    assert "samples" in str(weighting.annotation), "an alias in another module is followed"


def test_what_is_not_there_is_an_error():
    with pytest.raises(LookupError):
        read_signature("no.such.thing")
    assert module_path("flfast.no.such") is None


def test_what_cannot_be_read_is_not_guessed():
    assert read_signature("math.sqrt") is None, "compiled"


RECORDS = """
from dataclasses import dataclass, field
from typing import ClassVar

from flfast.datamodules.sources.source import PixelSource


@dataclass(frozen=True, kw_only=True)
class Mine(PixelSource):
    root: str
    size: int = 3


@dataclass(frozen=True, kw_only=True)
class Counted(PixelSource):
    number: ClassVar[int] = 0


@dataclass(frozen=True, kw_only=True)
class Filled(PixelSource):
    cache: list = field(init=False)
"""


def test_a_record_has_the_options_that_it_inherits(tmp_path, monkeypatch):
    (tmp_path / "records_of_mine.py").write_text(RECORDS)
    monkeypatch.syspath_prepend(tmp_path)
    found = read_signature("records_of_mine.Mine").parameters
    assert [*found] == ["mean", "std", "random_crop", "random_flip", "root", "size"]
    assert "Ge(ge=0)" in str(found["random_crop"].annotation)
    assert [name for name in found if not found[name].required] == ["size"]
    for other in ("Counted", "Filled"):
        assert read_signature(f"records_of_mine.{other}") is None
