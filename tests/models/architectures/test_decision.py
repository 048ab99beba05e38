"""The decision transformer: what sees what, and its blocks by hand."""

import pytest
import torch

import workbench
from tests.models.architectures.variants import OPTIONS, moved
from workbench.attention import VARIANTS
from workbench.core.errors import InputError
from workbench.models.architectures import build
from workbench.models.checkpoints import restore, write_checkpoint

BATCH, STEPS, SEEN, DONE, DIM, HEADS, DEPTH = 2, 5, 3, 2, 14, 7, 2
SMALL = {
    "name": "decision", "observations": SEEN, "actions": DONE, "context": 6, "horizon": 11, "embed_dim": DIM,
    "depth": DEPTH, "num_heads": HEADS,
}  # fmt: skip
FITTING = [name for name, variant in VARIANTS.items() if variant.causality != "never"]


@pytest.fixture
def batch():
    draw = torch.Generator().manual_seed(1)
    sizes = {"returns": 1, "observations": SEEN, "actions": DONE}
    found = {name: torch.randn(BATCH, STEPS, size, generator=draw) for name, size in sizes.items()}
    return found | {"times": torch.arange(STEPS).expand(BATCH, -1)}


@pytest.mark.parametrize("name", FITTING)
def test_an_action_sees_what_came_before_and_not_itself(name, batch):
    description = {**SMALL, "attention": name, "attention_options": OPTIONS.get(name)}
    model = moved(build(description)).double()
    batch = {key: value.double() if value.is_floating_point() else value for key, value in batch.items()}
    before = model(**batch)
    for key, first in (("actions", 3), ("observations", 2), ("returns", 2)):
        changed = {**batch, key: batch[key].clone()}
        changed[key][:, 2] += 1  # step 2: its own action is seen from step 3 on
        after = model(**changed)
        torch.testing.assert_close(after[:, :first], before[:, :first], rtol=0, atol=1e-12)
        assert not torch.allclose(after[:, first:], before[:, first:], atol=1e-6)
    assert before.abs().max() < 1


def test_tokens_are_return_observation_action_of_each_step(batch):
    model = moved(build(SMALL))
    tokens = []
    for step in range(STEPS):
        time = model.embed_time(batch["times"][:, step])
        tokens += [
            model.embed_return(batch["returns"][:, step]) + time,
            model.embed_observation(batch["observations"][:, step]) + time,
            model.embed_action(batch["actions"][:, step]) + time,
        ]
    x = model.embed_norm(torch.stack(tokens, dim=1))
    for block in model.blocks:
        x = block(x)
    expected = torch.tanh(model.head(model.norm(x)[:, 1::3]))
    torch.testing.assert_close(model(**batch), expected)


@pytest.mark.parametrize("name", ["softmax", "primal-causal"])
def test_it_comes_back_from_its_checkpoint_and_is_captured(name, batch, tmp_path):
    description = {**SMALL, "attention": name, "attention_options": OPTIONS.get(name)}
    module = moved(build(description))
    write_checkpoint(tmp_path / "x.safetensors", module, {"architecture": description, "preprocessing": {}})
    assert torch.equal(restore(tmp_path / "x.safetensors")[0](**batch), module(**batch))
    model = workbench.load(f"file:{tmp_path / 'x.safetensors'}")
    assert model.family == "decision"
    capture = workbench.capture(model, batch)
    torch.testing.assert_close(capture.result, module(**batch))
    assert [record.head_out.shape for record in capture] == [(BATCH, HEADS, 3 * STEPS, DIM // HEADS)] * DEPTH


def test_histories_that_are_too_long_or_too_late(batch):
    model = build(SMALL)
    longer = {name: tensor.repeat(1, 2, *[1] * (tensor.ndim - 2)) for name, tensor in batch.items()}
    with pytest.raises(InputError, match=r"context=6 steps, but got 10; give the last of them"):
        model(**longer)
    with pytest.raises(InputError, match=r"a step is number 11, and the horizon is 11 steps"):
        model(**{**batch, "times": batch["times"] + 7})
    with pytest.raises(InputError, match="mixes all tokens and has no causal form"):
        build({**SMALL, "attention": "xca"})
