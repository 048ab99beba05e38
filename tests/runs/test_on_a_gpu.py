"""On a GPU every analysis gives the numbers of the CPU, and capture the same tensors; skipped where there is none."""

from __future__ import annotations

import json
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest
import torch

import workbench
from tests.runs.test_analyze import same
from workbench.core.errors import InputError
from workbench.models.catalog import bundled_models
from workbench.runs.analyze import ANALYSES, analyze
from workbench.studies.training.runs import train

DEVICE = "cuda"
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
MODELS = ("digits-vit", "digits-rpc-sym", "digits-primal", "digits-tost", "prose-softmax")
"""An analysis is asked of the first of these that it is defined for."""


def usual_inputs(model):
    return "bundled:digits" if model.modality == "image" else "bundled:prose"


def asked(name, device, model):
    options = {"null_samples": 2} if "null_samples" in ANALYSES[name].options else {}
    loaded = workbench.load(f"bundled:{model}", device=device, dtype="float64")
    if ANALYSES[name].sites or ANALYSES[name].perturb:  # an analysis of weights takes no inputs
        options |= {"inputs": usual_inputs(loaded), "n": 3}
    return analyze(name, model=loaded, **options)


@pytest.mark.parametrize("name", sorted(ANALYSES))
def test_every_analysis_gives_the_numbers_of_the_cpu(name):
    for model in MODELS:
        try:
            wanted = asked(name, "cpu", model)
        except InputError:
            continue
        # Sums come in another order there, z divides by the spread of two null samples, and fits end near each other.
        same(asked(name, DEVICE, model), wanted, rtol=1e-3 if name == "filter-kernels" else 1e-5, atol=1e-7)
        return
    pytest.fail(f"{name} refuses all of {MODELS}")


@pytest.mark.parametrize(
    "name", [entry.alias for entry in bundled_models() if entry.modality in ("image", "text")]
)
def test_capture_gives_the_tensors_of_the_cpu(name):
    captures = []
    for device in (DEVICE, "cpu"):
        model = workbench.load(f"bundled:{name}", device=device, dtype="float64")
        captures.append(workbench.capture(model, workbench.inputs(usual_inputs(model), model, n=2)))
    # timm's XCiT computes the sines and cosines of places in single precision, which a GPU rounds otherwise
    near = {"rtol": 1e-5, "atol": 1e-7} if "xcit" in name or "tost" in name else {"rtol": 1e-9, "atol": 1e-11}
    for found, wanted in zip(*captures, strict=True):
        for site in ("q", "k", "v", "attn", "membership", "head_out"):
            expected = getattr(wanted, site, None)
            if expected is not None:
                torch.testing.assert_close(getattr(found, site).cpu(), expected, **near)


def trained(task, folder, device):
    """Test loss and device of a short training."""
    run = train(task, folder, epochs=1, limit=96, device=device, progress=False)
    return run.test["loss"], json.loads((run.out / "model.json").read_text(encoding="utf-8"))["device"]


@pytest.mark.parametrize("task", ["digits", "prose"])
def test_a_training_goes_the_way_of_the_cpu_and_says_where_it_was(task, tmp_path):
    # a process each, since accelerate keeps to one device in a process
    with ProcessPoolExecutor(1, get_context("spawn"), max_tasks_per_child=1) as pool:
        on_cpu, on_gpu = pool.map(trained, [task] * 2, [tmp_path / "cpu", tmp_path / "gpu"], ["cpu", DEVICE])
    assert on_gpu[1] == torch.cuda.get_device_name()
    assert on_gpu[1] != on_cpu[1]
    assert on_gpu[0] == pytest.approx(on_cpu[0], rel=0.05)
