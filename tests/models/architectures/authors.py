"""The models of wu2025 and CRATE once more, written from their formulas: plain loops over a dict of weights.

The weights go by the names that the papers' authors store them under. Nothing of the workbench is used.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

POSITION_FEATURES = 32


def random_state(shapes: dict[str, tuple[int, ...]], dtype: torch.dtype, seed: int = 0) -> dict[str, Tensor]:
    """Weights of these shapes, none at the special value that training starts from."""
    generator = torch.Generator().manual_seed(seed)

    def draw(name: str, shape: tuple[int, ...]) -> Tensor:
        if name.endswith("num_batches_tracked"):
            return torch.tensor(7)
        noise = torch.randn(shape, generator=generator, dtype=torch.float64)
        if name.endswith("running_var"):
            return (0.5 + noise.square()).to(dtype)
        if len(shape) > 1 and not name.endswith(("temp", "denom_bias")):
            return (noise * math.prod(shape[1:]) ** -0.5).to(dtype)
        around = 0.0 if name.endswith(("bias", "running_mean")) else 1.0
        return (around + 0.3 * noise).to(dtype)

    return {name: draw(name, shape) for name, shape in shapes.items()}


def affine(names: str, width: int) -> dict[str, tuple[int, ...]]:
    return {f"{names}.weight": (width,), f"{names}.bias": (width,)}


def linear(names: str, rows: int, columns: int) -> dict[str, tuple[int, ...]]:
    return {f"{names}.weight": (rows, columns), f"{names}.bias": (rows,)}


# ToST for images --------------------------------------------------------------------------------------------


def tost_shapes(width: int, depth: int, heads: int, classes: int) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {"cls_token": (1, 1, width)}
    channels = (3, width // 8, width // 4, width // 2, width)
    for number in range(4):
        place, out = f"patch_embed.proj.{2 * number}", channels[number + 1]
        shapes |= {f"{place}.0.weight": (out, channels[number], 3, 3)} | affine(f"{place}.1", out)
        shapes |= {f"{place}.1.running_mean": (out,), f"{place}.1.running_var": (out,)}
        shapes |= {f"{place}.1.num_batches_tracked": ()}
    for place in [f"blocks.{i}" for i in range(depth)] + [f"cls_attn_blocks.{i}" for i in range(2)]:
        shapes |= {f"{place}.gamma1": (width,), f"{place}.gamma2": (width,)}
        shapes |= affine(f"{place}.norm1", width) | affine(f"{place}.norm2", width)
        if place.startswith("cls"):
            shapes |= linear(f"{place}.attn.qkv", 3 * width, width)
            shapes |= linear(f"{place}.attn.proj", width, width)
        else:
            shapes |= {f"{place}.attn.temp": (heads, 1)} | linear(f"{place}.attn.qkv", width, width)
            shapes |= linear(f"{place}.attn.to_out.0", width, width)
        shapes |= linear(f"{place}.mlp.fc1", 4 * width, width) | linear(f"{place}.mlp.fc2", width, 4 * width)
    shapes |= affine("norm", width) | linear("head", classes, width)
    shapes |= {"pos_embeder.token_projection.weight": (width, 2 * POSITION_FEATURES, 1, 1)}
    return shapes | {"pos_embeder.token_projection.bias": (width,)}


def tost_logits(w: dict[str, Tensor], images: Tensor) -> Tensor:
    """Logits of a ToST with patches of 16 pixels, from (batch, 3, height, width)."""
    x = images
    for number in range(4):
        place = f"patch_embed.proj.{2 * number}"
        x = F.conv2d(x, w[f"{place}.0.weight"], stride=2, padding=1)
        shape = (1, -1, 1, 1)
        mean, variance = (w[f"{place}.1.running_{what}"].view(shape) for what in ("mean", "var"))
        x = (x - mean) / (variance + 1e-5).sqrt()
        x = x * w[f"{place}.1.weight"].view(shape) + w[f"{place}.1.bias"].view(shape)
        if number < 3:
            x = gelu(x)
    features = fourier_features(*x.shape[-2:]).to(x.dtype)
    projection = w["pos_embeder.token_projection.weight"][:, :, 0, 0]
    positions = features @ projection.T + w["pos_embeder.token_projection.bias"]
    x = x.flatten(2).transpose(1, 2) + positions
    for place in layers(w, "blocks"):
        update = tssa(w, f"{place}.attn", norm(w, f"{place}.norm1", x))
        x = x + w[f"{place}.gamma1"] * update
        x = x + w[f"{place}.gamma2"] * mlp(w, f"{place}.mlp", norm(w, f"{place}.norm2", x))
    x = torch.cat([w["cls_token"].expand(len(x), 1, -1), x], dim=1)
    for place in layers(w, "cls_attn_blocks"):
        x = class_attention(w, place, x, heads=len(w["blocks.0.attn.temp"]))
    return norm(w, "norm", x)[:, 0] @ w["head.weight"].T + w["head.bias"]


def layers(w: dict[str, Tensor], place: str) -> list[str]:
    count = len({name.split(".")[1] for name in w if name.startswith(f"{place}.")})
    return [f"{place}.{number}" for number in range(count)]


def gelu(x: Tensor) -> Tensor:
    return x * (1 + torch.erf(x / math.sqrt(2))) / 2


def norm(w: dict[str, Tensor], place: str, x: Tensor, eps: float = 1e-6) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    deviation = (centred.square().mean(-1, keepdim=True) + eps).sqrt()
    return centred / deviation * w[f"{place}.weight"] + w[f"{place}.bias"]


def apply(w: dict[str, Tensor], place: str, x: Tensor) -> Tensor:
    return x @ w[f"{place}.weight"].T + w[f"{place}.bias"]


def mlp(w: dict[str, Tensor], place: str, x: Tensor, first: str = "fc1", second: str = "fc2") -> Tensor:
    return apply(w, f"{place}.{second}", gelu(apply(w, f"{place}.{first}", x)))


def fourier_features(rows: int, columns: int) -> Tensor:
    """(patch, 64): sine and cosine of the row, then of the column; in float32, as everywhere they are made."""
    found = []
    for row in range(1, rows + 1):
        for column in range(1, columns + 1):
            features = []
            for place, total in ((row, rows), (column, columns)):
                angle = torch.tensor(float(place)) / (torch.tensor(float(total)) + 1e-6) * (2 * math.pi)
                for number in range(POSITION_FEATURES):
                    turned = angle / 10000 ** torch.tensor(2 * (number // 2) / POSITION_FEATURES)
                    features.append(turned.sin() if number % 2 == 0 else turned.cos())
            found.append(torch.stack(features))
    return torch.stack(found)


def tssa(w: dict[str, Tensor], place: str, x: Tensor) -> Tensor:
    """wu2025 eq. 11 with the membership of C.1, image by image and head by head."""
    temperature = w[f"{place}.temp"]
    outputs = []
    for image in apply(w, f"{place}.qkv", x):
        heads = image.chunk(len(temperature), dim=-1)
        scores = []
        for head, t in zip(heads, temperature, strict=True):
            lengths = head.square().sum(0).sqrt().clamp(min=1e-12)
            scores.append(t * (head / lengths).square().sum(-1))
        membership = torch.stack(scores).softmax(0)
        parts = []
        for head, pi in zip(heads, membership, strict=True):
            moment = sum(
                (pi[j] / (pi.sum() + 1e-8) * head[j].square() for j in range(len(head))), torch.zeros(())
            )
            parts.append(-pi[:, None] * head / (1 + moment))
        outputs.append(torch.cat(parts, dim=-1))
    return apply(w, f"{place}.to_out.0", torch.stack(outputs))


def class_attention(w: dict[str, Tensor], place: str, x: Tensor, heads: int) -> Tensor:
    """The class token attends to all tokens; the others pass, normalised, and count twice."""
    seen = norm(w, f"{place}.norm1", x)
    q, k, v = apply(w, f"{place}.attn.qkv", seen).chunk(3, dim=-1)
    mixed = []
    for query, key, value in zip(q.chunk(heads, -1), k.chunk(heads, -1), v.chunk(heads, -1), strict=True):
        scores = (query[:, :1] * key).sum(-1) / math.sqrt(key.shape[-1])
        mixed.append((scores.softmax(-1)[..., None] * value).sum(1))
    token = apply(w, f"{place}.attn.proj", torch.cat(mixed, dim=-1))
    x = x + w[f"{place}.gamma1"] * torch.cat([token[:, None], seen[:, 1:]], dim=1)
    x = norm(w, f"{place}.norm2", x)
    update = w[f"{place}.gamma2"] * mlp(w, f"{place}.mlp", x[:, :1])
    return torch.cat([x[:, :1] + update, 2 * x[:, 1:]], dim=1)


# ToST for texts ---------------------------------------------------------------------------------------------


def tost_lm_shapes(
    width: int, depth: int, heads: int, vocabulary: int, context: int
) -> dict[str, tuple[int, ...]]:
    shapes = {"transformer.wte.weight": (vocabulary, width), "transformer.wpe.weight": (context, width)}
    for number in range(depth):
        place = f"transformer.h.{number}"
        shapes |= {f"{place}.gamma1": (width,), f"{place}.gamma2": (width,)}
        shapes |= affine(f"{place}.ln_1", width) | affine(f"{place}.ln_2", width)
        shapes |= {f"{place}.attn.temp": (heads, 1), f"{place}.attn.denom_bias": (heads, context, 1)}
        shapes |= linear(f"{place}.attn.c_attn", width, width) | linear(f"{place}.attn.c_proj", width, width)
        shapes |= linear(f"{place}.mlp.c_fc", 4 * width, width)
        shapes |= linear(f"{place}.mlp.c_proj", width, 4 * width)
    return shapes | affine("transformer.ln_f", width)


def tost_lm_logits(w: dict[str, Tensor], ids: Tensor) -> Tensor:
    x = w["transformer.wte.weight"][ids] + w["transformer.wpe.weight"][: ids.shape[1]]
    count = len({name.split(".")[2] for name in w if name.startswith("transformer.h.")})
    for place in [f"transformer.h.{number}" for number in range(count)]:
        update = causal_tssa(w, f"{place}.attn", norm(w, f"{place}.ln_1", x, 1e-5))
        x = x + w[f"{place}.gamma1"] * update
        update = mlp(w, f"{place}.mlp", norm(w, f"{place}.ln_2", x, 1e-5), "c_fc", "c_proj")
        x = x + w[f"{place}.gamma2"] * update
    return norm(w, "transformer.ln_f", x, 1e-5) @ w["transformer.wte.weight"].T


def causal_tssa(w: dict[str, Tensor], place: str, x: Tensor) -> Tensor:
    """wu2025 eqs. 28 and 34: token t sees tokens 0 … t."""
    temperature, bias = w[f"{place}.temp"], w[f"{place}.denom_bias"]
    outputs = []
    for text in apply(w, f"{place}.c_attn", x):
        heads = text.chunk(len(temperature), dim=-1)
        membership = []
        for t in range(len(text)):
            scores = []
            for head, temp, b in zip(heads, temperature, bias, strict=True):
                total = head[: t + 1].square().sum(0).clamp(min=1e-12)
                scores.append(temp * (head[t].square() / total + b[t]).sum())
            membership.append(torch.cat(scores).softmax(0))
        pi = torch.stack(membership)  # token, head
        rows = []
        for t in range(len(text)):
            parts = []
            for number, head in enumerate(heads):
                before = pi[: t + 1, number]
                moment = (before[:, None] * head[: t + 1].square()).sum(0) / (before.sum() + 1e-8)
                parts.append(-pi[t, number] * head[t] / (1 + moment))
            rows.append(torch.cat(parts))
        outputs.append(torch.stack(rows))
    return apply(w, f"{place}.c_proj", torch.stack(outputs))


# CRATE ------------------------------------------------------------------------------------------------------


def crate_shapes(
    width: int, depth: int, classes: int, tokens: int, pixels: int
) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {"pos_embedding": (1, tokens, width), "cls_token": (1, 1, width)}
    shapes |= affine("to_patch_embedding.1", pixels) | linear("to_patch_embedding.2", width, pixels)
    shapes |= affine("to_patch_embedding.3", width)
    for number in range(depth):
        place = f"transformer.layers.{number}"
        shapes |= affine(f"{place}.0.norm", width) | {f"{place}.0.fn.qkv.weight": (width, width)}
        shapes |= linear(f"{place}.0.fn.to_out.0", width, width) | affine(f"{place}.1.norm", width)
        shapes |= {f"{place}.1.fn.weight": (width, width)}
    return shapes | affine("mlp_head.0", width) | linear("mlp_head.1", classes, width)


def crate_logits(w: dict[str, Tensor], images: Tensor, heads: int, patch: int) -> Tensor:
    """Logits of CRATE; every patch is its pixels by row, column, channel."""
    cut = [
        images[:, :, top : top + patch, left : left + patch].permute(0, 2, 3, 1).flatten(1)
        for top in range(0, images.shape[2], patch)
        for left in range(0, images.shape[3], patch)
    ]
    x = norm(w, "to_patch_embedding.1", torch.stack(cut, dim=1), 1e-5)
    x = norm(w, "to_patch_embedding.3", apply(w, "to_patch_embedding.2", x), 1e-5)
    x = torch.cat([w["cls_token"].expand(len(x), 1, -1), x], dim=1) + w["pos_embedding"]
    count = len({name.split(".")[2] for name in w if name.startswith("transformer.layers.")})
    for place in [f"transformer.layers.{number}" for number in range(count)]:
        inside = norm(w, f"{place}.0.norm", x, 1e-5) @ w[f"{place}.0.fn.qkv.weight"].T
        parts = [
            (part @ part.mT / math.sqrt(part.shape[-1])).softmax(-1) @ part
            for part in inside.chunk(heads, -1)
        ]
        x = x + apply(w, f"{place}.0.fn.to_out.0", torch.cat(parts, dim=-1))
        x = ista(norm(w, f"{place}.1.norm", x, 1e-5), w[f"{place}.1.fn.weight"])
    return apply(w, "mlp_head.1", norm(w, "mlp_head.0", x[:, 0], 1e-5))


def ista(x: Tensor, dictionary: Tensor, step: float = 0.1, threshold: float = 0.1) -> Tensor:
    """ReLU(x + η (Dᵀ x − Dᵀ D x) − η λ), token by token and feature by feature."""
    flat, width = x.reshape(-1, x.shape[-1]), x.shape[-1]
    output = torch.empty_like(flat)
    for row, token in enumerate(flat):
        coded = [sum(dictionary[i, j] * token[j] for j in range(width)) for i in range(width)]
        for j in range(width):
            gradient = sum(dictionary[i, j] * (token[i] - coded[i]) for i in range(width))
            output[row, j] = max(0.0, float(token[j] + step * gradient - step * threshold))
    return output.reshape(x.shape)
