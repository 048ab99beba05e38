"""References of a figure: each model, metric and data set that has a name here has one."""

import re

import numpy as np
import plotly.graph_objects as go
import pytest
import yaml

from tests.pages import ROOT, blocks_of
from workbench._version import __version__
from workbench.core.errors import InputError
from workbench.data.pools import BUNDLED
from workbench.figures.export import save_figure
from workbench.frames.metric import METRICS
from workbench.frames.provenance import PACKAGES
from workbench.frames.results import make_frame
from workbench.models.catalog import CATALOG, bundled_models
from workbench.papers.published import PAPERS
from workbench.papers.references import PROJECT, _entries, _matching, _model_keys, _source_keys, bibtex, cite

PRINTERS = {"kaleido"}  # it only starts the browser


def test_the_readme_and_the_citation_file_say_the_same_of_the_project():
    (block,) = [block for block in blocks_of(ROOT / "README.md") if block.language == "bibtex"]
    assert block.code.strip() == bibtex(PROJECT)
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == __version__


def test_every_paper_model_metric_and_bundled_input_has_a_reference():
    assert set(PAPERS) <= set(_entries())
    without = [entry.spec for entry in (*CATALOG, *bundled_models()) if not [*_model_keys(entry.spec)]]
    sources = {part.strip() for metric in METRICS.values() for part in metric.source.split(";")} - {
        "workbench"
    }
    without += [source for source in sources if not [*_source_keys(source)]]
    without += [name for name in PACKAGES if name not in PRINTERS and not [*_matching("software", name)]]
    without += [
        name for name in BUNDLED if "prose" not in name and not [*_matching("data", f"bundled:{name}")]
    ]
    assert without == []


@pytest.mark.parametrize("key", sorted(_entries()))
def test_an_entry_is_whole(key):
    kind, fields = _entries()[key]
    assert {"author", "title", "year"} <= set(fields)
    assert re.fullmatch(r"(19|20)\d\d", fields["year"])
    assert key == PROJECT or fields["year"] in key
    text = bibtex(key)
    assert text.startswith(f"@{kind}{{{key},\n")
    assert text.count("{") == text.count("}")
    assert "of = {" not in text


def saved(folder, name, model, inputs, metric):
    frame = make_frame(np.ones(3), metric, {"layer": range(3)}).assign(model=model)
    frame.attrs["provenance"] = [
        {
            "analysis": "attention-map",
            "model": {"spec": model, "sha256": "ab" * 32},
            "inputs": {"spec": inputs},
        }
    ]
    fig = go.Figure(go.Scatter(y=[1, 2]))
    save_figure(fig, name, data=frame, caption="c", alt="a", out=folder, formats=["html"])
    return folder / f"{name}.html"


def test_a_figure_names_what_it_is_made_of(tmp_path):
    first = saved(tmp_path, "first", "hf:openai-community/gpt2", "wikitext-103", "attention_sink")
    second = saved(tmp_path, "second", "bundled:digits-tost", "images:photos", "attention_entropy")
    third = saved(tmp_path, "third", "hf:someone/unknown", "bundled:prose", "span_share")
    keys = {
        path: set(re.findall(r"^@\w+\{(\w+),", cite([path]), re.MULTILINE)) for path in (first, second, third)
    }
    software = {PROJECT, "paszke2019", "wightman2019", "wolf2020", "plotly2015", "harris2020", "mckinney2010"}
    assert keys[first] == software | {"radford2019", "merity2017", "xiao2024"}
    assert keys[second] == software | {"wu2025", "vig2019"}
    assert keys[third] >= software
    text = cite([first, second, third])
    printed = re.findall(r"^@\w+\{(\w+),", text, re.MULTILINE)
    assert sorted(printed) == sorted(set.union(*keys.values()))  # each once
    assert "% models: hf:openai-community/gpt2, weights abababababab, bundled:digits-tost, weights" in text
    assert "% no reference is known for hf:someone/unknown, weights abababababab; see its own page" in text
    assert "% no reference is known for images:photos" in text


def test_a_file_without_provenance_is_refused(tmp_path):
    (tmp_path / "x.json").write_text("{}")
    with pytest.raises(InputError, match="no workbench provenance"):
        cite([tmp_path / "x.json"])
