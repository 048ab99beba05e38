"""A few damaged files of every kind, the same ones always; `make fuzz` reads as many as there is time for."""

import json
import shutil
import tempfile
import warnings
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz import READERS
from tests.fuzz.files import sound_files


@pytest.mark.parametrize("name", READERS)
@settings(
    max_examples=3, deadline=None, derandomize=True, database=None, suppress_health_check=[*HealthCheck]
)
@given(st.data())
def test_whatever_a_file_holds_an_error_is_one_of_ours(name, data):
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        READERS[name](data, Path(folder))


def test_damage_starts_from_sound_files(tmp_path):
    """Every reader reads the undamaged file: otherwise damage would meet the first check alone."""
    import workbench
    from workbench.apps.explorer.address import Address
    from workbench.apps.explorer.bundle import read_bundle
    from workbench.apps.rendering.gallery import write_gallery
    from workbench.apps.rendering.state import read_report
    from workbench.core.store import RunStore
    from workbench.frames.provenance import read_provenance
    from workbench.models.checkpoints import FORMAT, check_description
    from workbench.studies.training.recipes import load_recipe

    folder = sound_files()
    captures = [workbench.Capture.load(folder / f"capture.{suffix}") for suffix in ("npz", "safetensors")]
    assert [len(capture.layers) for capture in captures] == [2, 2]
    results = [workbench.read_frame(folder / f"result.{suffix}") for suffix in ("parquet", "csv", "json")]
    assert len({len(frame) for frame in results}) == 1
    assert not results[0].empty
    said = [read_provenance(folder / f"figure.{suffix}") for suffix in ("json", "png", "svg", "pdf")]
    assert said == said[:1] * 4
    assert read_report(folder)["figure"].status == "done"
    shutil.copy(folder / "figure.json", tmp_path)
    assert not write_gallery(tmp_path).unknown
    assert not workbench.read_sweep(folder / "sweep").empty
    assert not workbench.read_watch(folder / "watch").empty
    assert len(workbench.load(f"file:{folder / 'training' / 'epoch-001.safetensors'}").module.blocks) == 2
    store = RunStore(folder / "training", "run", "model.json", format=FORMAT, check=check_description)
    assert store.content()["complete"]
    assert read_bundle(folder / "bundle.safetensors").attention(1).shape == (2, 5, 5)
    assert Address.from_dict(json.loads((folder / "address.json").read_text())).against.layer == 0
    assert load_recipe(folder / "recipe.toml").epochs == 1
