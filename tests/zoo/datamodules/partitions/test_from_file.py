import numpy as np
import pytest

from flfast.zoo.datamodules.partitions.from_file import from_file

OWNER = np.array([1, 0, 2, 2], dtype=np.uint8)


@pytest.mark.parametrize("digest", [{}, {"digest": np.array("abc")}])
def test_owners_are_read_as_they_were_written(tmp_path, digest):
    path = tmp_path / "partition.npz"
    np.savez_compressed(path, owner=OWNER, **digest)
    found = from_file(4, path=str(path), digest="abc")
    assert found.tolist() == OWNER.tolist()
    assert found.dtype == np.int64


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"owner": OWNER, "digest": np.array("x")}, r"is of other data, whose targets differ"),
        ({"owner": OWNER[:3]}, r"has owners of 3 examples, the data have 4"),
        ({"owner": OWNER.astype(float)}, r"has no array `owner` of integers \[N\]; allowed: the"),
        ({"owner": OWNER[None]}, r"has no array `owner` of integers"),
        ({"owners": OWNER}, r"has no array `owner` of integers"),
        ({"owner": OWNER.astype(object)}, r"is no NPZ file"),
        ({"owner": np.array([0, 1, -1, 2])}, r"has clients -1 to 2; allowed: clients numbered 0"),
        ({"owner": np.array([0, 1, 2, 9])}, r"has clients 0 to 9; allowed: clients numbered 0"),
    ],
)
def test_files_of_other_data_are_refused(tmp_path, arrays, message):
    path = tmp_path / "partition.npz"
    np.savez(path, **arrays)
    with pytest.raises(ValueError, match=rf"partition.path=.*partition.npz: {message}"):
        from_file(4, path=str(path), digest="abc")


@pytest.mark.parametrize(
    "content", [b"", b"PK\3\4 broken", b'{"num_clients": 3}', b"\x93NUMPY", b"\x80\4K\1."]
)
def test_files_that_are_no_npz_are_refused(tmp_path, content):
    path = tmp_path / "partition.json"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"partition.json: is no NPZ file; allowed: the parti"):
        from_file(4, path=str(path), digest="abc")


def test_a_single_array_and_a_cut_file_are_refused(tmp_path):
    np.save(tmp_path / "owner.npy", OWNER)
    np.savez(tmp_path / "whole.npz", owner=OWNER)
    (tmp_path / "cut.npz").write_bytes((tmp_path / "whole.npz").read_bytes()[:100])
    for name in ("owner.npy", "cut.npz"):
        with pytest.raises(ValueError, match=r"is no NPZ file"):
            from_file(4, path=str(tmp_path / name), digest="abc")


def test_files_that_are_not_there_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"none.npz: No such file"):
        from_file(4, path=str(tmp_path / "none.npz"), digest="")
    with pytest.raises(ValueError, match=r"Is a directory"):
        from_file(4, path=str(tmp_path), digest="")
