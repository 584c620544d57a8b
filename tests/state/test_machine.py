"""Memory that a container has left."""

import pytest

from flfast.state import machine


@pytest.mark.parametrize(
    ("limit", "free"),
    [("1000\n", 1000 - 900 + 700), ("800\n", 600), ("100\n", 0), ("max\n", None)],
)
def test_the_kernels_copies_of_files_are_free_memory(tmp_path, monkeypatch, limit, free):
    monkeypatch.setattr(machine, "_CGROUP", tmp_path)
    (tmp_path / "memory.max").write_text(limit)
    (tmp_path / "memory.current").write_text("900\n")
    (tmp_path / "memory.stat").write_text("anon 200\ninactive_file 700\nactive_file 5\n")
    assert machine.free_memory() == free or (free is None and machine.free_memory() > 10**6)
