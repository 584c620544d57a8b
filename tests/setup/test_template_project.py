"""A project in lightning-hydra-template's shape runs from its own config files, as they are."""

import csv
from pathlib import Path

import pytest
from omegaconf import OmegaConf

import flfast
from flfast.config.implied import implied

PROJECT = Path(__file__).parents[1] / "template_project"
WORDS = ("model=digits_net", "data=digits_own", "algorithm=ditto", "rounds=1", "callbacks=files")
SMALL = (*WORDS, "partition.num_clients=2", "logger=csv")


@pytest.fixture
def project(monkeypatch, tmp_path):
    """The project, whose data are in a temporary folder."""
    monkeypatch.syspath_prepend(PROJECT)
    monkeypatch.setenv("PROJECT_ROOT", str(tmp_path))
    return tmp_path


@pytest.mark.filterwarnings("ignore:Attribute 'net' is an instance")
def test_it_runs_by_its_config_files(project, flfast_run):
    folder = flfast_run("--config-dir", str(PROJECT / "configs"), *SMALL)
    assert (project / "data" / "digits.pt").exists()
    config = OmegaConf.load(folder / ".hydra" / "config.yaml")
    assert "paths" not in config
    assert config.data.data_dir == f"{project}/data/"
    assert (config.batch_size, config.task) == (32, "module")
    with (folder / "metrics.csv").open(newline="") as file:
        row = [*csv.DictReader(file)][-1]
    views = ("train", "global", "local", "personal", "val")
    assert all(float(row[f"{view}/{name}"]) > 0 for view in views for name in ("loss", "acc"))
    assert "train/acc_best" not in row  # that of validation within local training


def test_it_is_found_from_python_too(project):
    words = (f"hydra.searchpath=[file://{PROJECT / 'configs'}]", *SMALL)
    config = flfast.compose(*words)
    assert config.data.data_dir == f"{project}/data/"
    with pytest.raises(flfast.ConfigError, match=r"data=digits: an option of flfast and .*rename"):
        flfast.compose(*words, "data=digits")
    with pytest.raises(flfast.ConfigError, match=r"'paths\.other' not found"):
        flfast.compose(*words, "data.data_dir=${paths.other}")


@pytest.mark.usefixtures("project")
def test_a_project_without_its_folder_is_refused_in_one_line(monkeypatch):
    monkeypatch.delenv("PROJECT_ROOT")
    words = (f"hydra.searchpath=[file://{PROJECT / 'configs'}]", *SMALL)
    with pytest.raises(flfast.ConfigError, match=r"^paths.data_dir: .*'PROJECT_ROOT'") as error:
        flfast.run(*words)
    assert "\n" not in str(error.value)


def test_paths_are_composed_unless_others_are_typed():
    folder = f"--config-dir={PROJECT / 'configs'}"
    assert implied([folder]) == ["+paths=default"]
    assert implied([folder, "+paths=mine"]) == []
    assert implied([]) == []
