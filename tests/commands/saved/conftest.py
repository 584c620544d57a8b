"""Small finished runs, which the tests of this folder share."""

import logging
import sys
import warnings

import pytest

from flfast import train

TINY = (
    *("rounds=2", "local_epochs=1", "data.test_fraction=0.1", "partition.num_clients=5"),
    *("sampler.fraction=0.5", "engine=eager", "trainer.devices=1", "batch_size=32"),
    *("callbacks=none", "checkpoint.every=1", "checkpoint.keep_last=9"),
    "+callbacks.weights._target_=flfast.output.callbacks.final_weights.FinalWeights",
    *("+callbacks.weights.max_personal=null", "+callbacks.weights.model=${model._target_}"),
)
RUNS = {
    "fedavg": ("model=custom", "model._target_=nets_to_export.conv_net", "rounds=1"),
    "ditto": (
        *("algorithm=ditto", "model.hidden=[16]", "finetune_epochs=1"),
        *("sampler.holdout_clients=1", "checkpoint.keep_best=val/loss", "batch_size=auto"),
        "lr_schedule=cosine",  # the last round has a rate of its own
    ),
    "fedrep": ("algorithm=fedrep", "model.hidden=[16]", "+callbacks.weights.max_personal=0"),
    "fedcp": ("algorithm=fedcp", "model.hidden=[16]", "rounds=1"),
}


@pytest.fixture(scope="session")
def run_of(tmp_path_factory):
    """Folder of a finished run by name; each runs once."""
    folder = tmp_path_factory.mktemp("saved-runs")

    def run_of(name):
        path = folder / name
        if not path.exists():
            given = {word.partition("=")[0]: word for word in (*TINY, *RUNS[name])}
            with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
                patch.setattr(sys, "argv", ["flfast", *given.values(), f"hydra.run.dir={path}"])
                handlers = list(logging.getLogger().handlers)
                train.main()
                for handler in {*logging.getLogger().handlers} - {*handlers}:
                    handler.close()
                logging.getLogger().handlers = handlers  # caplog's, which Hydra took away
        return path

    return run_of
