"""A view as lines of Python that make it with only the library, and as a command."""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING

from workbench.apps.explorer.address import Address
from workbench.apps.explorer.material import order_of_spec
from workbench.apps.explorer.measures import NULL_SAMPLES
from workbench.apps.explorer.uploads import portable_inputs

if TYPE_CHECKING:
    from workbench.apps.explorer.material import Material

LINES = 40
"""Number of lines of a text that are drawn: a page has room for more than print."""
IMPORTS = ["import workbench", "from workbench.apps.explorer import head_figures"]


def script(lines: list[str]) -> str:
    """Return the whole program: imports, the view's lines, and the figure."""
    return "\n".join([*IMPORTS, "", *lines, "figure"]) + "\n"


def command(address: Address) -> str:
    """Return the `workbench render` line that draws and saves the same view."""
    plain = address.to_dict()
    words = ["workbench", "render", "explorer"]
    if address.inputs is not None:
        plain["inputs"] = portable_inputs(address.inputs)
    plain["token"] = "all" if address.token is None else address.token
    for name, value in plain.items():
        if value is None or (name == "pretrained" and value) or (name == "window" and not value):
            continue
        text = json.dumps(value) if isinstance(value, dict) else str(value)
        words += ["-p", name, text]
    return shlex.join(words)


def _pair(words: tuple[str, str]) -> str:
    return f"({_quoted(words[0])}, {_quoted(words[1])})"


def _quoted(text: str | None) -> str:
    return json.dumps(text, ensure_ascii=False)


def _load(address: Address, material: Material, model: str = "model", inputs: str = "inputs") -> list[str]:
    n = len(material.inputs(address))
    cut = f"[{address.index}:{address.index + 1}]"
    weights = "" if address.pretrained else ", pretrained=False"
    load = f"{model} = workbench.load({_quoted(address.model)}{weights})"
    if material.holds(address):
        load = f"# {model}: what the explorer was given as {_quoted(address.model)}"
    spec = portable_inputs(address.inputs or material.default_inputs(address))
    order = order_of_spec(spec)
    chosen = f"seed={address.seed}" if order is None else f"order={_quoted(order)}"
    chosen += f", window={address.window}" if address.window else ""
    return [
        load,
        f"{inputs} = workbench.inputs({_quoted(spec)}, {model}, n={n}, {chosen}){cut}",
    ]


def _capture(
    address: Address, material: Material, sites: str,
    name: str = "capture", model: str = "model", inputs: str = "inputs",
) -> list[str]:  # fmt: skip
    return [
        *_load(address, material, model, inputs),
        f"{name} = workbench.capture({model}, {inputs}, layers=[{address.layer}], sites={sites})",
    ]


def _attn(address: Address, name: str = "capture") -> str:
    return f"{name}[{address.layer}].attn[0, {address.head}].double()"


def _tokens(address: Address, material: Material, name: str = "capture") -> str:
    """Return code for the tokens of the layer: those of the input, unless the model has several kinds of them."""
    several = material.inputs(address).tokens.streams or material.look(address).record.source == "cross"
    return f"{name}.tokens_of({address.layer})" if several else f"{name}.tokens"


def _image(address: Address, material: Material) -> str:
    return ", image=inputs.images[0]" if material.one(address).images else ""


def _whole(address: Address, material: Material) -> str:
    """Return code for the image of an input, or for the number of lines of a text."""
    return _image(address, material) or f", max_lines={LINES}"


def attention(address: Address, material: Material) -> list[str]:
    """Return the lines of the view attention."""
    return [
        *_capture(address, material, '["attn"]'),
        f"attn = {_attn(address)}  # query × key",
        f"figure = head_figures.token_attention_figure(attn, {_tokens(address, material)}, "
        f"{address.token}{_whole(address, material)})",
    ]


def matrix(address: Address, material: Material) -> list[str]:
    """Return the lines of the view matrix."""
    return [
        *_capture(address, material, '["attn"]'),
        f"figure = head_figures.attention_matrix_figure({_attn(address)}, {_tokens(address, material)}, "
        f"token={address.token})",
    ]


def norms(address: Address, material: Material) -> list[str]:
    """Return the lines of the view norms."""
    record = material.look(address).record
    present = [name for name in ("q", "k", "v") if getattr(record, name) is not None]
    group = material.key_head(address)
    return [
        *_capture(address, material, json.dumps(present)),
        f"layer = capture[{address.layer}]",
        "lengths = {",
        *(
            f'    "{name}": layer.{name}[0, {address.head if name == "q" else group}].double().norm(dim=-1),'
            for name in present
        ),
        "}",
        f"figure = head_figures.token_norms_figure(lengths, {_tokens(address, material)}{_image(address, material)})",
    ]


def spectrum(address: Address, material: Material) -> list[str]:
    """Return the lines of the view spectrum."""
    return [
        *_load(address, material),
        f'frame = workbench.analyze("gram-spectrum", model=model, inputs=inputs, null_samples={NULL_SAMPLES})',
        f'rows = frame[frame["head"] == {material.key_head(address)}]',
        f"figure = head_figures.head_spectrum_figure(rows, {address.layer})",
    ]


def singular(address: Address, material: Material) -> list[str]:
    """Return the lines of the view singular."""
    return [
        "import torch",
        "",
        *_capture(address, material, '["attn"]'),
        f"tokens = {_tokens(address, material)}",
        "real, keys = tokens.mask[0], (tokens.keys or tokens).mask[0]",
        f"attn = {_attn(address)}[real][:, keys]",
        "figure = head_figures.singular_values_figure(torch.linalg.svdvals(attn))",
    ]


def membership(address: Address, material: Material) -> list[str]:
    """Return the lines of the view membership."""
    arguments = f'"membership", model=model, inputs=inputs, layers=[{address.layer}], per="token"'
    if material.one(address).images:
        figure = "workbench.figures.membership_figure(frame, images=inputs.images)"
    else:
        figure = f"head_figures.token_membership_figure(frame, {address.head}, {address.token})"
    return [
        *_load(address, material),
        f"frame = workbench.analyze({arguments})",
        f"figure = {figure}",
    ]


def trajectory(address: Address, material: Material) -> list[str]:
    """Return the lines of the view trajectory."""
    return [
        "from workbench.frames.results import join_frames",
        "",
        *_load(address, material),
        'names = ("token-similarity", "coding-rate")',
        "frame = join_frames([workbench.analyze(name, model=model, inputs=inputs) for name in names])",
        f"figure = head_figures.trajectory_figure(frame, {address.layer})",
    ]


def compare(address: Address, material: Material) -> list[str]:
    """Return the lines of the view compare."""
    against = address.against
    assert against is not None  # nothing is drawn without it
    pictured = material.one(address).images and material.one(against).images
    images = ["    image=(first_inputs.images[0], second_inputs.images[0]),"] if pictured else []
    return [
        *_capture(against, material, '["attn"]', "first", "first_model", "first_inputs"),
        "",
        *_capture(address, material, '["attn"]', "second", "second_model", "second_inputs"),
        "",
        "figure = head_figures.difference_figure(",
        f"    {_attn(against, 'first')},",
        f"    {_attn(address, 'second')},",
        f"    {_pair(address.apart())},",
        f"    tokens=({_tokens(against, material, 'first')}, {_tokens(address, material, 'second')}),",
        *images,
        f"    token={address.token},",
        ")",
    ]
