"""What the tests of the variants share: facts that hold for each of them."""

import torch
from torch import Tensor

from workbench.attention import AttentionModule

BATCH, HEADS, TOKENS, WIDTH = 2, 3, 7, 5


def randn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def heads(seed: int = 0, tokens: int = TOKENS, width: int = WIDTH) -> Tensor:
    """(batch, head, token, head_dim) of normal numbers."""
    return randn(BATCH, HEADS, tokens, width, seed=seed)


def perturb(module: AttentionModule) -> AttentionModule:
    """The module in float64, its parameters moved off the special values they start at."""
    generator = torch.Generator().manual_seed(0)
    module = module.double()
    with torch.no_grad():
        for parameter in module.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.add_(noise, alpha=0.3)
    return module


def assert_causal(module: AttentionModule, tokens: int = TOKENS, atol: float = 1e-12, first: int = 0) -> None:
    """Changing token t changes its own output (from token ``first`` on) and no output before it."""
    x = randn(BATCH, tokens, module.dim, seed=11)
    before = module(x)
    for t in range(tokens):
        changed = x.clone()
        changed[:, t] += randn(BATCH, module.dim, seed=12 + t)
        after = module(changed)
        torch.testing.assert_close(after[:, :t], before[:, :t], rtol=0, atol=atol)
        assert t < first or (after[:, t] - before[:, t]).abs().max() > 1e-6


def assert_padding_is_ignored(module: AttentionModule, tokens: int = TOKENS, atol: float = 1e-12) -> None:
    """The real tokens get what they would get alone, whatever stands in the padding."""
    real = tokens - 2
    x = randn(BATCH, tokens, module.dim, seed=21)
    mask = torch.ones(BATCH, tokens, dtype=torch.bool)
    mask[:, real:] = False
    alone = module(x[:, :real])
    torch.testing.assert_close(module(x, mask)[:, :real], alone, rtol=0, atol=atol)
    changed = x.clone()
    changed[:, real:] = 50 * randn(BATCH, tokens - real, module.dim, seed=22)
    torch.testing.assert_close(module(changed, mask)[:, :real], alone, rtol=0, atol=atol)


def assert_observing_changes_nothing(module: AttentionModule, tokens: int = TOKENS) -> None:
    """Observed, the output is the same to the bit, and the declared sites are there."""
    x = randn(BATCH, tokens, module.dim, seed=31)
    plain, nothing = module.attend(x)
    observed, inside = module.attend(x, observe=True)
    assert nothing == {}
    assert torch.equal(plain, observed)
    assert set(module.sites) <= {*inside, "attn"}
    assert plain.shape == (BATCH, module.num_heads, tokens, module.head_dim)
