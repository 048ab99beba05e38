"""The site ``effective``: the map from values to outputs that a state-space or linear layer applies to its tokens.

Such a layer is linear in its values: its output is ``effective @ v`` and, in Mamba, a skip connection D v. The entries
have signs and rows do not sum to one (Ali et al. 2024, Dao and Gu 2024, Yang et al. 2024), so this is not ``attn``.
The scans that models of transformers call are followed by their names, and each map is checked against the scan's own
output.
"""

from __future__ import annotations

import inspect
import math
import sys
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from workbench.captures.family import Visit
from workbench.captures.recomputation import TOLERANCE
from workbench.captures.thread_guard import replaced
from workbench.core.errors import IncompleteCapture, InputError

EFFECTIVE = "effective"


class Mixing(NamedTuple):
    """What a layer did with its values: ``head_out`` is ``effective @ v + skip``, before gate, norm and projection."""

    effective: Float[Tensor, "batch head query key"]
    v: Float[Tensor, "batch head token head_dim"]
    head_out: Float[Tensor, "batch head token head_dim"]

    @classmethod
    def of(cls, effective: Tensor, v: Tensor, skip: Tensor | float = 0.0) -> Mixing:
        v = v.to(effective.dtype)
        return cls(effective, v, effective @ v + skip * v)

    def check(self, output: Tensor, name: str, gate: Tensor | float = 1.0) -> None:
        """Raise `IncompleteCapture` where ``gate * head_out`` is not the layer's own (batch, head, token, head_dim)."""
        compared(gate * self.head_out, output, name, gate * (self.effective @ self.v))


def compared(rebuilt: Tensor, output: Tensor, name: str, mixed: Tensor) -> None:
    """Raise `IncompleteCapture` where a layer's own output is not the rebuilt one.

    The error is relative to the part that is mixed, which may be small beside a skip connection.
    """
    size = (0.01 * output.detach().abs().max() + mixed.detach().abs().max()).clamp(
        min=torch.finfo(torch.float32).tiny
    )
    error = float((rebuilt.detach() - output.detach().to(rebuilt.dtype)).abs().max() / size)
    # the scans compute in float32 whatever the type of their input is
    if not error <= max(TOLERANCE[torch.float32], TOLERANCE.get(output.dtype, 5e-2)):
        raise IncompleteCapture(
            f"{name}: effective @ v differs from the layer's own output by {error:.2g} of its largest value; a state "
            "from earlier tokens is not in the map: run the whole text in one pass, or leave out 'effective'"
        )


# The maps ---------------------------------------------------------------------------------------------------


def decays(rate: Float[Tensor, "*batch token"]) -> Float[Tensor, "*batch query key"]:
    """Return exp(Σ rate) over the tokens after a key up to a query, and 0 for keys after the query.

    ``rate`` holds the logarithms of the decays, none above 0.
    """
    total = rate.cumsum(-1)
    future = torch.ones(rate.shape[-1], rate.shape[-1], dtype=torch.bool, device=rate.device).triu(1)
    return (total[..., :, None] - total[..., None, :]).masked_fill(future, -math.inf).exp()


def selective_scan_map(
    dt: Float[Tensor, "batch channel token"],
    a: Float[Tensor, "channel state"],
    b: Float[Tensor, "batch state token"],
    c: Float[Tensor, "batch state token"],
) -> Float[Tensor, "batch channel query key"]:
    """Return the map of a selective scan for each channel (Mamba; Ali et al. 2024, eq. 11).

    effective[i, j] = Σ_s c[s, i] exp(a[s] Σ_{j < l ≤ i} dt[l]) dt[j] b[s, j] for j ≤ i.
    """
    maps = torch.zeros(*dt.shape, dt.shape[-1], dtype=dt.dtype, device=dt.device)
    for state in range(a.shape[1]):
        weights = c[:, None, state, :, None] * b[:, None, state, None, :]
        maps += weights * decays(a[:, state, None] * dt)
    return maps * dt[..., None, :]


def state_space_map(
    dt: Float[Tensor, "batch head token"],
    a: Float[Tensor, " head"],
    b: Float[Tensor, "batch head token state"],
    c: Float[Tensor, "batch head token state"],
) -> Float[Tensor, "batch head query key"]:
    """Return the map of a state-space dual layer (Mamba-2; Dao and Gu 2024): one decay per head for all states.

    effective[i, j] = c[i]·b[j] exp(a Σ_{j < l ≤ i} dt[l]) dt[j] for j ≤ i.
    """
    return (c @ b.mT) * decays(a[:, None] * dt) * dt[..., None, :]


