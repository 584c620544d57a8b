"""How GPUs multiply float32 is set for a run, in all ways of torch, and given back."""

import json
import subprocess
import sys

import pytest
import torch

from flfast.state.fp32 import allows_tf32, describe_fp32, use_fp32

EACH_IN_ITS_PROCESS = """
import json, os, warnings
import torch
from flfast.state.fp32 import allows_tf32, use_fp32

warnings.simplefilter("error")
backends = torch.backends
products, cudnn, host = backends.cuda.matmul, backends.cudnn, backends.mkldnn
newer = hasattr(cudnn, "conv")
programs = {
    "nothing": lambda: None,
    "high": lambda: torch.set_float32_matmul_precision("high"),
    "medium": lambda: torch.set_float32_matmul_precision("medium"),
    "products": lambda: setattr(products, "allow_tf32", True),
    "no convolutions": lambda: setattr(cudnn, "allow_tf32", False),
}
if newer:
    programs |= {
        "new products": lambda: setattr(products, "fp32_precision", "tf32"),
        "new convolutions": lambda: setattr(cudnn.conv, "fp32_precision", "ieee"),
        "new cells": lambda: setattr(cudnn.rnn, "fp32_precision", "ieee"),
        "new cudnn": lambda: setattr(cudnn, "fp32_precision", "ieee"),
        "new on a CPU": lambda: setattr(host.matmul, "fp32_precision", "bf16"),
        "everything": lambda: setattr(backends, "fp32_precision", "tf32"),
        "nothing anywhere": lambda: setattr(backends, "fp32_precision", "ieee"),
    }

def read(name, of):
    try:
        return str(of())
    except RuntimeError:
        return "refused"

def settings():
    found = {
        "old": read("old", torch.get_float32_matmul_precision),
        "products": read("products", lambda: products.allow_tf32),
        "convolutions": read("convolutions", lambda: cudnn.allow_tf32),
    }
    parts = [products, cudnn.conv, cudnn.rnn, cudnn, host.matmul, host.conv, backends]
    for number, part in enumerate(parts if newer else []):
        found[f"new {number}"] = part.fp32_precision
    return found

for name, program in programs.items():
    if os.fork():
        os.wait()
        continue
    program()
    steps = [settings()]
    for value in ("ieee", "tf32", "ieee", None, "tf32", None, None):
        use_fp32(value)
        steps.append({**settings(), "allows": allows_tf32()})
    print(json.dumps([name, steps]), flush=True)
    os._exit(0)
"""


def test_whatever_a_program_has_set_is_overruled_and_given_back():
    words = [sys.executable, "-c", EACH_IN_ITS_PROCESS]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=True)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(lines) in (5, 12), done.stderr
    for name, (before, *steps) in lines:
        for value, step in zip(
            ("ieee", "tf32", "ieee", None, "tf32", None, None), steps, strict=True
        ):
            allows = step.pop("allows")
            if value is None:
                assert step == before, name
                continue
            # Lightning reads the first one for every GPU: it must not be refused.
            assert step["old"] == {"ieee": "highest", "tf32": "high"}[value], name
            assert step["products"] == step["convolutions"] == str(value == "tf32"), name
            assert allows == (value == "tf32")
            assert {step.get(f"new {number}", value) for number in range(3)} == {value}, name
            if before.get("new 4") == "none":  # a CPU's products stay exact
                assert step["new 4"] in ("none", "ieee"), name


@pytest.fixture
def given_back():
    yield
    use_fp32(None)


@pytest.mark.usefixtures("given_back")
def test_a_plan_has_its_arithmetic_until_the_next_one_or_the_end(make_data, make_federation):
    """Of a run whose phases differ; the second site is of an algorithm's other model."""
    federation = make_federation(make_data([6]))
    site, plan = federation.engine.site, federation.plans(1, [])
    other = site.of(site.algorithm, states=site.states)
    before = describe_fp32()
    for trainers in (site.trainers, other.trainers):
        for value in ("ieee", "tf32"):
            trainers.trainer(plan._replace(fp32_precision=value))
            assert describe_fp32() == f"float32 in products {value}, in convolutions {value}"
            assert torch.backends.cudnn.allow_tf32 == allows_tf32() == (value == "tf32")
    site.trainers.trainer(plan)
    assert describe_fp32() == before
    site.trainers.trainer(plan._replace(fp32_precision="ieee"))
    federation.engine.close()
    assert describe_fp32() == before


@pytest.mark.usefixtures("given_back")
def test_a_later_run_gives_back_what_was_set_in_between(monkeypatch):
    use_fp32("ieee")
    use_fp32(None)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    use_fp32("tf32")
    use_fp32(None)
    assert not torch.backends.cudnn.allow_tf32
    assert describe_fp32() == "float32 in products ieee, in convolutions ieee"
