"""What a capture changes in the process: other threads, activation checkpointing and compiled functions."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tests.captures.families import FAMILIES, seeded
from workbench.attention import replace_attention
from workbench.captures import capture, capture_steps
from workbench.core.errors import InputError

WORDS = torch.randn(2, 6, 16, generator=torch.Generator().manual_seed(1))


@seeded
def encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    return nn.TransformerEncoder(layer, 3)


def vit(depth: int = 2) -> nn.Module:
    import timm

    torch.manual_seed(0)
    return timm.create_model("vit_tiny_patch16_224", img_size=32, depth=depth, num_classes=4)


def tost() -> nn.Module:
    model = vit()
    replace_attention(model, "tssa")
    return model


def in_thread(function: Callable[[], Any]) -> Any:
    """Return what a function returns in another thread."""
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(function()))
    thread.start()
    thread.join()
    return results[0]


@pytest.mark.parametrize("build", [encoder, vit, tost, FAMILIES["gpt2"].build])
def test_another_thread_runs_the_model_during_a_capture(build):
    model = build().eval()
    batch = FAMILIES["gpt2"].batch() if build is FAMILIES["gpt2"].build else torch.randn(2, 3, 32, 32)
    batch = WORDS if build is encoder else batch

    @torch.no_grad()
    def run() -> torch.Tensor:
        output = model(**batch) if isinstance(batch, dict) else model(batch)
        return output if isinstance(output, torch.Tensor) else output[0]

    plain, outputs, layers = run(), [], []
    alone = capture(model, batch, sites=["head_out"])

    def each(record, tokens) -> None:
        outputs.append(in_thread(run))
        layers.append(record.head_out.clone())

    captured = capture(model, batch, sites=["head_out"], each=each)
    assert len(layers) == len(alone)
    for layer, record in zip(layers, alone, strict=True):
        assert torch.equal(layer, record.head_out)
    for output in outputs:
        torch.testing.assert_close(output, plain)
    assert "other threads" in " ".join(captured.notes)
    assert "other threads" not in " ".join(alone.notes)


def test_two_threads_capture_one_model_and_leave_its_fast_path():
    model, captures = encoder(), []

    def work() -> None:
        captures.extend(capture(model, WORDS) for _ in range(10))

    expected = capture(model, WORDS)
    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(captures) == 20
    for captured in captures:
        for record, other in zip(captured, expected, strict=True):
            assert torch.equal(record.attn, other.attn)
    assert torch.backends.mha.get_fastpath_enabled()
    assert all(not child._forward_hooks for child in model.modules())


def test_a_pass_in_another_thread_is_no_step():
    model = encoder()

    def run() -> None:
        model(WORDS)
        in_thread(lambda: model(WORDS))

    assert capture_steps(model, run).count == 1
    with pytest.raises(InputError, match="never ran"):
        capture_steps(model, lambda: in_thread(lambda: model(WORDS)))


@pytest.mark.parametrize("reentrant", [True, False])
def test_gradients_of_a_checkpointed_model(reentrant):
    build = FAMILIES["llama"].build
    plain, model, batch = build().train(), build().train(), FAMILIES["llama"].batch()
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    gradients = []
    for module in (plain, model):
        captured = capture(module, batch, grad=True)
        captured[0].attn.square().sum().backward(retain_graph=True)
        captured.result[0].sum().backward()
        gradients.append([p.grad for p in module.parameters() if p.grad is not None])
    assert gradients[0]
    assert len(gradients[0]) == len(gradients[1])
    for own, other in zip(*gradients, strict=True):
        torch.testing.assert_close(own, other)
    assert "checkpointing was off" in " ".join(captured.notes)
    checkpoint, x = torch.utils.checkpoint.checkpoint, torch.ones(2, requires_grad=True)
    checkpoint(lambda x: x * 3, x, use_reentrant=reentrant).sum().backward()
    assert x.grad.tolist() == [3, 3]
    assert "apply" not in vars(torch.utils.checkpoint.CheckpointFunction)


def test_gradients_of_timm_with_checkpointing():
    model = vit().train()
    model.set_grad_checkpointing(True)
    captured = capture(model, torch.randn(2, 3, 32, 32), grad=True)
    captured[1].attn.square().sum().backward()
    assert model.patch_embed.proj.weight.grad.abs().sum() > 0


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v


compiled = torch.compile(attend, backend="eager")


class CallsCompiled(nn.Module):
    """A layer whose attention is a compiled function of its file, or one that it holds."""

    def __init__(self, own: bool) -> None:
        super().__init__()
        self.qkv, self.num_heads = nn.Linear(16, 48), 2
        if own:
            self.function = torch.compile(attend, backend="eager")

    def forward(self, x):
        heads = [part.unflatten(-1, (2, 8)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1)]
        return self.function(*heads) if hasattr(self, "function") else compiled(*heads)


def compiled_forward() -> nn.Module:
    model = vit().eval()
    model.forward = torch.compile(model.forward, backend="eager")
    return model


@pytest.mark.parametrize(
    ("build", "batch"),
    [
        (lambda: CallsCompiled(own=False), WORDS),
        (lambda: CallsCompiled(own=True), WORDS),
        (compiled_forward, torch.randn(2, 3, 32, 32)),
    ],
)
@pytest.mark.parametrize("ran_before", [False, True])
def test_compiled_functions_run_as_plain_python(build, batch, ran_before):
    torch.manual_seed(0)
    model = build()
    output = model(batch) if ran_before else None
    captured = capture(model, batch)
    for record in captured:
        expected = attend(record.q, record.k, record.v)
        torch.testing.assert_close(record.head_out, expected, rtol=1e-4, atol=1e-5)
    assert "compiled code is not entered: the model ran as plain Python" in captured.notes[0]
    torch.testing.assert_close(captured.result, model(batch) if output is None else output)