def delta_rule_map(
    q: Float[Tensor, "batch head token head_dim"],
    k: Float[Tensor, "batch head token head_dim"],
    decay: Float[Tensor, "batch head token #head_dim"],
    beta: Float[Tensor, "batch head token"],
) -> Float[Tensor, "batch head query key"]:
    """Return the map of the gated delta rule (Yang et al. 2024, eq. 10); ``decay`` may differ by key dimension.

    effective[i, j] = beta[j] q[i]ᵀ Π_{j < l ≤ i} (1 − beta[l] k[l] k[l]ᵀ) decay[l] k[j] for j ≤ i.
    """
    tokens = q.shape[2]
    # the recurrence itself, with one value dimension for each token
    values = torch.eye(tokens, dtype=q.dtype, device=q.device)
    state = torch.zeros(*k.shape[:2], k.shape[-1], tokens, dtype=q.dtype, device=q.device)
    rows = []
    for token in range(tokens):
        key = k[:, :, token, :, None]
        state = decay[:, :, token, :, None] * state
        change = values[token] - (key * state).sum(-2)
        state = state + key * (beta[:, :, token, None] * change)[..., None, :]
        rows.append((q[:, :, token, :, None] * state).sum(-2))
    return torch.stack(rows, 2)


def decayed_softmax_map(
    k: Float[Tensor, "batch channel token"], rate: Float[Tensor, " channel"], first: Float[Tensor, " channel"]
) -> Float[Tensor, "batch channel query key"]:
    """Return the map of RWKV-4 for each channel (Peng et al. 2023, eq. 14): positive, and its rows sum to one.

    effective[i, j] ∝ exp(k[j] − (i − 1 − j) rate) for j < i, and exp(k[i] + first) at j = i.
    """
    tokens = torch.arange(k.shape[-1], device=k.device)
    distance = (tokens[:, None] - tokens).to(k.dtype)
    logits = k[..., None, :] - (distance - 1) * rate[:, None, None]
    logits = torch.where(distance == 0, k[..., None, :] + first[:, None, None], logits)
    return logits.masked_fill(distance < 0, -math.inf).softmax(-1)


def decayed_linear_map(
    q: Float[Tensor, "batch head token head_dim"],
    k: Float[Tensor, "batch head token head_dim"],
    rate: Float[Tensor, " head"],
) -> Float[Tensor, "batch head query key"]:
    """Return the map of linear attention with a fixed decay (MiniMax 2025): q[i]·k[j] exp(−(i − j) rate), j ≤ i."""
    return (q @ k.mT) * decays(-rate[:, None].expand(-1, q.shape[2]))


# The scans of transformers ------------------------------------------------------------------------------------


def _selective_scan(arguments: Mapping[str, Any], output: Any, name: str) -> Mixing:
    dt = _step(
        arguments["dt"], arguments.get("delta_bias"), arguments.get("delta_softplus"), arguments["dt"].dtype
    )
    x = arguments["hidden_states"]
    effective = selective_scan_map(
        _wide(dt), _wide(arguments["A"]), _wide(arguments["B"]), _wide(arguments["C"])
    )
    mixing = Mixing.of(effective, _wide(x)[..., None], _skip(arguments.get("D")))
    gate = arguments.get("z")
    mixing.check(output[..., None], name, 1.0 if gate is None else F.silu(_wide(gate))[..., None])
    return mixing


def _chunk_scan(arguments: Mapping[str, Any], output: Any, name: str) -> Mixing:
    x = arguments["hidden_states"]  # (batch, token, head, head_dim)
    dt = _step(arguments["dt"].mT, arguments.get("dt_bias"), arguments.get("dt_softplus"), x.dtype)
    dt = dt.clamp(*arguments.get("dt_limit", (0.0, math.inf)))
    shared = x.shape[2] // arguments["B"].shape[2]
    b, c = (
        _wide(arguments[key]).repeat_interleave(shared, dim=2, output_size=x.shape[2]).transpose(1, 2)
        for key in "BC"
    )
    effective = state_space_map(_wide(dt), _wide(arguments["A"]), b, c)
    mixing = Mixing.of(effective, x.transpose(1, 2), _skip(arguments.get("D")))
    mixing.check(output.transpose(1, 2), name)
    return mixing


def _delta_rule(arguments: Mapping[str, Any], output: Any, name: str) -> Mixing:
    q, k, v, g, beta = (
        _wide(arguments[key]).transpose(1, 2) for key in ("query", "key", "value", "g", "beta")
    )
    shared = v.shape[1] // k.shape[1]
    q, k = q.repeat_interleave(shared, dim=1), k.repeat_interleave(shared, dim=1)
    if arguments.get("use_qk_l2norm_in_kernel"):
        q, k = (x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6) for x in (q, k))
    decay = g.exp() if g.ndim == k.ndim else g.exp()[..., None]
    mixing = Mixing.of(delta_rule_map(q * q.shape[-1] ** -0.5, k, decay, beta), v)
    mixing.check(output.transpose(1, 2), name)
    return mixing


