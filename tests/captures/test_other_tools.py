"""What other tools captured: the same layers as a capture of ours, and the same numbers."""

from __future__ import annotations

import pickle

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

import workbench
from tests.captures.test_generation import GPT, SMALL, causal, prompts
from workbench.analyses.layer import with_float64
from workbench.captures import Capture, LayerRecord, capture, read_qkv
from workbench.core.errors import InputError

SITES = ("q", "k", "v", "scale", "mask", "attn", "head_out", "resid_pre", "resid_post")


@pytest.fixture(scope="module")
def captured() -> Capture:
    return capture(causal("gpt2", GPT), prompts(), sites=SITES)


def entropies(**given: object) -> Tensor:
    frame = workbench.analyze("attention-map", null_samples=0, **given)
    return torch.tensor(frame[frame["metric"] == "attention_entropy"]["value"].to_numpy())


def lens(captured: Capture, *names: str) -> dict[str, Tensor]:
    """A cache as TransformerLens has it: (batch, token, head, head_dim)."""
    kept = {}
    for record in captured:
        before = f"blocks.{record.index}."
        for name, site in {"q": "q", "k": "k", "v": "v", "z": "head_out"}.items():
            kept[f"{before}attn.hook_{name}"] = getattr(record, site).transpose(1, 2)
        scores = (record.q @ record.k.mT * record.scale).masked_fill(~record.mask, -torch.inf)
        kept[f"{before}attn.hook_attn_scores"] = scores
        kept[f"{before}attn.hook_pattern"] = record.attn
        kept[f"{before}hook_resid_pre"] = record.resid_pre
        kept[f"{before}mlp.hook_post"] = record.resid_post
    wanted = ("q", "k", "v", "z", "resid_pre", *names)
    return {
        name: value.contiguous()
        for name, value in kept.items()
        if name.endswith(tuple(f"hook_{n}" for n in wanted))
    }


@pytest.mark.parametrize("suffix", [".safetensors", ".pt"])
@pytest.mark.parametrize("given", ["pattern", "attn_scores"])
def test_a_transformer_lens_cache(captured, tmp_path, given, suffix):
    path, kept = tmp_path / f"cache{suffix}", lens(captured, given)
    save_file(kept, path) if suffix == ".safetensors" else torch.save(kept, path)
    read = read_qkv(path)
    assert len(read) == len(captured)
    for record, other in zip(captured, read, strict=True):
        for site in ("q", "k", "v", "head_out", "resid_pre"):
            assert torch.equal(getattr(record, site), getattr(other, site))
    assert read.notes == []
    torch.testing.assert_close(entropies(qkv=path), entropies(qkv=captured), rtol=1e-10, atol=1e-10)


def test_tensors_that_are_not_read_are_listed(captured, tmp_path):
    kept = lens(captured, "pattern", "post")
    torch.save(kept, tmp_path / "cache.pt")
    (note,) = read_qkv(tmp_path / "cache.pt").notes
    count = len(captured)
    unread = ", ".join(f"blocks.{layer}.mlp.hook_post" for layer in range(count))
    assert note == f"tensors of the file that are not read: {unread}"
    maps = {"attentions.0": captured[0].attn, "gates": torch.ones(3), "num_heads": torch.tensor(3)}
    torch.save(maps, tmp_path / "maps.pt")
    assert read_qkv(tmp_path / "maps.pt").notes == ["tensors of the file that are not read: gates, num_heads"]
    many = {f"x{number:02}": torch.ones(2) for number in range(11)}
    torch.save(maps | many, tmp_path / "many.pt")
    (note,) = read_qkv(tmp_path / "many.pt").notes
    assert note.endswith("gates, num_heads, x00, x01, x02, x03, x04, x05 and 5 more")


def test_queries_after_their_rotary_embedding_go_first(captured, tmp_path):
    kept = lens(captured, "pattern")
    turned = {
        name.replace("hook_q", "hook_rot_q"): -value for name, value in kept.items() if "hook_q" in name
    }
    for order, both in enumerate((kept | turned, turned | kept)):
        save_file(both, tmp_path / f"{order}.safetensors")
        assert torch.equal(read_qkv(tmp_path / f"{order}.safetensors")[1].q, -captured[1].q)


def test_a_cache_without_its_weights_says_that_the_mask_is_missing(captured, tmp_path):
    torch.save(lens(captured), tmp_path / "cache.pth")
    (note,) = read_qkv(tmp_path / "cache.pth").notes
    assert "sees every token; save the weights as well" in note
    assert note in workbench.analyze("attention-map", qkv=tmp_path / "cache.pth").attrs["notes"]


@pytest.mark.parametrize("operands", [False, True])
def test_attentions_of_transformers(captured, tmp_path, operands):
    model = causal("gpt2", GPT, "eager", torch.float32)
    with torch.no_grad():
        maps = model(**prompts(), output_attentions=True).attentions
    kept: dict[str, object] = {"attentions": maps}
    if operands:
        kept |= {site: tuple(getattr(record, site).float() for record in captured) for site in "qkv"}
    torch.save(kept, tmp_path / "maps.pt")
    read = read_qkv(tmp_path / "maps.pt")
    assert all(torch.equal(record.attn, own) for record, own in zip(read, maps, strict=True))
    assert read.sites == (("q", "k", "v", "scale", "attn") if operands else ("attn",))
    torch.testing.assert_close(entropies(qkv=read), entropies(qkv=captured), rtol=1e-4, atol=1e-5)
    save_file({f"attentions.{i}": own for i, own in enumerate(maps)}, tmp_path / "maps.safetensors")
    assert torch.equal(read_qkv(tmp_path / "maps.safetensors")[1].attn, maps[1])


