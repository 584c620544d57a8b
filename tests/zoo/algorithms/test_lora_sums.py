"""RoLoRA, FedSA-LoRA, FLoRA and FedEx-LoRA against their equations, in double precision."""

from functools import cache

import pytest
import sliced_runs
import torch
from safetensors.torch import load_file
from sampling import others_slow
from sliced_runs import EPOCHS, FAMILY, ROUNDS, WAYS, population
from torch.nn import functional as F

import flfast
from flfast.state.randomness import torch_generator

SCALE = 6 / 3
LORA = ("adapter=lora", "adapter.alpha=6", "adapter.target_modules=[fc1]", "seed=5")
ONE = (*LORA, "model=mlp", "model.hidden=[6]", "adapter.rank=3")
MEMBER = "{mlp:{hidden:[6]}}"
RANKS = (*LORA, *FAMILY, f"model.of=[{MEMBER},{MEMBER},{MEMBER}]", "adapter.rank=[3,2,1]")


def first(folder, words):
    """The whole model before round 1, and its factors A [3, 5] and B [6, 3]."""
    base = sliced_runs.initial(folder, *words)
    found = load_file(folder / "adapter" / "adapter_model.safetensors")
    return base, *(next(m.double() for n, m in found.items() if f"lora_{x}" in n) for x in "AB")


def trained(base, a, b, x, y, trains="ab"):
    def loss(w):
        both = {"a": a, "b": b, **w}
        moved = base["fc1.weight"] + SCALE * both["b"] @ both["a"]
        return F.cross_entropy(sliced_runs.mlp({**base, "fc1.weight": moved}, x), y)

    w = {name: value for name, value in (("a", a), ("b", b)) if name in trains}
    for _ in range(EPOCHS):
        w = sliced_runs.stepped(w, loss)
    return w.get("a", a), w.get("b", b)


def expected(name, base, a, b, ranks=(3,) * 4):
    """Weight of the layer in the server's model, or in each client's own one."""
    x, y, owner = population()
    shares = (owner.bincount() / len(owner)).double()
    own_b = [b] * 4
    base = dict(base)

    def mean(values):
        return sum(p * value for p, value in zip(shares, values, strict=True))

    for t in range(1, ROUNDS + 1):
        trains = ("b" if t % 2 else "a") if name == "rolora" else "ab"
        new = [
            trained(
                base,
                a[:r],
                (own_b[k] if name == "fedsa_lora" else b)[:, :r],
                x[owner == k],
                y[owner == k],
                trains,
            )
            for k, r in enumerate(ranks)
        ]
        products = mean([right @ left for left, right in new])
        if name == "flora":
            base["fc1.weight"] = base["fc1.weight"] + SCALE * products
            drawn = torch.rand(a.shape, generator=torch_generator(5, "factors", t)) * 2 - 1
            a, b = drawn.double() / 5**0.5, torch.zeros_like(b)
            continue
        a = mean([left for left, _ in new])
        if name == "fedsa_lora":
            own_b = [right for _, right in new]
            continue
        b = mean([right for _, right in new])
        if name == "fedex_lora":
            base["fc1.weight"] = base["fc1.weight"] + SCALE * (products - b @ a)
    if name == "fedsa_lora":
        return [base["fc1.weight"] + SCALE * right @ a for right in own_b]
    return base["fc1.weight"] + SCALE * b @ a


CASES = [
    # numbers that the last round sends (down, up); those of the base's changes are 6 x 5
    ("rolora", ONE, (4 * 33, 4 * 18)),
    ("fedex_lora", ONE, (4 * (33 + 30), 4 * 33)),
    ("flora", RANKS, (9 * 11 + 4 * 30, 9 * 11)),
]


@pytest.fixture(scope="module")
def start_of(tmp_path_factory):
    """`first` of the words of a case, which all its tests begin with."""
    return cache(lambda words: first(tmp_path_factory.mktemp("first"), words))


# Ranks of a family, of which a client has a part only, are the hardest ones.
FAST = [(*case, way) for case, way in zip(CASES, WAYS, strict=True)]


