import torch

from flfast.models.logistic import logistic


def test_logits_are_affine_in_the_input():
    model = logistic(input_shape=(2, 3), num_classes=4)
    assert sum(p.numel() for p in model.parameters()) == 4 * (6 + 1)
    left, right = torch.rand(2, 1, 2, 3)
    between = (model(left) + model(right)) / 2
    torch.testing.assert_close(model((left + right) / 2), between)