def test_cross_attention_is_told(tmp_path):
    made = [torch.rand(2, 3, 4, keys).softmax(-1) for keys in (4, 6)]
    torch.save({"decoder_attentions": [made[0]], "cross_attentions": [made[1]]}, tmp_path / "maps.pt")
    read = read_qkv(tmp_path / "maps.pt")
    assert [record.source for record in read] == ["self", "cross"]


def test_projections_as_nnsight_saves_them(tmp_path):
    model = causal("llama", SMALL)
    kept: dict[str, object] = {"num_heads": 4, "num_key_value_heads": 2}
    handles = [
        module.register_forward_hook(
            lambda _, args, output, name=name: kept.update({f"{name}.output": output.detach()})
        )
        for name, module in model.named_modules()
        if name.endswith(("q_proj", "k_proj", "v_proj"))
    ]
    model(**prompts())
    for handle in handles:
        handle.remove()
    torch.save(kept, tmp_path / "saved.pt")
    read, ours = read_qkv(tmp_path / "saved.pt"), capture(model, prompts(), sites=("q", "k", "v"))
    for record, other in zip(read, ours, strict=True):
        assert record.path == other.path
        assert torch.equal(record.v, other.v)  # queries and keys are rotated afterwards
        assert (record.q.shape, record.k.shape) == (other.q.shape, other.k.shape)
    assert any("before norms and rotary embeddings" in note for note in read.notes)
    del kept["num_heads"]
    torch.save(kept, tmp_path / "saved.pt")
    with pytest.raises(InputError, match="save num_heads beside it"):
        read_qkv(tmp_path / "saved.pt")


def test_half_precision_and_a_single_input(captured, tmp_path):
    kept = {name: value[0].bfloat16().contiguous() for name, value in lens(captured, "pattern").items()}
    save_file(kept, tmp_path / "cache.safetensors")
    read = read_qkv(tmp_path / "cache.safetensors")
    assert read[0].q.shape == (1, *captured[0].q.shape[1:])
    assert entropies(qkv=read).dtype == torch.float64
    first = {"inputs": {"input_ids": prompts()["input_ids"][:1]}, "model": causal("gpt2", GPT)}
    torch.testing.assert_close(entropies(qkv=read), entropies(**first), rtol=2e-2, atol=2e-2)


class Elsewhere(Tensor):
    """A tensor that says it lies on Apple's GPU."""

    @property
    def device(self) -> torch.device:
        return torch.device("mps")

    def cpu(self) -> Tensor:
        return self.as_subclass(Tensor)


def test_layers_of_a_device_without_float64_are_read_on_the_cpu(captured):
    own = captured[0]
    there = LayerRecord(
        0, own.path, q=own.q.as_subclass(Elsewhere), k=own.k.as_subclass(Elsewhere), scale=own.scale
    )
    moved = with_float64(there)
    assert moved.q.device.type == moved.k.device.type == "cpu"
    assert torch.equal(moved.q, own.q)
    assert with_float64(own) is own


LENS, MAPS = "blocks.0.attn.hook_", "attentions.0"
ROWS = torch.rand(1, 4, 2, 3)


@pytest.mark.parametrize(
    ("kept", "said"),
    [
        ({f"{LENS}v": ROWS}, "neither its attention nor both q and k"),
        ({"attentions": (torch.rand(4, 4),)}, "has 2 axes"),
        ({f"{LENS}q": ROWS, f"{LENS}k": torch.rand(1, 4, 2, 5)}, "do not go together"),
        ({MAPS: torch.rand(1, 2, 4, 4), "q.0": torch.rand(1, 2, 5, 3), "k.0": ROWS.mT}, "do not go together"),
        (
            {MAPS: torch.rand(1, 2, 4, 4), "q.0": torch.rand(1, 2, 5, 3), "k.0": torch.rand(1, 2, 4, 3)},
            "q and k make",
        ),
        ({f"{LENS}q": ROWS * torch.nan, f"{LENS}k": ROWS}, "NaN"),
    ],
)
def test_what_does_not_fit(tmp_path, kept, said):
    torch.save(kept, tmp_path / "cache.pt")
    with pytest.raises(InputError, match=said):
        read_qkv(tmp_path / "cache.pt")


class Held:
    """Any object, as a whole cache of another tool is."""


def test_nothing_but_tensors_is_unpickled(tmp_path):
    torch.save({"q": Held()}, tmp_path / "cache.pt")
    with pytest.raises(InputError, match=r"save dict\(cache\)"):
        read_qkv(tmp_path / "cache.pt")
    (tmp_path / "plain.pt").write_bytes(pickle.dumps(Held()))
    with pytest.raises(InputError, match=r"save dict\(cache\)"):
        read_qkv(tmp_path / "plain.pt")