@pytest.mark.parametrize(
    ("name", "words", "sizes", "way"),
    others_slow([(*case, way) for case in CASES for way in WAYS], FAST),
)
def test_rounds_follow_the_paper(tmp_path, start_of, name, words, sizes, way):
    start = start_of((*words, "algorithm=hetlora"))
    wanted = expected(name, *start, (3, 2, 1, 3) if name == "flora" else (3,) * 4)
    words = (*words, f"algorithm={name}", f"rounds={ROUNDS}", *WAYS[way])
    found = sliced_runs.run(tmp_path / "run", *words)
    torch.testing.assert_close(found["fc1.weight"], wanted, rtol=1e-6, atol=1e-6)
    row = sliced_runs.last_row(tmp_path / "run")
    assert (float(row["comm/down_bytes"]) / 8, float(row["comm/up_bytes"]) / 8) == sizes


@pytest.mark.parametrize("way", others_slow(["eager", "fused"], ["eager"]))
def test_clients_of_fedsa_lora_keep_their_b(tmp_path, start_of, way):
    start = start_of((*ONE, "algorithm=hetlora"))
    wanted = expected("fedsa_lora", *start)
    words = (*ONE, "algorithm=fedsa_lora", f"rounds={ROUNDS}")
    sliced_runs.started(tmp_path / "run", *words, *WAYS[way])
    assert float(sliced_runs.last_row(tmp_path / "run")["comm/up_bytes"]) == 8 * 4 * 15
    for client, weight in enumerate(wanted):
        own = torch.load(tmp_path / "run" / "personal" / f"{client}.pt", weights_only=True)
        a, b = (next(m for n, m in own.items() if f"lora_{f}" in n) for f in "AB")
        found = start[0]["fc1.weight"] + SCALE * b @ a
        torch.testing.assert_close(found, weight, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", ["fedex_lora", "flora"])
@pytest.mark.slow
def test_a_run_whose_base_changed_is_resumed_and_opened(tmp_path, name):
    words = (*ONE, f"algorithm={name}", "split.test=0.25", "eval_every=1", "checkpoint.every=1")
    whole = sliced_runs.started(tmp_path / "whole", *words, "rounds=4", "eval_every=4")
    part = sliced_runs.started(tmp_path / "part", *words, "rounds=2")
    part = sliced_runs.started(tmp_path / "part", *words, "rounds=4", "resume=auto")
    files = [torch.load(run.folder / "model.pt", weights_only=True) for run in (whole, part)]
    assert all(torch.equal(files[0][key], leaf) for key, leaf in files[1].items())
    last = float(sliced_runs.last_row(tmp_path / "part")["global/loss"])
    for chosen in ((), ("checkpoint=last",)):
        assert part.evaluate(*chosen)["global/loss"] == pytest.approx(last, rel=1e-6)
    # A checkpoint gives the same program as the file of the model.
    programs = []
    for number, chosen in enumerate(((), ("checkpoint=last",))):
        file = part.export("format=torch", f"output={tmp_path / str(number)}.pt2", *chosen)
        programs.append(torch.export.load(file).state_dict)
    assert all(torch.equal(programs[0][key], leaf) for key, leaf in programs[1].items())
    assert not (tmp_path / "part" / "adapter").exists()


PLAIN = ("model=mlp", "model.hidden=[6]", "rounds=2", *WAYS["eager"])


@pytest.fixture(scope="module")
def fedavg(tmp_path_factory):
    return sliced_runs.run(tmp_path_factory.mktemp("fedavg"), *PLAIN, "algorithm=fedavg")


NAMES = ["rolora", "fedsa_lora", "flora", "fedex_lora"]


@pytest.mark.parametrize("name", others_slow(NAMES, NAMES[:1]))
def test_without_lora_they_are_fedavg(tmp_path, name, fedavg, caplog):
    found = sliced_runs.run(tmp_path, *PLAIN, f"algorithm={name}")
    assert f"algorithm={name} without adapter=lora" in caplog.text
    torch.testing.assert_close(found, fedavg)


def test_rounds_that_train_different_weights_keep_no_optimizer(tmp_path):
    words = (*ONE, "algorithm=rolora", "local_optimizer_state=keep", "optimizer.momentum=0.9")
    with pytest.raises(flfast.ConfigError, match="train different weights in turn"):
        sliced_runs.run(tmp_path / "run", *words, "rounds=1")


def test_members_of_different_ranks_are_refused(tmp_path):
    with pytest.raises(flfast.ConfigError, match="allowed: members of one rank"):
        sliced_runs.run(tmp_path / "run", *RANKS, "algorithm=fedex_lora", "rounds=1")
