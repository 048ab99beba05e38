"""The saved page: the modules of front/ and a bundle in one HTML file, which opens from a disk without a network."""

from __future__ import annotations

import base64
import hashlib
import html
import os
import re
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlencode

import numpy as np

from workbench._version import __version__
from workbench.apps.explorer.bundle import (
    LEFT_OUT,
    POOLED,
    Bundle,
    bin_means,
    coarse_part,
    make_bundle,
    map_limit,
    map_size,
    of_checkpoints,
    operands_of,
    why_without,
)
from workbench.apps.explorer.material import checkpoints_of
from workbench.apps.explorer.network import network_of
from workbench.apps.explorer.picture import draw_picture, inputs_of_view, view_parts
from workbench.apps.explorer.uploads import portable_inputs
from workbench.core.errors import InputError, UnknownName
from workbench.core.files import atomic_write, check_writable
from workbench.core.threads import one_thread

if TYPE_CHECKING:
    from workbench.apps.explorer.address import Address
    from workbench.apps.explorer.cards import CardIndex
    from workbench.apps.explorer.material import Material
    from workbench.captures import LayerRecord, TokenInfo
    from workbench.data.batches import Inputs
    from workbench.models.loading import LoadedModel

FRONT = Path(__file__).parent / "front"
LIMIT_MB = 16.0  # 12 layers of 12 heads among 197 tokens
MOST_AGAIN = 1e10
"""Parameters × tokens up to which a saved page has analyses that run the model again, unasked."""
LEAST_BINS = 64
"""Matrices are pooled to no fewer bins before layers are left out."""
LIVE_MB = 64.0  # what a page with a kernel is sent at once
_IMPORT = re.compile(r'^import (\{[^}]*\}) from "\./(\w+)\.js";$', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async )?(?:function|const|class) (\w+))", re.MULTILINE)
_START = """
const asked = new URLSearchParams(location.hash.slice(1));
const { start } = document.body.dataset;
const page = mountSaved(document.getElementById("explorer"), embedded("bundle"), { address: true, start });
if (asked.has("picture")) page.picture(asked);
"""


@cache
def script(entry: str = "page", folder: Path = FRONT) -> str:
    """Join a module of front/ and everything it imports into one script.

    A page opened from a disk may not load modules, and a widget is a single module. Each imported module becomes a
    function that returns its exports; the entry follows at the top level.
    """
    joined: dict[str, str] = {}

    def bind(name: str) -> str:
        """Return the source of a module that takes its imports from those joined before it."""
        source = (folder / f"{name}.js").read_text(encoding="utf-8")
        for _, other in _IMPORT.findall(source):
            if other not in joined:
                body = bind(other)
                exports = ", ".join(_EXPORT.findall(body))
                body = f"{_EXPORT.sub('', body)}return {{ {exports} }};"
                joined[other] = f"const {other}_js = (() => {{\n{body}\n}})();\n"
        return _IMPORT.sub(r"const \1 = \2_js;", source)

    last = _EXPORT.sub("", bind(entry))
    return "".join([*joined.values(), last])


