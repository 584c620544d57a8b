import json
import math

from omegaconf import OmegaConf

from flfast.sweeps.finished import RESULT, finished_result, remove_result, write_result

CONFIG = OmegaConf.create({"rounds": 2, "resume": None, "shape": [1, 2], "lr": 0.1})


def changed(**values):
    return OmegaConf.merge(CONFIG, values)


def test_a_result_is_that_of_the_same_config(tmp_path):
    assert finished_result(tmp_path, CONFIG) is None
    write_result(tmp_path, CONFIG, 0.5)
    assert finished_result(tmp_path, CONFIG) == (0.5,)
    assert finished_result(tmp_path, changed(resume="auto")) == (0.5,)
    assert finished_result(tmp_path, changed(rounds=3)) is None
    assert finished_result(tmp_path, changed(shape=[1, 3])) is None
    remove_result(tmp_path)
    remove_result(tmp_path)
    assert finished_result(tmp_path, CONFIG) is None


def test_results_that_are_no_numbers(tmp_path):
    write_result(tmp_path, CONFIG, None)
    assert finished_result(tmp_path, CONFIG) == (None,)
    write_result(tmp_path, CONFIG, math.nan)
    assert math.isnan(finished_result(tmp_path, CONFIG).value)


def test_a_broken_file_is_no_result(tmp_path):
    for text in ("", "[]", "{}", '{"value": 1}', json.dumps({"value": 1, "config": []})):
        (tmp_path / RESULT).write_text(text)
        assert finished_result(tmp_path, CONFIG) is None
