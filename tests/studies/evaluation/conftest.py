import pytest
import torch
from torch import nn


@pytest.fixture(autouse=True, scope="package")
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Planted(nn.Module):
    """A linear classifier whose weights are its classes' means, and images that lie around them."""

    def __init__(self, classes=3, size=(1, 4, 5), seed=0):
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.means = nn.Parameter(0.5 + 0.15 * torch.randn(classes, *size, generator=generator))
        self.requires_grad_(False)

    def forward(self, pixels):
        flat, means = pixels.flatten(1), self.means.flatten(1)
        return 4 * (flat @ means.T - means.square().sum(1) / 2)

    def sample(self, n, noise=0.2, seed=1):
        generator = torch.Generator().manual_seed(seed)
        targets = torch.arange(n) % len(self.means)
        drawn = self.means[targets] + noise * torch.randn(n, *self.means.shape[1:], generator=generator)
        return drawn.clamp(0, 1), targets


@pytest.fixture(scope="session")
def planted():
    return Planted()
