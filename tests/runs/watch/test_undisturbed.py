"""Training with a watch ends with the same bits as training without it."""

import random

import numpy as np
import pytest
import torch
from torch import nn

import workbench
from tests.runs.watch.loops import (
    gpt2,
    images,
    own_model,
    padded_texts,
    same_bits,
    sequences,
    train,
    vit,
)
from workbench.runs.watch.undisturbed import undisturbed


def compiled(make):
    return lambda: torch.compile(make(), backend="eager")


def checkpointed_gpt2():
    model = gpt2()
    model.gradient_checkpointing_enable()
    return model


def checkpointed_vit():
    model = vit(drop_path_rate=0.2)
    model.set_grad_checkpointing()
    return model


LOOPS = {
    "timm with dropout": (lambda: vit(proj_drop_rate=0.2, attn_drop_rate=0.1), images, {}),
    "own model with BatchNorm and buffers": (own_model, sequences, {}),
    "accumulated gradients": (lambda: vit(drop_path_rate=0.2), images, {"accumulate": 2}),
    "autocast": (lambda: vit(proj_drop_rate=0.2), images, {"autocast": True}),
    "autocast and accumulated": (own_model, sequences, {"autocast": True, "accumulate": 2}),
    "frozen part": (own_model, sequences, {"frozen": ("norm",)}),
    "language model with padding": (gpt2, padded_texts, {}),
    "gradient checkpointing, transformers": (checkpointed_gpt2, padded_texts, {}),
    "gradient checkpointing, timm": (checkpointed_vit, images, {}),
    "compiled": (compiled(lambda: vit(proj_drop_rate=0.2)), images, {}),
}


@pytest.mark.parametrize("name", LOOPS)
def test_the_weights_end_the_same(name, tmp_path):
    make, batch, settings = LOOPS[name]
    batches = [batch()] * 4
    alone = train(make(), batches, **settings)
    model = make()
    analyses = {"token-similarity": {}, "gram-spectrum": {}}
    watch = workbench.watch(model, batch(), out=tmp_path, every=1, max_cost=None, analyses=analyses)
    same_bits(train(model, batches, watch, **settings), alone)
    for analysis in analyses:
        frame = workbench.read_watch(tmp_path, analysis)
        assert list(frame.attrs["epochs"].values()) == [0, 1, 2, 3, 4]
        assert frame.attrs["notes"] == [] or "layer" in frame.attrs["notes"][0]


def test_the_test_above_can_fail():
    model, batches = own_model(), [sequences()] * 4

    class Careless:
        def step(self, step):
            model(sequences())

    with pytest.raises(AssertionError):
        same_bits(train(model, batches, Careless()), train(own_model(), batches))


def test_everything_is_back_after_an_error_too():
    model = own_model().train()
    model.norm.eval()
    model.head.weight.grad = torch.ones_like(model.head.weight)
    states = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()  # noqa: NPY002 - what is kept
    modes = {name: child.training for name, child in model.named_modules()}
    table, threads = model.table, torch.get_num_threads()

    def look():
        with undisturbed(model):
            assert not any(child.training for child in model.modules())
            assert not torch.is_grad_enabled()
            model(sequences())
            random.random()
            np.random.rand()  # noqa: NPY002 - a draw from the kept state
            torch.rand(3)
            torch.set_num_threads(threads + 1)
            raise KeyError

    with torch.autocast("cpu", torch.bfloat16):
        with pytest.raises(KeyError):
            look()
        assert torch.is_autocast_enabled("cpu")
    assert random.getstate() == states[0]
    assert np.random.get_state()[1].tolist() == states[1]  # noqa: NPY002 - the kept state
    assert torch.equal(torch.get_rng_state(), states[2])
    assert {name: child.training for name, child in model.named_modules()} == modes
    assert float(model.seen) == 0
    assert model.table is table
    assert torch.get_num_threads() == threads
    assert torch.equal(model.head.weight.grad, torch.ones_like(model.head.weight))
    assert torch.is_grad_enabled()


def test_eval_of_a_library_that_changes_weights_is_not_called():
    class Merging(nn.Linear):
        def train(self, mode=True):
            if not mode:
                self.weight.data += 1
            return super().train(mode)

    model = Merging(2, 3).train()
    before = model.weight.clone()
    with undisturbed(model):
        assert not model.training
    assert model.training
    assert torch.equal(model.weight, before)


def test_a_compiled_model_is_not_compiled_again(tmp_path):
    counts = []

    def counting(graph, examples):
        counts.append(graph)
        return graph

    torch._dynamo.reset()
    model = torch.compile(vit(), backend=counting)
    watch = workbench.watch(
        model, images(), out=tmp_path, every=1, max_cost=None, analyses=["token-similarity"]
    )
    model.train()
    model(images())
    once = len(counts)
    assert once
    for step in range(3):
        assert watch.step(step)
        model(images())
    assert len(counts) == once
