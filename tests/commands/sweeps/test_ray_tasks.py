"""Only what needs no cluster: `.ci/ray` runs sweeps on one."""

import sys

import pytest

from flfast import train


def test_a_sweep_on_ray_without_ray_says_what_to_install(monkeypatch, capsys, tmp_path):
    monkeypatch.setitem(sys.modules, "ray", None)
    words = ("-m", "seed=0,1", "hydra/launcher=ray", f"hydra.sweep.dir={tmp_path}")
    monkeypatch.setattr("sys.argv", ["train", *words])
    with pytest.raises(SystemExit) as end:
        train.main()
    assert end.value.code == 2
    assert "hydra/launcher=ray needs ray: pip install 'flfast[ray]'" in capsys.readouterr().err