def page_html(bundle: Bundle, title: str, start: str = "") -> str:
    """Return the page of a bundle; its own policy forbids any request.

    ``start`` is the fragment of an address ("#layer=3&head=1") that the page opens at where it is given none.
    """
    code = f'"use strict";\n(() => {{\n{script()}{_START}}})();\n'
    digest = base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()
    content = base64.b64encode(bundle.to_bytes()).decode()
    style = (FRONT / "style.css").read_text(encoding="utf-8")
    policy = f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src data:"
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="generator" content="Attention Workbench {__version__}">
<link rel="icon" href="data:,">
<title>{html.escape(title)}</title>
<style>
html, body {{ margin: 0; height: 100%; background: #f3f5f8; }}
html[data-theme="dark"], html[data-theme="dark"] body {{ background: #0c0f13; }}
#explorer {{ height: 100dvh; }}
@media (max-width: 1160px) {{ #explorer {{ height: auto; min-height: 100dvh; }} }}
{style}</style>
</head>
<body data-start="{html.escape(start)}">
<main id="explorer"></main>
<noscript>This page draws with JavaScript, which is switched off here.</noscript>
<script type="text/plain" id="bundle">{content}</script>
<script>{code}</script>
</body>
</html>
"""


def save_page(
    path: str | os.PathLike[str],
    address: Address,
    material: Material,
    layers: Sequence[int] | None = None,
    limit_mb: float = LIMIT_MB,
    indices: Sequence[int] | None = None,
    ablations: bool | None = None,
    analyses: Sequence[str] = (),
    say: Callable[[str], object] = print,
    generate: int = 0,
    placed: bool = True,
    checkpoints: bool = False,
    view: str = "",
    cards: int = 0,
) -> Path:
    """Write the page of an address: its model on its input, all layers, or those that fit; or a PNG of a part of it.

    ``indices`` are those of several inputs, among which the page chooses; it opens at the first. ``ablations`` runs the
    model again without each head in turn; None does so where that is a matter of seconds. ``analyses`` are registered
    ones whose numbers of heads and layers the page shows besides; ``generate`` has the model continue its texts
    by that number of tokens, each with the attention that chose it. The page opens at the address or, unless it is
    ``placed``, at the most striking head and token. Warns first if the file holds your own inputs, and lists layers
    that are left out for its size. With ``checkpoints`` it holds all of the model's, and a slider goes through
    training; heads are switched off in the address' own only. ``view`` is the fragment of a page's
    address; it names inputs as the address does. ``cards`` adds a card of each head over that number of inputs.

    Raises `InputError` where not even one layer fits, or for another ending, and `MissingResource` where the file
    cannot be written, or without Chrome for a picture.
    """
    target = Path(path).expanduser()
    if target.suffix.lower() not in (".html", ".htm", ".png"):
        raise InputError(f"a page is saved as .html, a picture of it as .png; got {target.name!r}")
    check_writable(target)
    parts = view_parts(view)
    indices = inputs_of_view(parts, address.index) if view else indices
    others = _own_first(material.model(address)) if checkpoints else {}
    addresses = [address] if indices is None else [address.moved(index=index) for index in indices]
    if not addresses:
        raise InputError("indices are those of the inputs to save, [0, 3]; got none")
    samples = [material.one(part) for part in addresses]
    first_input = samples[0]
    if not first_input.spec.startswith("bundled:"):
        what = "its text" if first_input.texts else "the image as the model sees it"
        names = ", ".join(sample.ids[0] for sample in samples)
        say(f"{target.name} will hold the input {names} itself ({what}): whoever gets the file has it")
    with_operands, bins = True, None
    if layers is None:
        count = len(material.whole_outline(address))
        layers, with_operands, bins = _that_fit(
            address, material, limit_mb / len(samples) / (1 + len(others)), generate
        )
        if len(layers) < count:
            say(
                f"all {count} layers would take more than {limit_mb:g} MB: {len(layers)} of them are taken, evenly, "
                "without queries and keys; --max-size (limit_mb=) takes more"
            )
        elif bins is not None:
            say(
                f"attention token by token would take more than {limit_mb:g} MB: all {count} layers are saved as means "
                f"of {bins} × {bins} cells, without queries and keys; --max-size (limit_mb=) takes more"
            )
        elif not with_operands:
            say(
                f"queries and keys would take more than {limit_mb:g} MB and are left out: the tabs q·k and Plane are "
                "empty; --max-size (limit_mb=) takes them"
            )
    made = partial(
        bundle_at,
        material=material,
        layers=layers,
        samples=samples,
        with_operands=with_operands,
        analyses=analyses,
        generate=generate,
        bins=bins,
        most_again=None if target.suffix.lower() == ".png" else MOST_AGAIN,
    )
    bundle = made(address, ablations=ablations)
    for note in bundle.header.notes:
        if note.startswith(LEFT_OUT):
            say(f"{note}; --analysis NAME (analyses=) measures them")
    if cards:
        bundle = bundle.with_cards(*cards_at(address, material, cards, layers))
    whole = not bundle.header.left_out and not any(
        card.pooled or card.without for card in bundle.header.layers
    )
    network = network_of(material.model(address), first_input) if whole and not others else None
    if network:
        bundle = bundle.with_network(*network)
    if others:
        own, *rest = others.items()
        bundles = {own[0]: bundle}
        for name, spec in rest:
            bundles[name] = made(address.moved(model=spec), ablations=False)
        bundle = of_checkpoints(bundles)
    token = {} if address.token is None else {"token": address.token}
    if generate:
        written = bundle.header.inputs[0]
        token = {"token": len(written.labels) - written.generated - 1}  # of the first step
    place = {"layer": address.layer, "head": address.head, **token}
    start = "#" + urlencode(parts if view else place) if view or placed or generate else ""
    page = page_html(bundle, f"{address.describe()} · attention", start)
    return atomic_write(
        target, draw_picture(page, parts) if target.suffix.lower() == ".png" else page.encode()
    )


def _own_first(model: LoadedModel) -> dict[str, str]:
    """Return name and spec of all checkpoints of a model, its own first."""
    every = checkpoints_of(model.spec)
    if len(every) < 2:
        raise InputError(
            f"{model.spec} has no checkpoints to go through; give bundled:digits-vit or file:RUN/epoch-NNN.safetensors"
        )
    own = next(
        (name for name in every if name == model.checkpoint or every[name] == model.spec), [*every][-1]
    )
    return {own: every[own], **every}


def bundle_at(
    address: Address,
    material: Material,
    layers: Sequence[int] | None = None,
    samples: Sequence[Inputs] | None = None,
    ablations: bool | None = None,
    with_operands: bool = True,
    analyses: Sequence[str] = (),
    generate: int = 0,
    measured: bool = True,
    bins: int | None = None,
    most_again: float | None = None,
) -> Bundle:
    """Return the bundle of an address: its model on its input (or on several), all layers or some.

    The model first continues its texts by ``generate`` tokens. Raises `InputError` for a layer that does not exist.
    """
    loaded = material.model(address)
    layer_numbers = [layer.index for layer in material.whole_outline(address)]
    chosen = (
        layer_numbers
        if layers is None
        else [_number(layer, layer_numbers, address.model) for layer in layers]
    )
    left_out = [layer for layer in layer_numbers if layer not in chosen]
    samples = samples or [material.one(address)]
    every = material.inputs(address).ids
    numbers = [every.index(sample.ids[0]) for sample in samples]
    texts = (
        [material.continued(address.moved(index=number), generate) for number in numbers] if generate else []
    )
    with material.alone(f"{'measuring' if measured else 'capturing'} {address.model}"):
        bundle = make_bundle(
            loaded, [text for text, _ in texts] or samples, chosen if left_out else None, left_out, address.seed,
            ablations, with_operands, analyses, progress=material.report.progress, measured=measured,
            steps=[steps for _, steps in texts], bins=bins, most_again=most_again,
        )  # fmt: skip
    cards = [
        card.model_copy(
            update={
                "address": _address(address, number),
                **({} if generate else _window(loaded, sample)),
            }
        )
        for card, sample, number in zip(bundle.header.inputs, samples, numbers, strict=True)
    ]
    return Bundle(bundle.header.model_copy(update={"inputs": cards}), bundle.arrays)


def cards_at(
    address: Address, material: Material, count: int, layers: Sequence[int] | None = None
) -> tuple[CardIndex, dict[str, np.ndarray]]:
    """Return the cards of all heads over ``count`` inputs of the address' source, or as many as there are."""
    from workbench.apps.explorer.cards import make_cards

    def make() -> tuple[CardIndex, dict[str, np.ndarray]]:
        batch = material.inputs(address.moved(n=count))
        samples = [batch[index : index + 1] for index in range(len(batch))]
        with material.alone(f"head cards over {len(samples)} inputs"):
            model, report = material.model(address), material.report.progress
            with one_thread():  # of many small matrices: several threads wait for each other
                return make_cards(model, samples, layers, address.seed, report)

    return material.keep(address, ("cards", count, *(layers or ())), make)


def live_bundle(
    address: Address,
    material: Material,
    layers: Sequence[int] | None = None,
    ablations: bool | None = None,
    analyses: Sequence[str] = (),
    generate: int = 0,
    first: bool = False,
) -> Bundle:
    """Return the cached bundle for a page with a kernel: all layers, or those that fit into `LIVE_MB`.

    With ``first`` it may be what a person sees first, the rest ``unmeasured``, where the whole was not made before.
    """
    with_operands, bins = True, None
    if layers is None:
        try:
            layers, with_operands, bins = _that_fit(address, material, LIVE_MB, generate)
        except InputError:  # not even one fits: it is shown all the same
            layers, with_operands = [address.layer], False
    chosen = tuple(layers)

    def make() -> Bundle:
        return bundle_at(
            address, material, chosen, None, ablations, with_operands, analyses, generate, not first, bins
        )

    key = ("bundle", chosen, ablations, tuple(analyses), generate)
    if first and not material.has(address, key):
        return make()
    return material.keep(address, key, make)


def with_head_off(
    bundle: Bundle, address: Address, material: Material, how: str, generate: int = 0
) -> Bundle:
    """Return the bundle with the predictions without the address' head, and without random heads beside it.

    All heads of an input are compared with the same random heads; earlier results are not computed again.

    Raises `InputError` where there is no prediction, or the head cannot be switched off so.
    """
    from workbench.apps.explorer import ablation
    from workbench.captures import capture

    if how not in ablation.ON_REQUEST:
        raise UnknownName("way to switch a head off", how, ablation.ON_REQUEST)
    if bundle.header.inputs[0].prediction is None:
        raise InputError(f"{address.model} makes no predictions here: {bundle.header.without_ablations}")
    loaded = material.model(address)
    sample = material.continued(address, generate)[0] if generate else material.one(address)
    head_counts = {card.index: card.heads for card in bundle.header.layers if card.heads}
    size = sum(parameter.numel() for parameter in loaded.module.parameters()) * len(sample.tokens.labels[0])
    count = max(4, min(ablation.RANDOM_HEADS, int(ablation.MOST_WORK / size)))
    head_key = (address.layer, address.head)
    wanted = [head_key, *ablation.random_heads(head_counts, count, address.seed)]
    heads = [head for head in dict.fromkeys(wanted) if not bundle.has_effect(how, *head)]
    if heads:
        layers = sorted({layer for layer, _ in heads})
        with material.alone(f"switching off {len(heads)} heads"):
            seen = capture(
                loaded, sample, layers=layers, sites=("v", "attn", "head_out"), map_limit=map_limit(sample)
            )
            prediction = ablation.predict(loaded, sample, seen)
            assert prediction is not None  # the bundle has it
            means = (
                ablation.mean_outputs(loaded, material.inputs(address), layers)
                if how == ablation.BATCH
                else None
            )
            ablated = ablation.ablate(loaded, sample, seen, prediction, [how], heads, means)[how]
        words = ablation.ON_REQUEST[how].replace("all inputs", f"all {len(material.inputs(address))} inputs")
        bundle = bundle.with_effects(how, words, ablated, [record.index for record in seen])
    if not bundle.has_effect(how, *head_key):
        raise InputError(
            f"layer {address.layer}, head {address.head} cannot be switched off so ({ablation.ON_REQUEST[how]}): where "
            "its output goes, or its values, are not known"
        )
    return bundle


def matrix_part(
    address: Address, material: Material, top: int, left: int, count: int, generate: int = 0
) -> np.ndarray:
    """Return attention of the address' head, ``count`` queries from ``top`` and keys from ``left``, as float16.

    Of more than `POOLED` tokens the means of cells, as `bin_means` gives them: a page of a long input shows it where
    the whole is too coarse. Raises `InputError` where there is no such part.
    """
    from workbench.captures import capture

    def make() -> tuple[LayerRecord, TokenInfo]:
        sample = material.continued(address, generate)[0] if generate else material.one(address)
        with material.alone(f"looking closer at layer {address.layer}"):
            seen = capture(
                material.model(address),
                sample,
                layers=[address.layer],
                sites=("attn",),
                map_limit=map_limit(sample),
            )
        record, tokens = seen[address.layer], seen.tokens
        assert tokens is not None  # inputs always come with their tokens
        if why := why_without(record, len(tokens.labels[0])):
            raise InputError(f"layer {address.layer} {why}")
        return record, tokens

    record, tokens = material.keep(address, ("matrix", address.layer, generate), make)
    sizes = map_size(record)
    assert sizes is not None  # else there is a reason why not
    if not (count > 0 and 0 <= top <= sizes[0] - count and 0 <= left <= sizes[1] - count):
        raise InputError(f"there is no part of {count} tokens from {top} and {left} in {sizes}")
    if record.attn is None:
        return coarse_part(operands_of(record, tokens, address.head), top, left, count).astype(np.float16)
    part = record.attn[0, address.head, top : top + count, left : left + count]
    return bin_means(part.detach().float().cpu().numpy()).astype(np.float16)


def _window(model: LoadedModel, sample: Inputs) -> dict[str, Any]:
    """Return a card's fields about the window of a text that was cut; nothing for other inputs."""
    if sample.cut is None or not sample.cut[0]:
        return {}
    window = sample.windows[0]
    first = window * (sample.cut[1] - model.tokenizer.num_special_tokens_to_add())
    fields = {"whole": sample.lengths[0], "first": first}
    last = first + int(sample.tokens.mask[0].sum())
    return fields | ({"id": f"{sample.ids[0]}, tokens {first + 1}–{last}"} if window else {})


def _address(address: Address, index: int) -> dict[str, str | int]:
    """Return the parts that choose model and input again, without any path of this machine."""
    spec = portable_inputs(str(address.inputs))
    travels = spec.startswith("text:[") or not spec.startswith(("images", "imagenet:", "text:"))
    parts: dict[str, str | int] = {"inputs": spec} if travels else {}
    if address.model.startswith("bundled:") and "@" in address.model:
        parts["model"] = address.model
    return {**parts, "n": address.n, "seed": address.seed, "index": index} | (
        {"window": address.window} if address.window else {}
    )


def _number(layer: int, layer_numbers: list[int], model: str) -> int:
    """Return the number of a layer, which may count from the end."""
    number = layer_numbers[layer] if -len(layer_numbers) <= layer < 0 else layer
    if number not in layer_numbers:
        raise InputError(f"no layer {layer} in {model}; there are {layer_numbers[0]} to {layer_numbers[-1]}")
    return number


class _Fit(NamedTuple):
    """What fits into a page: layers, whether their queries and keys do, and bins that matrices are pooled to for it."""

    layers: list[int]
    with_operands: bool
    bins: int | None


def _that_fit(address: Address, material: Material, limit_mb: float, generate: int = 0) -> _Fit:
    """Choose what fits: everything; without queries and keys; pooled; then fewer layers, evenly, with the address' own.

    Raises `InputError` where not even one layer fits.
    """
    tokens = len(material.one(address).tokens.labels[0]) + generate
    layers = material.whole_outline(address)
    numbers = [layer.index for layer in layers]
    most = max((layer.heads for layer in layers), default=0)

    def layer_mb(bins: int) -> float:
        """Return the size of a layer's matrices, float16 as base64; pooled ones are mean and largest value."""
        return most * min(tokens, bins) ** 2 * (2 if tokens > bins else 1) * 2 * 4 / 3 / 1e6

    widest = max((layer.head_dim for layer in layers), default=0)
    besides = (
        0 if tokens > POOLED else most * tokens * (2 * 2 * widest + 6 * 4) * 4 / 3 / 1e6
    )  # q, k, norms, planes
    whole = layer_mb(POOLED)
    if whole * len(layers) <= limit_mb:
        return _Fit(numbers, (whole + besides) * len(layers) <= limit_mb, None)
    bins = max(LEAST_BINS, min(POOLED, int((limit_mb / len(layers) / layer_mb(1)) ** 0.5)))
    if layer_mb(bins) >= whole:  # of few tokens, mean and largest value take more than the matrix
        bins = POOLED
    elif layer_mb(bins) * len(layers) <= limit_mb:
        return _Fit(numbers, False, bins)
    fit = int(limit_mb / layer_mb(bins))
    if fit < 1:
        raise InputError(
            f"one layer of {address.model} on {tokens} tokens takes {layer_mb(bins):.1f} MB, more than the limit of "
            f"{limit_mb:g} MB: raise the limit or take a shorter input"
        )
    at = numbers.index(address.layer)
    spread = {round(number * (len(layers) - 1) / max(1, fit - 1)) for number in range(fit)}
    nearest = min(spread, key=lambda number: abs(number - at))
    return _Fit(
        [numbers[number] for number in sorted((spread - {nearest}) | {at})],
        False,
        bins if bins < POOLED else None,
    )
