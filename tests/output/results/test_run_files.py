"""What a run leaves is known by name, so that the next one can take its place."""

from flfast.output.results.run_files import OF_A_RUN, remove_files

STAY = {".hydra", ".lock", "result.json", "train.log"}


def test_all_files_of_a_run_are_known(flfast_run):
    """Whatever a callback, a logger or a strategy adds has to be in the list."""
    words = (
        *("experiment=quick", "algorithm=ditto", "rounds=2", "model.hidden=[8]"),
        *("callbacks=files", "checkpoint.every=1", "client_states=disk", "devices=lognormal"),
        *("pace=buffered", "pace.buffer=2", "audit=membership", "trainer.profiler=simple"),
        *("engine=eager", "batch_size=50"),
    )
    folder = flfast_run(*words)
    assert len(list(folder.iterdir())) > len(STAY) + 10
    remove_files(folder, OF_A_RUN)
    assert {path.name for path in folder.iterdir()} == STAY


def test_what_a_link_points_to_stays(tmp_path):
    own, run = tmp_path / "own", tmp_path / "run"
    own.mkdir()
    run.mkdir()
    (own / "thesis.txt").write_text("years")
    (run / "checkpoints").symlink_to(own)
    remove_files(run, OF_A_RUN)
    assert list(run.iterdir()) == []
    assert (own / "thesis.txt").exists()
