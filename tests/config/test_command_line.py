import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from flfast import train
from flfast.config.command_line import check_overrides
from flfast.config.errors import ConfigError

GROUPS = sorted(path.name for path in Path(train.CONF).iterdir() if path.is_dir())


@pytest.mark.parametrize("group", GROUPS)
def test_a_list_of_options_is_refused_where_only_the_last_would_act(group):
    """Files of options that set no common key are combined by Hydra, such as loggers."""
    options = sorted(path.stem for path in (Path(train.CONF) / group).glob("*.yaml"))
    for first, second in pairwise(options):
        texts = [(Path(train.CONF) / group / f"{n}.yaml").read_text() for n in (first, second)]
        if all(re.search("^_target_:", text, re.MULTILINE) for text in texts):
            with pytest.raises(ConfigError, match=rf"-m {group}={first},{second}"):
                check_overrides([f"{group}=[{first},{second}]"])


@pytest.mark.parametrize("word", ["logger=[csv,tensorboard]", "callbacks=[none,files]"])
def test_options_that_add_to_each_other_may_be_listed(word):
    check_overrides([word])


@pytest.mark.parametrize("dashes", ["--", "\N{EM DASH}"])
def test_settings_may_have_dashes_in_front_as_agents_of_searches_write_them(
    monkeypatch, capsys, dashes
):
    words = (f"{dashes}optimizer.lr=0.125", f"{dashes}rounds=7", "--cfg=job")
    monkeypatch.setattr("sys.argv", ["flfast", *words])
    train.main()
    config = OmegaConf.create(capsys.readouterr().out)
    assert (config.optimizer.lr, config.rounds) == (0.125, 7)


STRICT = """
import argparse, sys
import hydra, pydantic

add = argparse.ArgumentParser.add_argument

def check_help(parser, action):
    assert not action.help or isinstance(action.help, str)

def add_argument(parser, *names, **options):
    action = add(parser, *names, **options)
    parser._check_help(action)
    return action

argparse.ArgumentParser._check_help = check_help
argparse.ArgumentParser.add_argument = add_argument
sys.version_info = (3, 14, 0)
import flfast.config.command_line
"""
"""What Python 3.14 does, in a program."""


def test_arguments_are_read_where_argparse_checks_help():
    """Hydra's parser, which has such a help, is read at import."""
    process = subprocess.run([sys.executable, "-c", STRICT], capture_output=True, text=True)
    assert not process.stderr
