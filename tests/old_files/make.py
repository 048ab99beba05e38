"""Write the old files: one of every kind, with the names that the workbench had before they were changed.

They were made at commit 5ef575d, whose package alone this runs with:

    git worktree add /tmp/base 5ef575d
    cd /tmp && PYTHONPATH=/tmp/base python CHECKOUT/tests/old_files/make.py CHECKOUT/tests/old_files

The model is a vision transformer of one layer with four tokens of eight features, trained on 32 digits, so that
every file is small. ``bundle.safetensors`` is younger, of commit 2dfd0fc, the last to write schema 1 of bundles: layer
3 of ``bundled:digits-vit`` on the first of ``bundled:digits``, ``make_bundle(…, layers=[3], left_out=[0, 1, 2])``.
"""

from __future__ import annotations

import csv
import json
import shutil
import sys
from pathlib import Path

import pandas as pd
import plotly.graph_objects as go
import torch
from workbench.explorer.address import Address
from workbench.paths import data_dir
from workbench.results import join_frames
from workbench.training import train

import workbench

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
attention_options = { convention = "code" }
"""
MODEL = {"n": 2, "batch_size": 2}
SITES = (
    "input",
    "q",
    "k",
    "v",
    "scale",
    "mask",
    "attn",
    "output",
    "before_attn",
    "update",
    "after_attn",
    "hidden",
)


def main(out: Path) -> None:
    """Write them all into ``out``, beside this file."""
    torch.set_num_threads(1)
    (out / "recipe.toml").write_text(RECIPE.lstrip())
    folder = out / "training"
    train("digits", folder, recipe=out / "recipe.toml", limit=32, progress=False, device="cpu")
    spec = f"file:{folder / 'epoch-001.safetensors'}"
    loaded = workbench.load(spec)
    pool = workbench.inputs("bundled:digits", loaded, n=2, seed=0)

    def analyze(name: str, **options: object) -> pd.DataFrame:
        return workbench.analyze(name, model=loaded, inputs=pool, **options)

    frame = join_frames(
        [
            analyze("projection-error", draws=2, convention="all", per_head=True),
            analyze("value-similarity", draws=2, per_head=True),
            analyze("eigenvector-test", draws=2, per_head=True),
            analyze("token-similarity"),
            analyze("membership", draws=2),
            analyze("coding-rate"),
        ]
    )
    frame["model"] = "old"
    workbench.write_frame(frame, out / "result.parquet")
    kinds = ["metric", "axis", "statistic", "convention", "candidate", "null"]
    few = frame.groupby(kinds, dropna=False, sort=False).head(1)
    for suffix in ("csv", "json"):
        workbench.write_frame(few, out / f"result.{suffix}")

    capture = workbench.capture(loaded, pool, sites=SITES)
    for suffix in ("safetensors", "npz"):
        capture.save(out / f"capture.{suffix}")

    shown = frame[(frame["metric"] == "projection_baseline") & (frame["input"] == frame["input"].iloc[0])]
    figure = go.Figure(go.Bar(x=list(range(len(shown))), y=shown["value"].astype(float).tolist()))
    figure.update_layout(xaxis_title="head", yaxis_title="zero predictor", height=200)
    workbench.save_figure(
        figure,
        "figure",
        data=shown,
        caption="The error of predicting zero.",
        alt="Bars.",
        parameters={"model": "old", "draws": 2, "twin": None, "convention": "teo2024-text"},
        out=out / "figure",
        formats=("pdf", "svg", "png"),
    )

    workbench.sweep(
        "bundled:digits-vit",
        "bundled:digits",
        [("projection-error", {"draws": 2, "convention": "teo2024-text"}), ("token-similarity", {})],
        out / "sweep",
        n=4,
        shards=2,
        batch_size=2,
        layers=(0,),
    )

    watched = workbench.watch(
        loaded.module,
        torch.linspace(-1, 1, 512).reshape(2, 1, 16, 16),
        out=out / "watch",
        every=1,
        max_cost=None,
        name="old",
        analyses={
            "projection-error": {"draws": 2, "convention": "teo2024-text"},
            "eigenvector-test": {"draws": 2},
        },
    )
    watched.step(0)

    address = Address(model="bundled:digits-vit", layer=1, metric="projection_baseline", view="heads")
    against = address.moved(layer=0)
    (out / "address.json").write_text(json.dumps(address.moved(against=against).to_dict(), indent=1) + "\n")

    parameters = {"text_model": None, "n": 2, "draws": 2, "layers": "0"}
    workbench.render(
        ["projection_error"], parameters=parameters, out=out / "render", formats=(), progress=False
    )
    shutil.rmtree(out / "render" / "notebooks")  # nothing reads what was run
    (out / "render" / "index.html").unlink()

    with (data_dir() / "published" / "claims.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file))
    with (out / "claims.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(row for row in rows if row[0] in ("paper", "teo2024"))


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
