"""The views: what is drawn at an address, its numbers, one sentence of interpretation, and the lines that make it.

Every view is a function of (address, material).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pandas as pd
import plotly.graph_objects as go
import torch
from jaxtyping import Float
from torch import Tensor

from workbench.apps.explorer import code
from workbench.apps.explorer.address import Address
from workbench.apps.explorer.material import Look, Material
from workbench.apps.explorer.measures import NULL_SAMPLES
from workbench.apps.explorer.sentences import sentence
from workbench.captures import TokenInfo
from workbench.core.errors import InputError, UnknownName
from workbench.core.options import ranges
from workbench.figures.tokens import SPECIAL, view_tokens
from workbench.frames.results import join_frames

SIMILARITY = ("token-similarity", "coding-rate")


@dataclass(frozen=True)
class View:
    """One way of looking at an address."""

    name: str
    title: str
    hint: str
    """Description of the view, for a tooltip."""
    caption: str
    """The first words under a saved figure."""
    draw: Callable[[Address, Material], go.Figure]
    numbers: Callable[[Address, Material], pd.DataFrame]
    """The figure's numbers as rows."""
    read: Callable[[Address, Material], str]
    """One sentence computed from the numbers."""
    lines: Callable[[Address, Material], list[str]]
    """The Python that makes this figure, after the lines that load and capture (see `workbench.apps.explorer.code`)."""


class NotShown(InputError):
    """A view that does not apply to the layer; the message gives the reason and another view."""


# ------------------------------------------------------------------------------------------------- the operands


def attention(look: Look, head: int) -> Float[Tensor, "query key"]:
    """Return one head's attention over tokens, in float64.

    Raises `NotShown` where the layer has none.
    """
    record = look.record
    if record.origin is not None:
        raise NotShown(
            f"layer {record.index} attends within windows, so there is no matrix over all tokens; "
            "the spectrum of its keys and the trajectory show it"
        )
    if record.kind == "channel":
        raise NotShown(
            f"layer {record.index} attends from channel to channel, not from token to token; "
            "norms, the spectrum of its keys and the trajectory show it"
        )
    if record.attn is None:
        raise NotShown(
            f"layer {record.index} mixes tokens without attention from token to token; "
            "its membership map and the trajectory show what it does"
        )
    return record.attn[0, head].double()


def _among_one_kind(look: Look, what: str) -> None:
    """Raise `NotShown` for cross attention, and for a row of the batch that is no single input."""
    record = look.record
    if record.source == "cross":
        raise NotShown(
            f"layer {record.index} attends from {_amount(look.tokens)} to {_amount(look.tokens.keys)} (cross "
            f"attention), and {what}; the matrix shows it"
        )


def _amount(tokens: TokenInfo | None) -> str:
    """Return the number of tokens and their kind, in words."""
    if tokens is None:
        return "its tokens"
    names = {"word": "word", "patch": "patch", "frame": "frame of sound"}
    kinds = {kind for kind in tokens.kinds[0] if kind not in ("padding", "special", *SPECIAL)}
    name = names.get(next(iter(kinds)), "token") if len(kinds) == 1 else "token"
    count = int(tokens.mask[0].sum())
    plural = {"patch": "patches", "frame of sound": "frames of sound"}
    return f"{count} {name if count == 1 else plural.get(name, f'{name}s')}"


