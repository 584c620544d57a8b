import numpy as np
import torch

from flfast.zoo.datamodules.sources.synthetic_shapes import SyntheticShapes

OPTIONS = {"num_clients": 3, "per_client": 6, "test_per_client": 2, "side": 16, "dice_weight": 1.0}


def build(*, scanner=1.0, noise=0.05, seed=0, **changes):
    return SyntheticShapes(scanner=scanner, noise=noise, seed=seed, **OPTIONS | changes).load()


def test_every_client_has_as_many_images_for_training_and_for_tests():
    found = build()
    assert found.task == "segmentation"
    assert found.inputs.shape == (24, 1, 16, 16)
    assert np.bincount(found.owner, weights=found.is_test).tolist() == [2, 2, 2]
    assert (found.targets.flatten(1) > 0).any(dim=1).all()
    assert set(found.targets.unique().tolist()) == {0, 1, 2}
    assert torch.equal(build().inputs, found.inputs)
    assert not torch.equal(build(seed=1).targets, found.targets)


def test_shapes_are_brighter_and_scanners_differ_only_if_they_shall():
    def brightness(found):
        background = torch.where(found.targets == 0, found.inputs[:, 0].double(), torch.nan)
        return background.flatten(1).nanmean(dim=1).view(3, -1).mean(dim=1).numpy()

    alike, own = build(scanner=0.0, noise=0.0), build(scanner=1.0, noise=0.0)
    assert torch.equal(alike.targets, own.targets)
    assert np.ptp(brightness(alike)) < 10 < np.ptp(brightness(own))
    shapes = alike.inputs[:, 0][alike.targets > 0].double().mean()
    assert shapes > brightness(alike).max() + 40
