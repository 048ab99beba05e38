"""The address of a view: model, input, layer, head, token and view."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from workbench.core.errors import InputError, UnknownName
from workbench.core.options import parse_numbers, parsed

_VIEWS_OF = {
    "attention-map": "matrix",
    "attention-spectrum": "singular",
    "class-attention": "attention",
    "gram-spectrum": "spectrum",
    "membership": "membership",
    "token-similarity": "trajectory",
}
"""Analysis → the view of its results for one head."""
_NUMBERS = ("n", "seed", "index", "layer", "head", "window")


def _portable_spec(spec: str) -> str:
    """Return a model's spec with the name of a local folder or file in place of its path, for pages that are shared."""
    scheme, colon, path = spec.rpartition(":")
    local = path.startswith(("/", "~", ".")) or (os.sep != "/" and os.sep in path)
    return f"{scheme}{colon}{Path(path).name}" if local else spec


@dataclass(frozen=True)
class Address:
    """A complete description of a view: saved as a small dict, it opens the same view again.

    ``layer`` and ``head`` count from 0, or from the end where negative; ``token`` is the query or key in question
    (None: the mean over queries); ``against`` is the address that the view ``compare`` shows next to this.
    """

    model: str = "bundled:digits-vit"
    inputs: str | None = None
    """None: what is bundled for the model's kind."""
    n: int = 8
    seed: int = 0
    index: int = 0
    """Which of the n inputs."""
    layer: int = -1
    head: int = 0
    token: int | None = None
    view: str = "attention"
    metric: str = "attention_entropy"
    against: Address | None = field(default=None)
    pretrained: bool = True
    """False: the model's architecture with random weights, as `workbench.load` draws them."""
    window: int = 0
    """Window of a text, as `workbench.inputs` takes it."""

    def __post_init__(self) -> None:
        """Raise `InputError` for a value of the wrong kind."""
        for name in ("model", "view", "metric"):
            value = getattr(self, name)
            if not isinstance(value, str) or not value.strip():
                raise InputError(f"{name} of an address is a name, got {value!r}")
        if self.inputs is not None and not isinstance(self.inputs, str):
            raise InputError(f"inputs of an address are named by a text or None, got {self.inputs!r}")
        for name in (*_NUMBERS, "token"):
            value = getattr(self, name)
            is_integer = isinstance(value, int) and not isinstance(value, bool)
            if not is_integer and not (name == "token" and value is None):
                raise InputError(f"{name} of an address is a whole number, got {value!r}")
        if self.n < 1 or min(self.seed, self.index, self.window) < 0:
            raise InputError(
                f"an address has n from 1 and seed, index and window from 0 up; got n {self.n}, seed {self.seed}, "
                f"index {self.index}, window {self.window}"
            )
        if not isinstance(self.pretrained, bool):
            raise InputError(f"pretrained of an address is true or false, got {self.pretrained!r}")
        if self.against is not None and not isinstance(self.against, Address):
            raise InputError(f"against is another address, got {type(self.against).__name__}")

    @property
    def place(self) -> tuple[int, int, int | None]:
        """Return layer, head and token."""
        return self.layer, self.head, self.token

    def moved(self, **changes: Any) -> Address:
        """Return the same address with other values."""
        return dataclasses.replace(self, **changes)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values only, for JSON or YAML."""
        plain = {name: getattr(self, name) for name in FIELDS}
        plain["against"] = None if self.against is None else self.against.to_dict()
        return plain

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any]) -> Address:
        """Return an address from the result of `to_dict`, or a part of it.

        Raises `UnknownName` for a key that is no part of an address and `InputError` for a value of the wrong kind.
        """
        if not isinstance(saved, Mapping):
            raise InputError(
                f"an address is a dict such as {{'model': …, 'layer': 3}}, got {type(saved).__name__}"
            )
        for name in saved:
            if name not in FIELDS:
                raise UnknownName("part of an address", str(name), FIELDS)
        parts = dict(saved)
        if parts.get("against") is not None and not isinstance(parts["against"], Address):
            parts["against"] = cls.from_dict(parts["against"])
        return cls(**parts)

    def describe(self) -> str:
        """Return a short name: ``digits-vit · input 17 · layer 3 · head 0``; a local model has that of its folder."""
        name = _portable_spec(self.model).partition(":")[2] or self.model
        return f"{name} · input {self.index} · layer {self.layer} · head {self.head}"

    def apart(self) -> tuple[str, str]:
        """Return the difference between the pinned address and this one in few words: ("layer 0", "layer 2")."""
        if self.against is None:
            return "", ""
        words = {"layer": "layer ", "head": "head ", "index": "input ", "window": "window "}
        parts = [
            (
                f"{words.get(name, '')}{getattr(self.against, name)}",
                f"{words.get(name, '')}{getattr(self, name)}",
            )
            for name in ("model", "pretrained", "inputs", "index", "window", "layer", "head")
            if getattr(self.against, name) != getattr(self, name)
        ]
        if not parts:
            return "pinned", "here"
        return ", ".join(first for first, _ in parts), ", ".join(second for _, second in parts)


FIELDS = tuple(part.name for part in dataclasses.fields(Address))


def plain_address(address: Mapping[str, Any] | str) -> Mapping[str, Any]:
    """Return an address as a mapping, from JSON where it is a text; raise `InputError` for a text that is no JSON."""
    if not isinstance(address, str):
        return address
    try:
        return parsed(address)
    except ValueError as error:
        raise InputError(
            f"this is no saved address: {address[:80]!r}; copy all of it, braces included"
        ) from error


def address_of_url(query: str) -> dict[str, Any]:
    """Read an address from the query of a URL: ``model=digits-vit&layer=2&head=1&query=12``.

    ``query`` is the token in question, a number or "all"; of several the first. A server's page has its own ``token``.
    Other names are passed over; values are checked where the address is opened.
    """
    fields = dict(parse_qsl(query))
    parts: dict[str, Any] = {
        name: fields[name] for name in ("model", "inputs", "view", "metric") if name in fields
    }
    numbers = {name: fields[name] for name in _NUMBERS if name in fields} | (
        {"token": fields["query"].partition(",")[0]} if "query" in fields else {}
    )
    for name, value in numbers.items():
        parts[name] = int(value) if value.lstrip("-").isdecimal() else value
    if parts.get("token") == "all":
        parts["token"] = None
    if "pretrained" in fields:
        parts["pretrained"] = {"true": True, "false": False}.get(fields["pretrained"], fields["pretrained"])
    return parts


def address_of_figure(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read the address of a saved figure from its provenance: the explorer's, or that of another measurement.

    A figure of several models, layers or heads opens at the first of each, in the view that resembles it most. An
    address as JSON, which a page gives, is returned as a dict.

    Raises `InputError` for a file without provenance, and for a figure that measured no model, such as one of
    committed records.
    """
    from workbench.frames.provenance import read_provenance
    from workbench.frames.results import is_random

    if str(path).startswith("{"):
        return dict(plain_address(str(path)))
    provenance = read_provenance(path)
    parameters = (provenance.get("notebook") or {}).get("parameters") or provenance["parameters"] or {}
    if parameters.get("view") and parameters.get("model"):  # saved by an explorer
        return {name: value for name, value in parameters.items() if name in FIELDS}
    if not provenance["models"] or not provenance["models"][0].get("spec"):
        raise InputError(
            f"{path} shows no layer of a model that could be opened; give a figure of a notebook that loads a model, "
            "or one that the explorer saved"
        )
    measured_model = provenance["models"][0]
    address: dict[str, Any] = {"model": measured_model["spec"]}
    if is_random(measured_model.get("checkpoint")):
        address["pretrained"] = False
    elif measured_model["spec"].startswith("bundled:") and measured_model.get("checkpoint"):
        address["model"] = f"{measured_model['spec']}@{measured_model['checkpoint']}"
    if provenance["inputs"]:
        measured = provenance["inputs"][0]
        address |= {"inputs": measured["spec"]} if measured.get("spec") else {}
        address |= {name: measured[name] for name in ("n", "seed") if isinstance(measured.get(name), int)}
    for name in ("layer", "head"):
        if chosen := parse_numbers(name, parameters.get(f"{name}s", parameters.get(name))):
            address[name] = chosen[0]
    analyses = [run.get("analysis") for run in provenance["runs"]]
    view = next((_VIEWS_OF[name] for name in analyses if name in _VIEWS_OF), None)
    return address | ({} if view is None else {"view": view})