def norms(look: Look, head: int) -> dict[str, Float[Tensor, " token"]]:
    """Return the norm of the query, key and value of every token in one head; grouped heads share keys and values.

    Raises `NotShown` where the layer has none, or has them by window.
    """
    record = look.record
    if record.origin is not None:
        raise NotShown(
            f"layer {record.index} attends within windows, so its queries, keys and values are not those of all "
            "tokens in order; the spectrum of its keys and the trajectory show it"
        )
    _among_one_kind(look, "the norms of queries are of other tokens than those of keys and values")
    tensors = {name: getattr(record, name) for name in ("q", "k", "v")}
    heads = next((value.shape[1] for value in tensors.values() if value is not None), 0)
    heads = record.head_out.shape[1] if record.head_out is not None else heads
    lengths = {
        name: torch.linalg.vector_norm(value[0, head * value.shape[1] // heads].double(), dim=-1)
        for name, value in tensors.items()
        if value is not None
    }
    if not lengths:
        raise NotShown(f"layer {record.index} has no queries, keys or values; see its membership map")
    return lengths


def singular_values(look: Look, head: int) -> Float[Tensor, " rank"]:
    """Return singular values of one head's attention over the real tokens."""
    attn = attention(look, head)
    if attn.shape[0] == 1:
        raise NotShown(
            f"layer {look.record.index} has one query, so its attention has one singular value; see the attention"
        )
    real, keys = (tokens.mask[0].to(attn.device) for tokens in (look.tokens, look.tokens.keys or look.tokens))
    return torch.linalg.svdvals(attn[real][:, keys])


# ---------------------------------------------------------------------------------------------------- attention


def _token(address: Address, look: Look) -> int | None:
    """Return the chosen token, if the input has it."""
    count = len(look.tokens.labels[0])
    if address.token is not None and count <= address.token < look.most_tokens:
        return None  # the layer has other tokens than the input's own
    if address.token is not None and not 0 <= address.token < count:
        raise InputError(f"there is no token {address.token}: {look.name} has {count}, counted from 0")
    return address.token


def _label(look: Look, token: int | None) -> str:
    return "all queries" if token is None else _names(look.tokens)[token]


def _names(tokens: TokenInfo) -> list[str]:
    """Return every token's name in a sentence: a patch by row and column, a word with its number."""
    return view_tokens(tokens, 0, len(tokens.labels[0])).names


def _draw_attention(address: Address, material: Material) -> go.Figure:
    from workbench.apps.explorer.head_figures import token_attention_figure

    look = material.look(address)
    _among_one_kind(look, "here a token is both")
    return token_attention_figure(
        attention(look, address.head),
        look.tokens,
        _token(address, look),
        image=look.image,
        max_lines=code.LINES,
    )


def _tokens_of(look: Look, *counts: int) -> list[list[int]]:
    """Return the numbers of the tokens of ``counts`` rows (or columns) of the layer.

    A layer may hold other tokens than the model: the patches before the class token joins them, and one query after.
    """
    view = view_tokens(look.tokens, 0, max(counts))
    return [[view.index[position] for position in view.places(count)] for count in counts]


def _real_attention(address: Address, look: Look) -> tuple[Tensor, list[int], list[int]]:
    """Return one head's attention between real tokens, and the numbers of its queries and keys."""
    attn = attention(look, address.head).cpu()
    if look.tokens.keys is not None:
        asking, seen = look.tokens.mask[0], look.tokens.keys.mask[0]
        queries, keys = (mask.nonzero()[:, 0].tolist() for mask in (asking, seen))
        return attn[asking][:, seen], queries, keys
    queries, keys = _tokens_of(look, *attn.shape)
    real = look.tokens.mask[0]
    attn = attn[real[queries]][:, real[keys]]
    return attn, [q for q in queries if real[q]], [k for k in keys if real[k]]


def _uniform_shares(attn: Tensor) -> Tensor:
    """Return each query's uniform share over the keys that it may see; a masked key's weight is exactly 0."""
    return 1 / (attn > 0).sum(-1).clamp(min=1)


def _key_labels(look: Look) -> list[str]:
    return (look.tokens.keys or look.tokens).labels[0]


def _key_names(look: Look) -> list[str]:
    return _names(look.tokens.keys or look.tokens)


def _attention_rows(address: Address, material: Material) -> pd.DataFrame:
    """Return one row per pair of real tokens."""
    look = material.look(address)
    attn, queries, keys = _real_attention(address, look)
    labels, seen = look.tokens.labels[0], _key_labels(look)
    return pd.DataFrame(
        [
            {"query": q, "key": k, "from": labels[q], "to": seen[k], "attention": value}
            for q, row in zip(queries, attn.tolist(), strict=True)
            for k, value in zip(keys, row, strict=True)
        ]
    )


def _read_attention(address: Address, material: Material) -> str:
    look = material.look(address)
    token = _token(address, look)
    attn, queries, keys = _real_attention(address, look)
    uniform = _uniform_shares(attn)
    if token in queries:
        row, uniform = attn[queries.index(token)], uniform[queries.index(token)]
    else:  # a single query is that of no token in question, and a token that takes no part asks nothing
        row, uniform, token = attn.mean(0), uniform.mean(), None if len(queries) > 1 else queries[0]
    top = int(row.argmax())
    key = "itself" if keys[top] == token and look.tokens.keys is None else _key_names(look)[keys[top]]
    share, times = f"{row[top]:.1%}", f"{row[top] / uniform:.1f}"
    outgoing = sentence("from", query=_label(look, token), key=key, share=share, times=times)
    return " ".join([outgoing, *_read_column(attn, queries, keys, token, look)])


def _read_column(
    attn: Tensor, queries: list[int], keys: list[int], token: int | None, look: Look
) -> list[str]:
    """Return a sentence on the query that gives a token most, where it is one of several keys and queries."""
    if token not in keys or len(queries) < 2:
        return []
    column = attn[:, keys.index(token)]
    most = int(column.argmax())
    shares = {"share": f"{column[most]:.1%}", "mean": f"{column.mean():.1%}"}
    query = "itself" if queries[most] == token else _names(look.tokens)[queries[most]]
    return [sentence("to", key=_label(look, token), query=query, **shares)]


def _draw_matrix(address: Address, material: Material) -> go.Figure:
    from workbench.apps.explorer.head_figures import attention_matrix_figure

    look = material.look(address)
    return attention_matrix_figure(attention(look, address.head), look.tokens, token=_token(address, look))


def _read_matrix(address: Address, material: Material) -> str:
    look = material.look(address)
    attn, queries, keys = _real_attention(address, look)
    if len(queries) == 1:
        return f"One query attends to {len(keys)} tokens."
    received, uniform = attn.mean(0), ((attn > 0) * _uniform_shares(attn)[:, None]).mean(0)
    top = int(received.argmax())
    name = _key_names(look)[keys[top]]
    times = f"{received[top] / uniform[top]:.1f}\u00a0× uniform attention"
    if look.record.source == "cross":
        of_all = f"Of all attention of {_amount(look.tokens)} to {_amount(look.tokens.keys)}"
        return f"{of_all}, {name} receives most, {received[top]:.1%}, {times}."
    return (
        f"{name[0].upper()}{name[1:]} receives most attention, {received[top]:.1%} of all, {times}. "
        f"A token gives itself {attn.diagonal().mean():.1%} on average."
    )


# --------------------------------------------------------------------------------------------- norms and spectra


def _draw_norms(address: Address, material: Material) -> go.Figure:
    from workbench.apps.explorer.head_figures import token_norms_figure

    look = material.look(address)
    return token_norms_figure(norms(look, address.head), look.tokens, image=look.image)


def _norm_rows(address: Address, material: Material) -> pd.DataFrame:
    look = material.look(address)
    labels, lengths = look.tokens.labels[0], norms(look, address.head)
    tokens = _tokens_of(look, *map(len, lengths.values()))
    return pd.DataFrame(
        [
            {"operand": name, "token": number, "label": labels[number], "norm": value}
            for (name, values), numbers in zip(lengths.items(), tokens, strict=True)
            for number, value in zip(numbers, values.tolist(), strict=True)
        ]
    )


_OPERAND = {"q": "query", "k": "key", "v": "value"}


def _read_norms(address: Address, material: Material) -> str:
    rows = _norm_rows(address, material)
    rows = rows[rows["token"].isin(material.look(address).tokens.mask[0].nonzero()[:, 0].tolist())]
    longest = rows.loc[rows.groupby("operand", sort=False)["norm"].idxmax()]
    names = _names(material.look(address).tokens)
    parts = [
        f"the {_OPERAND[row['operand']]} of {names[row['token']]} ({row['norm']:.2f})"
        for row in longest.to_dict("records")
    ]
    *first, last = parts
    return f"The longest vectors are {', '.join(first)} and {last}." if first else f"The longest is {last}."


def _spectrum_rows(address: Address, material: Material) -> pd.DataFrame:
    """Return spectra of the keys of the address' head, in every layer that has them."""
    frame = material.frame("gram-spectrum", address, null_samples=NULL_SAMPLES)
    return frame[frame["head"] == material.key_head(address)]


def _draw_spectrum(address: Address, material: Material) -> go.Figure:
    from workbench.apps.explorer.head_figures import head_spectrum_figure

    rows = _spectrum_rows(address, material)
    if not (rows["layer"] == address.layer).any():
        raise NotShown(f"layer {address.layer} has no keys whose Gram matrix could be taken")
    return head_spectrum_figure(rows, address.layer)


def _read_spectrum(address: Address, material: Material) -> str:
    rows = _spectrum_rows(address, material)
    rows = rows[rows["layer"] == address.layer]
    rank_90 = rows.loc[rows["metric"] == "rank_90", "value"].iloc[0]
    curve = rows[rows["metric"].isin(["eigenvalue", "eigenvalue_share"])]
    curve = curve[curve["metric"] == curve["metric"].iloc[0]].groupby("rank")[["value", "null_mean"]].mean()
    last = int(curve.index.max())
    fall, of_null = curve.iloc[0] / curve.loc[last]
    return (
        f"From rank 1 to {last}, the eigenvalues in layer {address.layer} fall {fall:.0f}-fold, those of Gaussian keys "
        f"{of_null:.1f}-fold. The {rank_90:.0f} largest of layer {address.layer} (thick) hold 90 % of the sum of all "
        "(dashed line)."
    )


def _draw_singular(address: Address, material: Material) -> go.Figure:
    from workbench.apps.explorer.head_figures import singular_values_figure

    return singular_values_figure(singular_values(material.look(address), address.head))


def _singular_rows(address: Address, material: Material) -> pd.DataFrame:
    values = singular_values(material.look(address), address.head)
    return pd.DataFrame({"rank": range(1, len(values) + 1), "singular_value": values.tolist()})


def _read_singular(address: Address, material: Material) -> str:
    values = singular_values(material.look(address), address.head)
    energy = values.square().cumsum(0) / values.square().sum()
    rank = int((energy < 0.9).sum()) + 1
    return sentence("singular", rank=str(rank), count=str(len(values)))


def _draw_membership(address: Address, material: Material) -> go.Figure:
    from workbench.apps.explorer.head_figures import token_membership_figure
    from workbench.figures.head_maps import membership_figure

    look, rows = material.look(address), material.memberships(address)
    if look.image is None:
        return token_membership_figure(rows, address.head, _token(address, look))
    return membership_figure(rows, images=[look.image])


def _read_membership(address: Address, material: Material) -> str:
    rows = material.memberships(address)
    values = rows.pivot(index="token", columns="head", values="value")
    head = min(address.head, values.shape[1] - 1)
    how = " Membership is from value projections." if rows["convention"].iloc[0] == "ours" else ""
    words = sentence(
        "membership", head=str(head), share=f"{values[head].mean():.1%}", uniform=f"{1 / values.shape[1]:.1%}",
        tokens="tokens" if material.look(address).image is None else "patches",
        most=str(int((values[head] >= values.max(axis=1)).sum())), count=str(len(values)),
    )  # fmt: skip
    return f"{words}{how}"


# ---------------------------------------------------------------------------------------------------- trajectory


def _trajectory_rows(address: Address, material: Material) -> pd.DataFrame:
    frames, reasons = [], []
    for analysis in SIMILARITY:
        try:
            frames.append(material.frame(analysis, address))
        except InputError as error:  # a model without such a number still has the other
            reasons.append(str(error))
    if not frames:
        raise NotShown("; ".join(reasons))
    return join_frames(frames)


def _draw_trajectory(address: Address, material: Material) -> go.Figure:
    from workbench.apps.explorer.head_figures import trajectory_figure

    return trajectory_figure(_trajectory_rows(address, material), address.layer)


def _read_trajectory(address: Address, material: Material) -> str:
    rows = _trajectory_rows(address, material)
    cosine = rows[rows["metric"] == "token_cosine"].sort_values("layer")
    if cosine.empty:
        return f"Layer {address.layer} of {rows['layer'].nunique()}."
    first, last = cosine["value"].iloc[0], cosine["value"].iloc[-1]
    rates = rows[(rows["metric"] == "coding_rate") & rows["standardize"].isna()]
    rates = rates[rates["candidate"].isin(["resid_post", None])].sort_values("layer")["value"]
    rate = f"; coding rate R {rates.iloc[0]:.1f} and {rates.iloc[-1]:.1f} nats" if len(rates) else ""
    return (
        f"Mean cosine of tokens {first:.3f} after the first block and {last:.3f} after the last{rate}; only the cosine "
        "has a null."
    )


# ------------------------------------------------------------------------------------------------------- compare


def _pair(address: Address, material: Material) -> tuple[Look, Look]:
    if address.against is None:
        raise NotShown("pin a view first (the button “pin”); then move on, and both are set side by side")
    return material.look(address.against), material.look(address)


def _draw_compare(address: Address, material: Material) -> go.Figure:
    from workbench.apps.explorer.head_figures import difference_figure

    first, second = _pair(address, material)
    assert address.against is not None
    for look in (first, second):
        _among_one_kind(look, "a difference is taken among the same tokens")
    return difference_figure(
        attention(first, address.against.head),
        attention(second, address.head),
        address.apart(),
        tokens=(first.tokens, second.tokens),
        image=None if first.image is None or second.image is None else (first.image, second.image),
        token=address.token,
    )


def _compare_rows(address: Address, material: Material) -> pd.DataFrame:
    assert address.against is not None
    return pd.concat(
        [
            _attention_rows(where, material).assign(view=name)
            for where, name in zip((address.against, address), address.apart(), strict=True)
        ],
        ignore_index=True,
    )


def _read_compare(address: Address, material: Material) -> str:
    first, second = _pair(address, material)
    assert address.against is not None
    names = address.apart()
    a, b = attention(first, address.against.head), attention(second, address.head)
    if a.shape != b.shape:
        return f"{names[0]} attends over {a.shape[-1]} tokens, {names[1]} over {b.shape[-1]}: no difference to take."
    real = second.tokens.mask[0].to(a.device) if len(a) > 1 else slice(None)
    moved = (a - b).abs().sum(-1) / 2
    tokens, share = "from each query, on average", moved[real].mean()
    if address.token is not None and len(a) == len(second.tokens.labels[0]):
        tokens, share = f"from {_label(second, address.token)}", moved[address.token]
    return sentence(
        "compare",
        first=names[0],
        second=names[1],
        tokens=tokens,
        weights="the attention",
        moves="goes to",
        share=f"{share:.1%}",
    )


# ---------------------------------------------------------------------------------------------------- all views


def without_attention(address: Address, material: Material) -> str:
    """Return a sentence that names the layers without attention, which no view shows; "" for none."""
    by_mixer: dict[str, list[int]] = {}
    for layer in material.whole_outline(address):
        if layer.mixer:
            by_mixer.setdefault(layer.mixer, []).append(layer.index)
    named = "; ".join(f"{ranges(numbers)} {mixer}" for mixer, numbers in by_mixer.items())
    return f" Layers without attention, not shown: {named}." if named else ""


VIEWS = {
    view.name: view
    for view in (
        View(
            "attention", "From / to", "where a token attends, and what attends to it; click another",
            "Where a token attends in one head, and what attends to it",
            _draw_attention, _attention_rows, _read_attention, code.attention,
        ),
        View(
            "matrix", "Matrix", "the whole attention matrix of the head; drag to zoom, click a row or column",
            "Attention of one head from every query (row) to every key (column)",
            _draw_matrix, _attention_rows, _read_matrix, code.matrix,
        ),
        View(
            "norms", "Norms", "lengths of queries, keys and values, token by token",
            "Lengths (L2 norms) of the queries, keys and values of one head, on one scale",
            _draw_norms, _norm_rows, _read_norms, code.norms,
        ),
        View(
            "spectrum", "Spectrum", "eigenvalues of the keys' centred Gram matrix, and their null distribution",
            "Largest eigenvalues of the centred Gram matrix of one head's keys (kernel: teo2024, eq. 11)",
            _draw_spectrum, _spectrum_rows, _read_spectrum, code.spectrum,
        ),
        View(
            "singular", "Singular values", "singular values of the attention matrix",
            "Singular values of one head's attention",
            _draw_singular, _singular_rows, _read_singular, code.singular,
        ),
        View(
            "membership", "Membership", "how strongly each patch or word belongs to each head",
            "Membership Π of every token in the heads of a layer: a softmax over heads of its squared norm in each "
            "head's subspace (wu2025, eq. 10)",
            _draw_membership, lambda address, material: material.memberships(address), _read_membership,
            code.membership,
        ),
        View(
            "trajectory", "Trajectory", "similarity of tokens and coding rates through depth",
            "Tokens after each block, the layer looked at dashed: (a) mean cosine of all pairs, (b) coding rate R "
            "(wu2025, distortion ε² = d, the tokens' width)",
            _draw_trajectory, _trajectory_rows, _read_trajectory, code.trajectory,
        ),
        View(
            "compare", "Compare", "the pinned view beside this view, and their difference",
            "Attention of two heads from the token in the blue frame, and the second minus the first; the "
            "share that goes to different tokens is their total variation distance",
            _draw_compare, _compare_rows, _read_compare, code.compare,
        ),
    )
}  # fmt: skip


def view(name: str) -> View:
    """Return the view of a name; raise `UnknownName`."""
    if name not in VIEWS:
        raise UnknownName("view", name, VIEWS)
    return VIEWS[name]
