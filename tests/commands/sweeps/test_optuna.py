"""The recipes of conf/hparams_search, if the extra `optuna` is installed."""

import csv

import pytest
from omegaconf import OmegaConf

pytest.importorskip("hydra_plugins.hydra_optuna_sweeper", reason="needs flfast[optuna]")
pytestmark = pytest.mark.filterwarnings("ignore")  # of optuna 2

TINY = (
    *("data=synthetic", "data.num_examples=400", "data.num_test=40", "partition=iid"),
    *("model=logistic", "rounds=1", "sampler.count=2", "callbacks=none", "engine=eager"),
)


@pytest.mark.slow
def test_a_search_finds_the_best_trial_and_goes_on(flfast_run, root):
    recipes = sorted(path.stem for path in (root / "conf" / "hparams_search").glob("*.yaml"))
    assert len(recipes) == 2
    for recipe in recipes:
        words = ("-m", f"hparams_search={recipe}", *TINY)
        few = ("hydra.sweeper.n_trials=3", "local_epochs=1")
        folder = flfast_run(*words, *few, run_dir=recipe)
        with (folder / "comparison.csv").open(newline="") as file:
            jobs = list(csv.DictReader(file))
        assert len({job["optimizer.lr"] for job in jobs}) == 3
        best = OmegaConf.load(folder / "optimization_results.yaml")
        assert best.best_value == max(float(job["val/accuracy"]) for job in jobs)
    before = [path.stat().st_mtime_ns for path in sorted(folder.glob("*/result.json"))]
    more = ("hydra.sweeper.n_trials=4", "local_epochs=1", "resume=auto")
    flfast_run(*words, *more, run_dir=recipe)
    after = [path.stat().st_mtime_ns for path in sorted(folder.glob("*/result.json"))]
    assert after[:3] == before
    assert len(after) == 4
