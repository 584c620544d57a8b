"""A small network."""

from torch import nn


class DenseNet(nn.Module):
    """Two layers with BatchNorm between them."""

    def __init__(self, input_size=64, hidden_size=16, output_size=10):
        super().__init__()
        self.model = nn.Sequential(
            nn.Linear(input_size, hidden_size),
            nn.BatchNorm1d(hidden_size),
            nn.ReLU(),
            nn.Linear(hidden_size, output_size),
        )

    def forward(self, x):
        return self.model(x.flatten(1))
