"""Sound files of every kind, written by the package as it is: damage starts from them."""

from __future__ import annotations

import atexit
import io
import json
import shutil
import tempfile
from functools import cache
from pathlib import Path

import pandas as pd
import torch

import workbench
from workbench.apps.explorer.address import Address
from workbench.apps.explorer.bundle import make_bundle
from workbench.apps.rendering.state import Outcome, write_report
from workbench.frames import provenance
from workbench.frames.results import provenance_of
from workbench.studies.training import train

RECIPE = """
task = "digits"
epochs = 1
batch_size = 16
learning_rate = 1e-3
weight_decay = 0.05
warmup = 0.1
clip_norm = 1.0
checkpoints = [0, 1]

[architecture]
name = "vit"
img_size = 16
patch_size = 8
in_chans = 1
num_classes = 10
embed_dim = 8
depth = 2
num_heads = 2
mlp_ratio = 1.0
pos_embed_std = 0.5
attention = "tssa"
attention_layers = "0"
attention_options = { convention = "as_implemented" }
"""


@cache
def sound_files() -> Path:
    """Return a folder with one sound file or folder of every kind; it goes with the process.

    The model is a vision transformer of two layers with four tokens of eight features, so that every file is small.
    """
    folder = Path(tempfile.mkdtemp(prefix="workbench-sound-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    (folder / "recipe.toml").write_text(RECIPE)
    recipe, run = folder / "recipe.toml", folder / "training"
    train("digits", run, recipe=recipe, limit=32, progress=False, device="cpu")
    spec = f"file:{run / 'epoch-001.safetensors'}"
    model = workbench.load(spec)
    inputs = workbench.inputs("bundled:digits", model, n=2, seed=0)
    capture = workbench.capture(model, inputs)
    for suffix in ("safetensors", "npz"):
        capture.save(folder / f"capture.{suffix}")
    frame = workbench.analyze("eigenvector-test", model=model, inputs=inputs, null_samples=2, per_head=True)
    for suffix in ("parquet", "csv", "json"):
        workbench.write_frame(frame, folder / f"result.{suffix}")
    _write_figure(folder, frame)
    write_report(folder, {"figure": Outcome("figure", status="done", figures={"figure": "0" * 64})})
    workbench.sweep(
        spec, "bundled:digits", ["token-similarity"], folder / "sweep", n=2, shards=2, batch_size=1
    )
    batch = torch.linspace(-1, 1, 256).reshape(1, 1, 16, 16)
    analyses = {"projection-error": {"null_samples": 2}}
    watched = workbench.watch(model.module, batch, out=folder / "watch", max_cost=None, analyses=analyses)
    watched.step(0)
    make_bundle(model, inputs, measured=False).save(folder / "bundle.safetensors")
    address = Address(layer=1, metric="projection_zero_predictor", view="heads")
    saved = address.moved(against=address.moved(layer=0)).to_dict()
    (folder / "address.json").write_text(json.dumps(saved))
    return folder


def _write_figure(folder: Path, frame: pd.DataFrame) -> None:
    """Write files with the provenance of a figure; the drawings themselves are blank."""
    from PIL import Image
    from pypdf import PdfWriter

    drawing = {
        "caption": "Bars.",
        "alt": "Bars.",
        "theme": "light",
        "width_px": 8,
        "height_px": 8,
        "sha256": "0" * 64,
    }
    data = {"rows": len(frame), "columns": [*frame], "sha256": "0" * 64}
    about = provenance.build_provenance("figure", provenance_of(frame), {"n": 2}, figure=drawing, data=data)
    (folder / "figure.json").write_text(provenance.dump(about))
    png, pdf = io.BytesIO(), PdfWriter()
    Image.new("L", (8, 8)).save(png, "png")
    pdf.add_blank_page(8, 8)
    page = io.BytesIO()
    pdf.write(page)
    blank = {
        "png": png.getvalue(),
        "svg": b'<svg xmlns="http://www.w3.org/2000/svg"/>',
        "pdf": page.getvalue(),
    }
    for suffix, content in blank.items():
        (folder / f"figure.{suffix}").write_bytes(provenance.embed(content, suffix, about))
