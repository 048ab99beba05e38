"""Damaged and hostile files for every reader: whatever they hold, an error is one of the workbench's own.

`READERS` are functions that change one sound file (`files.py`), in bytes or in its JSON, and read it.
`make test` runs a few examples of each, the same ones always; `make fuzz` as many as there is time for.
"""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from hypothesis import strategies as st

from tests.fuzz.files import sound_files
from workbench.core.errors import WorkbenchError

JUNK = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 3), st.sampled_from([10**7, 2**63, 10**30, -(10**12)]),
    st.floats(), st.text(max_size=6), st.sampled_from(["../../x", "\ud800", "cuda", "auto", "0-999999999", "1e999"]),
    st.lists(st.integers(0, 9), max_size=3), st.just({}), st.just({"name": []}), st.just([[[[[]]]]]),
).map(copy.deepcopy)  # fmt: skip
Reader = Callable[[Any, Path], None]
READERS: dict[str, Reader] = {}


def reader(function: Reader) -> Reader:
    """Put a function into the table; of what it raises, errors of the workbench's own are answers."""

    def run(data: Any, folder: Path) -> None:
        try:
            function(data, folder)
        except WorkbenchError as error:
            if not str(error).strip():
                raise AssertionError("an error that says nothing") from error

    READERS[function.__name__] = run
    return run


