"""A switch: which expert a token goes to, which tokens pass by, and the loss that keeps the experts even."""

import math

import pytest
import torch
import torch.nn.functional as F

import workbench
from tests.models.architectures.variants import moved
from workbench.core.errors import InputError
from workbench.models.architectures import build
from workbench.models.architectures.mixture import SwitchMlp, load_balance
from workbench.models.checkpoints import restore, write_checkpoint

BATCH, TOKENS, WIDTH, HIDDEN, EXPERTS = 2, 7, 6, 5, 3
SMALL = {
    "name": "lm", "vocabulary": 13, "context": 11, "embed_dim": 14, "depth": 2, "num_heads": 7, "mlp_ratio": 2.0,
    "experts": EXPERTS,
}  # fmt: skip


@pytest.fixture
def x():
    return torch.randn(BATCH, TOKENS, WIDTH, dtype=torch.float64)


@pytest.fixture
def mixture():
    return moved(SwitchMlp(WIDTH, HIDDEN, EXPERTS)).double()


@pytest.mark.parametrize("training", [False, True])
def test_a_token_goes_to_its_most_likely_expert_while_it_has_room(training, mixture, x):
    output = mixture.train(training)(x)
    room = math.ceil(1.25 * TOKENS / EXPERTS)
    passed = 0
    for row in range(BATCH):
        full = [0] * EXPERTS
        for token in range(TOKENS):
            probability = mixture.router(x[row, token]).softmax(0)
            best = int(probability.argmax())
            full[best] += 1
            expected = probability[best] * mixture.experts[best](x[row, token])
            if training and full[best] > room:
                expected, passed = torch.zeros(WIDTH, dtype=torch.float64), passed + 1
            torch.testing.assert_close(output[row, token], expected)
    assert bool(passed) == training


def test_an_even_load_has_the_smallest_loss_and_one_expert_alone_the_largest():
    even = torch.full((1, 6, EXPERTS), 1 / EXPERTS)
    assert load_balance(even, torch.tensor([[0, 1, 2, 0, 1, 2]])).item() == pytest.approx(1)
    alone = torch.tensor([1.0, 0, 0]).expand(1, 6, EXPERTS)
    assert load_balance(alone, torch.zeros(1, 6, dtype=torch.long)).item() == pytest.approx(EXPERTS)


def test_the_gradient_is_that_of_the_loss_and_the_balance(mixture, x):
    mixture.train()(x).square().mean().backward()
    found = mixture.router.weight.grad.clone()
    mixture.zero_grad()
    probability = mixture.router(x).softmax(-1)
    balance = mixture.balance * load_balance(probability, probability.argmax(-1))
    mixture.balance = 0.0
    (mixture(x).square().mean() + balance).backward()
    torch.testing.assert_close(mixture.router.weight.grad, found)
    mixture.zero_grad()
    mixture(x).square().mean().backward()
    assert not torch.allclose(mixture.router.weight.grad, found)


def test_without_training_nothing_is_added(mixture, x):
    mixture.eval()(x).square().mean().backward()
    found = mixture.router.weight.grad.clone()
    mixture.zero_grad()
    mixture.balance = 5.0
    mixture(x).square().mean().backward()
    assert torch.equal(mixture.router.weight.grad, found)


@pytest.mark.parametrize("training", [False, True])
def test_a_language_model_with_experts_sees_nothing_later_nor_elsewhere(training):
    model = moved(build(SMALL)).double().train(training)
    ids = torch.randint(13, (3, 9), generator=torch.Generator().manual_seed(0))
    before = model(ids)
    changed = ids.clone()
    changed[0, 5:] = (changed[0, 5:] + 1) % 13
    changed[1] = (changed[1] + 1) % 13
    after = model(changed)
    torch.testing.assert_close(after[0, :5], before[0, :5], rtol=0, atol=1e-12)
    torch.testing.assert_close(after[2], before[2], rtol=0, atol=1e-12)
    assert not torch.allclose(after[0, 5:], before[0, 5:])


@pytest.mark.parametrize("classes", [0, 4])
def test_it_is_stored_loaded_and_captured(classes, tmp_path):
    description = {**SMALL, "attention": "rpc-sym", "num_classes": classes}
    model = build(description).train()
    ids = torch.randint(13, (2, 9))
    logits = model(ids)
    assert logits.shape == ((2, 4) if classes else (2, 9, 13))
    F.cross_entropy(logits.flatten(0, -2), torch.zeros(logits[..., 0].numel(), dtype=torch.long)).backward()
    write_checkpoint(tmp_path / "x.safetensors", moved(model), {"architecture": description})
    restored, _ = restore(tmp_path / "x.safetensors")
    assert torch.equal(restored(ids), model(ids))
    capture = workbench.capture(model, ids, sites=("resid_mid", "resid_post"))
    for record, block in zip(capture, model.blocks, strict=True):
        rest = record.resid_mid + block.mlp(block.norm2(record.resid_mid))
        torch.testing.assert_close(record.resid_post, rest)


def test_a_classifier_takes_the_mean_over_real_tokens():
    model = moved(build({**SMALL, "num_classes": 4})).double()
    ids = torch.randint(13, (2, 9), generator=torch.Generator().manual_seed(1))
    mask = torch.ones(2, 9, dtype=torch.long)
    mask[1, 6:] = 0
    together = model(ids, mask)
    torch.testing.assert_close(together[1:], model(ids[1:, :6]))
    torch.testing.assert_close(together[0], model.head(model.features(ids[:1], None)[0].mean(0)))


def test_one_expert_is_no_mixture():
    with pytest.raises(InputError, match="at least two experts, got 1; leave experts out"):
        build({**SMALL, "experts": 1})
