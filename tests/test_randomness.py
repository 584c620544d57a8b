import torch

from flfast.randomness import generator, seed_torch


def test_every_part_of_the_path_changes_the_numbers():
    draws = {
        float(generator(*path).random())
        for path in [
            (0, "shuffle", 1, 2),
            (1, "shuffle", 1, 2),
            (0, "cohort", 1, 2),
            (0, "shuffle", 2, 1),
            (0, "shuffle", 1, 2, 0),
        ]
    }
    assert len(draws) == 5


def test_seed_torch_repeats_the_same_numbers():
    seed_torch(0, "x", 1)
    first = torch.rand(2)
    seed_torch(0, "x", 1)
    assert torch.equal(first, torch.rand(2))