def _places(document: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) below a document."""
    found = []
    waiting = [document]
    while waiting:
        part = waiting.pop()
        items = part.items() if isinstance(part, dict) else enumerate(part) if isinstance(part, list) else ()
        for key, value in items:
            found.append((part, key))
            waiting.append(value)
    return found


@st.composite
def changed_json(draw: Any, document: Any) -> Any:
    """A document with one to three of its entries gone, replaced by anything, or with another beside them."""
    document = copy.deepcopy(document)
    for _ in range(draw(st.integers(1, 3))):
        places = _places(document)
        if not places:
            return draw(JUNK)
        container, key = places[draw(st.integers(0, len(places) - 1))]
        how = draw(st.sampled_from(["replace", "replace", "remove", "add"]))
        if how == "replace":
            container[key] = draw(JUNK)
        elif how == "remove":
            del container[key]
        elif isinstance(container, dict):
            container[draw(st.text(max_size=4))] = draw(JUNK)
        else:
            container.append(draw(JUNK))
    return document


@st.composite
def changed_bytes(draw: Any, content: bytes) -> bytes:
    """Bytes with some changed, or cut, or others between them."""
    changed = bytearray(content)
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.integers(0, max(0, len(changed) - 1)))
        how = draw(st.sampled_from(["change", "change", "change", "cut", "insert"]))
        if how == "change" and changed:
            changed[place] = draw(st.integers(0, 255))
        elif how == "cut":
            del changed[place:]
        else:
            changed[place:place] = draw(st.binary(max_size=8))
    return bytes(changed)


def put(folder: Path, name: str, content: bytes) -> Path:
    """A file of these bytes."""
    path = folder / name
    path.write_bytes(content)
    return path


def as_json(value: Any) -> bytes:
    """JSON as Python writes it: halves of surrogates stay escaped."""
    return json.dumps(value).encode()


def _changed(data: Any, source: Path) -> bytes:
    content = source.read_bytes()
    if source.suffix in (".json", ".ipynb") and data.draw(st.integers(0, 3)):
        return as_json(data.draw(changed_json(json.loads(content))))
    return data.draw(changed_bytes(content))


def safetensors_with(content: bytes, metadata: dict[str, str]) -> bytes:
    """A safetensors file with other metadata."""
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    header["__metadata__"] = metadata
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + content[8 + length :]


def metadata_of(content: bytes) -> dict[str, str]:
    """The metadata of a safetensors file."""
    length = int.from_bytes(content[:8], "little")
    return json.loads(content[8 : 8 + length])["__metadata__"]


def _safetensors(data: Any, source: Path) -> bytes:
    """The file with changed bytes, or with changed JSON in its metadata."""
    content = source.read_bytes()
    if not data.draw(st.integers(0, 3)):
        return data.draw(changed_bytes(content))
    said = {name: json.loads(text) for name, text in metadata_of(content).items() if text.startswith("{")}
    changed = {name: json.dumps(data.draw(changed_json(value))) for name, value in said.items()}
    return safetensors_with(content, changed)


# ------------------------------------------------------------------------------------------------------- readers


@reader
def captures(data: Any, folder: Path) -> None:
    from workbench.captures.storage import read_capture

    if data.draw(st.booleans()):
        read_capture(
            put(folder, "c.npz", data.draw(changed_bytes((sound_files() / "capture.npz").read_bytes())))
        )
    else:
        read_capture(put(folder, "c.safetensors", _safetensors(data, sound_files() / "capture.safetensors")))


@reader
def qkv(data: Any, folder: Path) -> None:
    """Arrays of any name, shape and type, as others may have written them."""
    import numpy as np

    from workbench.captures.storage import read_capture

    arrays = {}
    for name in data.draw(
        st.lists(st.sampled_from(["q", "k", "v", "mask", "scale", "attentions.0", "x"]), max_size=5)
    ):
        shape = data.draw(st.lists(st.integers(0, 4), max_size=6))
        kind = data.draw(st.sampled_from(["f4", "f8", "f2", "i8", "?", "c8", "U3"]))
        arrays[name] = np.full(
            shape, data.draw(st.sampled_from([0, 1, float("nan")])) if kind[0] in "fc" else 1
        ).astype(kind)
    path = folder / "q.npz"
    np.savez(path, **arrays)
    read_capture(path)


@reader
def pickles(data: Any, folder: Path) -> None:
    import io

    import torch

    from workbench.captures.storage import read_capture
    from workbench.models.source import read_state

    buffer = io.BytesIO()
    torch.save({"model": {"q": torch.zeros(1, 2, 3)}, "epoch": 3}, buffer)
    path = put(folder, "c.pt", data.draw(changed_bytes(buffer.getvalue())))
    for read in (read_capture, read_state):
        reader(lambda data, folder, read=read: read(path))(data, folder)


@reader
def frames(data: Any, folder: Path) -> None:
    from workbench.frames.results import read_frame

    suffix = data.draw(st.sampled_from([".json", ".csv", ".parquet"]))
    read_frame(put(folder, f"r{suffix}", _changed(data, sound_files() / f"result{suffix}")))


@reader
def provenance(data: Any, folder: Path) -> None:
    from workbench.apps.explorer.address import address_of_figure
    from workbench.frames.provenance import read_provenance

    suffix = data.draw(st.sampled_from([".json", ".json", ".png", ".svg", ".pdf"]))
    path = put(folder, f"f{suffix}", _changed(data, sound_files() / f"figure{suffix}"))
    read_provenance(path)
    address_of_figure(path)


@reader
def galleries(data: Any, folder: Path) -> None:
    from workbench.apps.rendering.gallery import write_gallery
    from workbench.apps.rendering.state import read_report

    put(folder, "report.json", _changed(data, sound_files() / "report.json"))
    put(folder, "figure.json", _changed(data, sound_files() / "figure.json"))
    read_report(folder)
    write_gallery(folder)


@reader
def manifests(data: Any, folder: Path) -> None:
    from workbench.runs.sweep import read_sweep, sweep_status

    whole = shutil.copytree(sound_files() / "sweep", folder / "sweep")
    if data.draw(st.booleans()):
        put(whole, "manifest.json", _changed(data, sound_files() / "sweep" / "manifest.json"))
    else:
        part = data.draw(st.sampled_from(sorted(whole.rglob("*.parquet"))))
        part.write_bytes(data.draw(changed_bytes(part.read_bytes())))
    sweep_status(whole)
    read_sweep(whole, allow_partial=True)


@reader
def watches(data: Any, folder: Path) -> None:
    from workbench.runs.watch import read_watch

    whole = shutil.copytree(sound_files() / "watch", folder / "watch")
    put(whole, "watch.json", _changed(data, sound_files() / "watch" / "watch.json"))
    read_watch(whole)


@reader
def checkpoints(data: Any, folder: Path) -> None:
    from workbench import load

    content = _safetensors(data, sound_files() / "training" / "epoch-001.safetensors")
    load(f"file:{put(folder, 'm.safetensors', content)}")


@reader
def trainings(data: Any, folder: Path) -> None:
    from workbench.core.store import RunStore
    from workbench.models.checkpoints import FORMAT, check_description

    put(folder, "model.json", _changed(data, sound_files() / "training" / "model.json"))
    RunStore(folder, "training run", "model.json", format=FORMAT, check=check_description).content()


@reader
def bundles(data: Any, folder: Path) -> None:
    from workbench.apps.explorer.bundle import read_bundle

    read_bundle(_safetensors(data, sound_files() / "bundle.safetensors"))


@reader
def addresses(data: Any, folder: Path) -> None:
    from workbench.apps.explorer.address import Address, plain_address

    saved = json.loads((sound_files() / "address.json").read_text())
    text = data.draw(
        st.one_of(st.text(max_size=20), changed_json(saved).map(json.dumps), st.just("[" * 9999))
    )
    Address.from_dict(plain_address(text))


@reader
def notebooks(data: Any, folder: Path) -> None:
    from workbench.apps.rendering.notebooks import read_notebook

    cells = [
        {"cell_type": "markdown", "source": "# A title", "metadata": {}},
        {
            "cell_type": "code",
            "source": ["n: int = 3\n", "m, x = 1, [2]"],
            "metadata": {"tags": ["parameters"]},
        },
    ]
    own = {"presets": {"quick": {"n": 2}}, "render": True}
    notebook = {"cells": cells, "metadata": {"workbench": own}, "nbformat": 4, "nbformat_minor": 5}
    if data.draw(st.booleans()):
        cells[1]["source"] = data.draw(st.text(alphabet="n=:1,()[]{}'*-\n \0", max_size=20))
    read_notebook(put(folder, "n.ipynb", as_json(data.draw(changed_json(notebook)))))


@reader
def parameters(data: Any, folder: Path) -> None:
    from workbench.apps.rendering.notebooks import parse_parameters
    from workbench.core.options import literal

    text = data.draw(
        st.one_of(
            st.text(alphabet="abn:1[]{}&*-!?|>'\"\n .#%", max_size=30),
            st.sampled_from(["[" * 600, "{a: " * 600]),
        )
    )
    literal(text)
    parse_parameters(text, "p.yaml")


@reader
def recipes(data: Any, folder: Path) -> None:
    from workbench.studies.training.recipes import load_recipe

    load_recipe(put(folder, "r.toml", data.draw(changed_bytes((sound_files() / "recipe.toml").read_bytes()))))


@reader
def sequences(data: Any, folder: Path) -> None:
    from workbench.studies.training.tasks import load_task

    header = b"@problemName a\n@dimensions 2\n@classLabel true up down\n@data\n"
    task, names, content = data.draw(
        st.sampled_from(
            [
                ("series", ("a_TRAIN.ts", "a_TEST.ts"), header + b"1,2:3,?:up\n4:5:down\n"),
                ("listops", ("a_train.tsv", "a_test.tsv"), b"Source\tTarget\n( ( [MAX 3 ) ] )\t3\n4\t4\n"),
                ("retrieval", ("a.train.tsv", "a.test.tsv"), b"1.0\ta\tb\ttext\ttext\n0\tc\td\tx\ty\n"),
            ]
        )
    )
    put(folder, names[0], content)
    put(folder, names[1], data.draw(changed_bytes(content)))
    if data.draw(st.booleans()):
        put(folder, names[0], data.draw(changed_bytes(content)))
    load_task(task, data=folder)


@reader
def folders_of_models(data: Any, folder: Path) -> None:
    """A config.json of transformers or timm that says anything; the weights are random."""
    from workbench import load

    if data.draw(st.booleans()):
        config: dict[str, Any] = {
            "model_type": "bert", "architectures": ["BertModel"], "hidden_size": 8, "num_hidden_layers": 1,
            "num_attention_heads": 2, "intermediate_size": 8, "vocab_size": 11, "max_position_embeddings": 7,
        }  # fmt: skip
    else:
        config = {
            "architecture": "vit_tiny_patch16_224", "num_classes": 3, "num_features": 8,
            "model_args": {"depth": 1, "embed_dim": 8, "num_heads": 2, "img_size": 16, "patch_size": 8},
            "pretrained_cfg": {"input_size": [3, 16, 16], "mean": [0.5, 0.5, 0.5], "std": [0.5, 0.5, 0.5]},
        }  # fmt: skip
    put(folder, "config.json", as_json(data.draw(changed_json(config))))
    with patch(
        "psutil.virtual_memory", return_value=SimpleNamespace(available=2**26)
    ):  # refused above it, unbuilt
        load(f"hf:{folder}", pretrained=False)
