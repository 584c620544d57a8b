"""Words of other frameworks: each gets a message with the setting that it means here."""

import re
from pathlib import Path

import pytest
from hydra.errors import HydraException
from pages import page
from sampling import rotating

from flfast.config.check import check
from flfast.config.composition import CONF, compose, without_hydra
from flfast.config.errors import ConfigError
from flfast.config.explain import message
from flfast.config.known_words import known_words, ours

OF_OPTIONS = {
    "data.root": ["data=mnist"],
    "data.owner": ["data=table"],
    "data.targets": ["data=table"],
}


@pytest.fixture(scope="module")
def keys():
    """All keys of the default config, and names of its groups."""
    return set(known_keys(without_hydra(compose([]))))


def known_keys(node, prefix=""):
    for key in node:
        yield f"{prefix}{key}"
        if hasattr(node, "_get_node") and hasattr(node._get_node(key), "keys"):
            yield from known_keys(node._get_node(key), f"{prefix}{key}.")


def said(*words):
    """What the command says of settings."""
    try:
        check(without_hydra(compose(["logger=none", *words])))
    except (ConfigError, HydraException) as error:
        return message(error, words)
    return ""


@pytest.mark.parametrize("word", rotating(known_words(), every=5))
def test_each_word_gets_its_setting_with_and_without_a_plus(monkeypatch, keys, word):
    # The names of keys take most of the time, and are those of the default config here.
    monkeypatch.setattr("flfast.config.explain._known_keys", lambda *_: sorted(keys))
    whole = "." in word and not word.startswith("trainer.")  # Hydra makes a dict of `task`
    for sign in ("",) if whole else ("", "+"):
        found = said(f"{sign}{word}=1")
        elsewhere = f"did you mean {ours(word)}?"
        assert ours(word) in found or elsewhere in found, found
        assert len(found) < 250


@pytest.mark.parametrize("word", ["gpus", "num_processes", "auto_select_gpus"])
def test_a_word_of_the_trainer_is_known_below_it_too(word):
    assert f"unknown key trainer.{word}; here it is {ours(word)}" in said(f"trainer.{word}=1")


def test_no_word_is_a_setting_itself(keys):
    assert not keys & known_words().keys()


def test_each_word_has_one_meaning():
    lines = Path(CONF, "..", "flfast", "config", "known_words.txt").read_text().splitlines()
    words = [word for line in lines if line[:1] != "#" for word in line.partition(": ")[2].split()]
    assert len(words) == len(set(words)) == len(known_words())


@pytest.mark.parametrize("text", sorted({*known_words().values()}))
def test_what_a_word_means_is_a_setting(keys, text):
    if text.startswith(("+", "--", "an ")):
        return
    *options, key = text.partition(",")[0].split()
    if "=" in key:
        assert Path(CONF, f"{key.replace('=', '/')}.yaml").is_file()
        return
    options = options or OF_OPTIONS.get(key)
    known = set(known_keys(without_hydra(compose(options)))) if options else keys
    assert key in known | {"hydra.run.dir"}


def test_words_of_pfllib_mean_what_its_page_says():
    table = page("pfllib").partition("## General options")[2].partition("\n## ")[0]
    compared = 0
    for words, setting in re.findall(r"^\| (`-.*?`) \| `(.*?)` \|", table, re.M):
        for word in re.findall(r"`(-\w+)`", words):
            if ours(word) is not None:
                names = re.findall(r"[a-z_][\w.]*(?==)", setting)
                assert set(re.findall(r"[a-z_][\w.]*", ours(word))) & set(names), word
                compared += 1
    assert compared > 15
