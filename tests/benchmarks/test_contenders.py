from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from sampling import others_slow

from benchmarks.contenders import Contender, Setting, flfast_command, parse
from benchmarks.workloads import WORKLOADS, find
from flfast.config.check import check
from flfast.train import CONF


@pytest.mark.parametrize(
    ("name", "engine", "threads", "ranks"),
    [
        ("eager", "eager", 1, 0),
        ("eager-2", "eager", 2, 0),
        ("eager-ddp2", "eager", 1, 2),
        ("ddp2", "", 1, 2),
        ("flfast", "", 1, 0),
    ],
)
def test_a_name_says_engine_threads_and_ranks(name, engine, threads, ranks):
    assert parse(name) == Contender(name, engine, threads, ranks)


@pytest.mark.parametrize(
    ("name", "threads", "ranks", "channels_last"),
    [
        ("plain", 1, 0, False),
        ("plain-2", 2, 0, False),
        ("plain-cl", 1, 0, True),
        ("plain-cl-4", 4, 0, True),
        ("plain-2p", 1, 2, True),
    ],
)
def test_a_name_says_how_the_plain_loop_runs(name, threads, ranks, channels_last):
    expected = Contender(name, "plain", threads, ranks, channels_last=channels_last)
    assert parse(name) == expected


@pytest.mark.parametrize("name", ["flower", "pfl", "pfllib"])
def test_other_simulators_are_peers(name):
    assert parse(name) == Contender(name, "peer", 1, 0)


def test_a_name_says_the_algorithm():
    chosen = ("algorithm=fedrep", "algorithm.head_epochs=1")
    assert parse("flfast:fedrep:head_epochs=1") == Contender(
        "flfast:fedrep:head_epochs=1", "", 1, 0, chosen
    )


def test_a_name_says_overrides(tmp_path):
    contender = parse("fused:ditto+engine.stack=1")
    assert contender.overrides == ("algorithm=ditto", "engine.stack=1")
    workload = find("W2", pfllib=Path("nowhere"), quick=True)
    command = flfast_command(contender, workload, Setting("cuda", 1), tmp_path)
    assert {"engine=fused", "engine.stack=1", "algorithm=ditto"} <= set(command)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "eager-0",
        "plain-ddp2",
        "eager-2-2",
        "slow-2",
        "plain:scaffold",
        "plain-0p",
        "eager+fast",
        "flfast:gossip",
    ],
)
def test_a_name_that_says_nothing_is_refused(name):
    with pytest.raises(ValueError, match="no such contender; allowed: plain-THREADS"):
        parse(name)


@pytest.mark.parametrize("name", others_slow(WORKLOADS, [*WORKLOADS][::4]))
def test_flfast_accepts_every_workload(name, root, tmp_path):
    workload = find(name, pfllib=Path("nowhere"), quick=False)
    command = flfast_command(parse("eager-ddp2"), workload, Setting("cpu", 1), tmp_path)
    overrides = [word for word in command if "=" in word and not word.startswith("hydra.")]
    search = f"hydra.searchpath=[file://{root / 'benchmarks' / 'conf'}]"
    with initialize_config_dir(version_base="1.3", config_dir=CONF):
        config = compose("config", [*overrides, "logger=none", search])
    check(config)
    assert config.sampler.count == workload.cohort
    assert config.strategy.name == "ddp"
    assert config.threads == 1
