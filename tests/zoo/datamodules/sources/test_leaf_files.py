import json

import pytest

from flfast.zoo.datamodules.sources.leaf_files import leaf_users


@pytest.fixture
def write(tmp_path):
    """Write {user: (x, y)} as a file of LEAF below tmp_path."""

    def file(path, users, **changes):
        content = {
            "users": list(users),
            "num_samples": [len(x) for x, _ in users.values()],
            "user_data": {name: {"x": x, "y": y} for name, (x, y) in users.items()},
        }
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(json.dumps(content | changes))

    return file


def test_users_come_file_by_file_and_those_without_examples_are_left_out(write, tmp_path):
    write("train/data_1_train.json", {"c": (["x3"], [3])}, hierarchies=["play"])
    write("train/data_0_train.json", {"b": (["x1", "x2"], [1, 2]), "empty": ([], [])})
    write("test/data_0_test.json", {"b": (["x4"], [4])})
    users = list(leaf_users(str(tmp_path)))
    assert [(u.name, u.x, u.y, u.is_test) for u in users] == [
        ("b", ["x1", "x2"], [1, 2], False),
        ("c", ["x3"], [3], False),
        ("b", ["x4"], [4], True),
    ]
    assert users[2].path == tmp_path / "test" / "data_0_test.json"


def test_a_folder_without_training_files_is_an_error(write, tmp_path):
    write("test/data.json", {"a": ([1], [1])})
    with pytest.raises(ValueError, match=r"data\.root=.* has no train/\*\.json"):
        list(leaf_users(str(tmp_path)))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"users": ["a"', "is not readable JSON"),
        ("[1]", "is not a file of LEAF"),
        ('{"users": ["a"]}', "is not a file of LEAF"),
        ('{"users": {}, "user_data": {}}', "is not a file of LEAF"),
        ('{"users": ["a"], "user_data": {"b": {"x": [], "y": []}}}', "user 'a' lacks lists"),
        ('{"users": ["a"], "user_data": {"a": {"x": [1], "y": []}}}', "user 'a' lacks lists"),
        ('{"users": [["a"]], "user_data": {}}', r"user \['a'\] lacks lists"),
    ],
)
def test_a_broken_file_is_named_with_what_is_wrong(tmp_path, content, message):
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "data.json").write_text(content)
    with pytest.raises(ValueError, match=rf"train/data\.json:? {message}"):
        list(leaf_users(str(tmp_path)))
