import numpy as np
import pytest

from flfast.zoo.datamodules.sources.domains import Domains


@pytest.fixture
def load(tmp_path, in_memory):
    settings = {"clients_per_domain": 1, "test_domain": None, "test_fraction": 0.25}
    settings |= {"image_size": None, "channels": 3, "seed": 0, "root": str(tmp_path)}
    return lambda **changes: Domains(**settings | in_memory | changes).load()


@pytest.fixture
def written(save_images):
    """Three domains, of which one lacks a class."""
    for domain, counts in {"photo": (8, 4), "art": (4, 4), "sketch": (0, 12)}.items():
        for name, count in zip(("cat", "dog"), counts, strict=True):
            if count:
                save_images(f"{domain}/{name}", [f"{i}.jpg" for i in range(count)])


pytestmark = pytest.mark.usefixtures("written")


def test_domains_are_the_clients_and_each_gives_a_share_of_its_classes(load):
    examples = load()
    domain = np.repeat([0, 1, 2], [8, 12, 12])  # art, photo, sketch
    assert examples.targets.tolist() == [0] * 4 + [1] * 4 + [0] * 8 + [1] * 4 + [1] * 12
    assert examples.owner.tolist() == domain.tolist()
    assert examples.client_names == ("art", "photo", "sketch")
    assert examples.class_names == ("cat", "dog")
    kinds = domain * 2 + examples.targets.numpy()
    assert np.bincount(kinds[examples.is_test]).tolist() == [1, 1, 2, 1, 0, 3]
    assert examples.inputs.shape == (32, 3, 5, 6)
    assert load(test_fraction=0.0).is_test is None


def test_parts_of_a_domain_are_equal_random_and_a_function_of_the_seed(load):
    examples, again, other = (load(clients_per_domain=3, seed=seed) for seed in (1, 1, 2))
    domain = np.repeat([0, 1, 2], [8, 12, 12])
    assert np.array_equal(examples.owner // 3, domain)
    assert examples.client_names[2:5] == ("art 2", "photo 0", "photo 1")
    for test in (False, True):
        sizes = np.bincount(examples.owner[examples.is_test == test], minlength=9).reshape(3, 3)
        assert (np.ptp(sizes, axis=1) <= 1).all()
    assert np.array_equal(examples.owner, again.owner)
    assert not np.array_equal(examples.owner, other.owner)


def test_a_test_domain_is_no_client(load):
    examples = load(test_domain="photo")
    assert examples.is_test.tolist() == [False] * 8 + [True] * 12 + [False] * 12
    assert examples.owner.tolist() == [0] * 8 + [-1] * 12 + [1] * 12
    assert examples.client_names == ("art", "sketch")


def test_too_many_clients_are_refused_before_images_are_decoded(load, tmp_path):
    next((tmp_path / "art" / "cat").iterdir()).write_bytes(b"no image")
    with pytest.raises(ValueError, match=r"data.clients_per_domain=7"):
        load(clients_per_domain=7)


def test_what_cannot_be_is_an_error_that_says_what_can(load, tmp_path):
    with pytest.raises(ValueError, match=r"data.test_domain=clip; allowed: null, art, photo, sk"):
        load(test_domain="clip")
    with pytest.raises(ValueError, match=r"data.clients_per_domain=7: domain art has 6 .* 1 to 6"):
        load(clients_per_domain=7)
    with pytest.raises(ValueError, match=r"data.root must hold images in DOMAIN/CLASS/"):
        load(root=str(tmp_path / "nowhere"))
    with pytest.raises(ValueError, match=r"data.root must hold images in DOMAIN/CLASS/"):
        load(root=str(tmp_path / "photo"))
    (tmp_path / "one" / "photo" / "cat").mkdir(parents=True)
    (tmp_path / "photo" / "cat" / "0.jpg").rename(tmp_path / "one" / "photo" / "cat" / "0.jpg")
    with pytest.raises(ValueError, match=r"at least two domains; found: photo"):
        load(root=str(tmp_path / "one"))