def _rwkv(arguments: Mapping[str, Any], output: Any, name: str) -> Mixing:
    rate = _wide(arguments["time_decay"]).exp()
    effective = decayed_softmax_map(_wide(arguments["key"]).mT, rate, _wide(arguments["time_first"]))
    mixing = Mixing.of(effective, arguments["value"].mT[..., None])
    mixing.check(output.mT[..., None], name)
    return mixing


def _lightning(visit: Visit, name: str) -> Mixing:
    """Return the map of MiniMax's linear attention, whose scan is no function of its own."""
    module, x, mask = visit.module, visit.argument(0, "hidden_states"), visit.argument(2, "attention_mask")
    mixed = module.act_fn(module.qkv_proj(x))
    if mask is not None and mask.ndim == 2:
        mixed = mixed * mask[..., None]
    q, k, v = mixed.unflatten(-1, (module.num_attention_heads, -1)).transpose(1, 2).chunk(3, dim=-1)
    mixing = Mixing.of(decayed_linear_map(q, k, module.slope_rate.flatten().to(q)), v)
    rebuilt = module.norm(mixing.head_out.transpose(1, 2).flatten(2).to(x.dtype))
    output = module.out_proj(module.output_gate(x).sigmoid() * rebuilt)
    compared(output, visit.output[0], name, output)
    return mixing


def _wide(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _skip(weights: Tensor | None) -> Tensor | float:
    return 0.0 if weights is None else _wide(weights)[:, None, None]


def _step(dt: Tensor, bias: Tensor | None, softplus: Any, dtype: torch.dtype) -> Tensor:
    """Return the time steps (batch, channel, token) with their bias, through softplus where the scan does so."""
    dt = dt if bias is None else dt + bias.to(dt.dtype)[:, None]
    return F.softplus(dt) if softplus else dt


SCANS: dict[str, Callable[[Mapping[str, Any], Any, str], Mixing]] = {
    "mamba_selective_scan": _selective_scan,
    "mamba2_chunk_scan": _chunk_scan,
    "torch_chunk_gated_delta_rule": _delta_rule,
    "torch_recurrent_gated_delta_rule": _delta_rule,
    "chunk_kimi_delta_attention": _delta_rule,
    "recurrent_kimi_delta_attention": _delta_rule,
    "rwkv_linear_attention": _rwkv,
}
"""Functions of transformers that mix tokens, by name."""
LAYERS: dict[str, Callable[[Visit, str], Mixing]] = {"MiniMaxLightningAttention": _lightning}
"""Classes of transformers that mix tokens in their own forward, by name."""


@contextmanager
def watch_scans(
    mixers: Iterable[nn.Module], seen: Callable[[Callable[[str], Mixing]], None]
) -> Generator[None]:
    """Report the scans that the code of ``mixers`` calls, each as a function of a name for messages."""
    homes = {cls.__module__ for mixer in mixers for cls in type(mixer).__mro__}
    with ExitStack() as stack:
        for home in sorted(homes & set(sys.modules)):
            code = sys.modules[home]
            for name in SCANS.keys() & vars(code).keys():
                stack.enter_context(replaced(code, name, _watching(name, getattr(code, name), seen)))
        yield


def _watching(
    name: str, scan: Callable[..., Any], seen: Callable[[Callable[[str], Mixing]], None]
) -> Callable[..., Any]:
    names = inspect.signature(scan)

    def watched(*args: Any, **kwargs: Any) -> Any:
        result = scan(*args, **kwargs)
        arguments = names.bind(*args, **kwargs).arguments
        output = result[0] if isinstance(result, tuple) else result
        seen(lambda title: SCANS[name](arguments, output, title))
        return result

    return watched


def joined(mixings: list[Mixing]) -> Mixing:
    """Return the scans of one pass, each of some of the heads, as one."""
    return Mixing(*(torch.cat(parts, 1) for parts in zip(*mixings, strict=True)))


def refuse_unknown(visit: Visit, mixer: str) -> None:
    """Raise `InputError` for a mixer whose map is not known."""
    raise InputError(
        f"{visit.path}: {mixer} has no effective attention that is known; it is known for Mamba and Mamba-2, the gated "
        "delta rule, RWKV-4 and MiniMax's linear attention: leave out 'effective', or choose layers without it"
    )
