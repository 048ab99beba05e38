"""Other people's packages join through entry points, and cannot break what is here."""

import json
import os
import re
import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook

from tests.pages import blocks_of
from workbench.analyses.registry import ANALYSES
from workbench.apps.rendering import render
from workbench.captures import family as registry_of_families
from workbench.core import plugins
from workbench.core.errors import UnknownName
from workbench.core.plugins import OURS, Registry, instance_of
from workbench.frames.metric import METRICS, Metric

PAGE = Path(__file__).parents[2] / "docs" / "extending.md"
METRIC = """
from workbench.frames.metric import Metric
{} = Metric("{}", "Label", "…")
"""


def install(folder, name, version, entry_points, files):
    """What an installer leaves of a distribution: its modules, and a dist-info folder beside them."""
    about = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (about / "entry_points.txt").write_text(
        "".join(
            f"[{group}]\n" + "".join(f"{key} = {target}\n" for key, target in entries.items())
            for group, entries in entry_points.items()
        )
    )
    for path, content in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(textwrap.dedent(content))
    return folder


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder on the path, whose modules are forgotten again."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(plugins, "_MET", {})
    known = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - known:
        if name.startswith("other_"):
            del sys.modules[name]


def registry():
    own = {"eigenvalue": METRICS["eigenvalue"]}
    return Registry(own, "workbench.nulls", instance_of(Metric))


def words(caught):
    """What plug-ins were warned of, and not what the collector of garbage happened to find in between."""
    return sorted(str(one.message) for one in caught if one.category is UserWarning)


def test_a_plug_in_joins_when_a_name_is_not_ours(place):
    install(
        place, "other-a", "1.2", {"workbench.nulls": {"glow": "other_a:GLOW"}},
        {"other_a.py": METRIC.format("GLOW", "glow")},
    )  # fmt: skip
    table = registry()
    assert table["eigenvalue"] is METRICS["eigenvalue"]
    assert "other_a" not in sys.modules
    assert table["glow"].label == "Label"
    assert list(table) == ["eigenvalue", "glow"]
    (plugin,) = [plugin for plugin in plugins.plugins() if "glow" in plugin.title]
    assert plugin.title == "null 'glow' of other-a 1.2 (other_a:GLOW)"
    with pytest.raises(KeyError):
        table["none"]


@pytest.mark.parametrize(
    ("module", "problem"),
    [
        ("import a_package_that_is_not_there", "ModuleNotFoundError: No module named 'a_package_that_is_not_there'"),
        ("raise RuntimeError('half\\ndone')", "RuntimeError: half done"),
        ("OTHER = 3", "AttributeError"),
        ("GLOW = 3", "it is a int; give a workbench Metric"),
        (METRIC.format("GLOW", "gleam"), "it calls itself 'gleam'"),
    ],
)  # fmt: skip
def test_a_broken_one_is_named_in_one_warning_and_the_rest_work(place, module, problem):
    entries = {"workbench.nulls": {"glow": "other_a:GLOW"}}
    install(place, "other-a", "1.2", entries, {"other_a.py": module})
    install(
        place, "other-b", "2", {"workbench.nulls": {"shine": "other_b:SHINE"}},
        {"other_b.py": METRIC.format("SHINE", "shine")},
    )  # fmt: skip
    table = registry()
    with pytest.warns(UserWarning, match=r"null 'glow' of other-a 1\.2 \(other_a:GLOW\)") as caught:
        assert list(table) == ["eigenvalue", "shine"]
    (said,) = words(caught)
    assert problem in said
    assert list(table) == ["eigenvalue", "shine"]  # and nothing is said again
    assert [bool(plugin.problem) for plugin in plugins.plugins()] == [True, False]


def test_names_that_clash_are_refused_with_both_origins(place):
    metric = METRIC.format("ONE", "{}")
    for name, entries in (("other-a", ("eigenvalue", "glow")), ("other-b", ("glow",))):
        install(
            place, name, "1", {"workbench.nulls": {entry: f"{name.replace('-', '_')}:ONE" for entry in entries}},
            {f"{name.replace('-', '_')}.py": metric.format("glow")},
        )  # fmt: skip
    table = registry()
    with pytest.warns(UserWarning, match="plug-in left out") as caught:
        assert "glow" not in table
    said = words(caught)
    assert [re.search(r"of other-\w 1", text)[0] for text in said] == [
        "of other-a 1",
        "of other-a 1",
        "of other-b 1",
    ]
    assert "the workbench has one of this name" in said[0]
    assert "other-b 1 has one of this name too" in said[1]
    assert "other-a 1 has one of this name too" in said[2]
    assert table["eigenvalue"] is METRICS["eigenvalue"]


@pytest.mark.usefixtures("families")
def test_a_family_that_declares_what_another_does_is_refused_and_ours_stays(place):
    ours = registry_of_families.merged("adapters")["timm.models.xcit.XCA"]
    install(
        place, "other-a", "1",
        {"workbench.families": {"xcit": "other_a:MINE", "new": "other_a:NEW", "odd": "other_a:odd"}},
        {
            "other_a.py": """
            from workbench.captures import Adapter, Family, register_family

            MINE = Family(adapters={"timm.models.xcit.XCA": Adapter()})
            register_family(MINE)
            NEW = Family(adapters={"somewhere.Attention": Adapter()}, heads={"somewhere.Attention": len})

            def odd():
                pass
            """
        },
    )  # fmt: skip
    registry_of_families.load_plugin_families.cache_clear()
    with pytest.warns(UserWarning, match="plug-in left out") as caught:
        registry_of_families.load_plugin_families()
    said = words(caught)
    assert "'odd'" in said[0]
    assert "it is a function; give a workbench.captures.Family" in said[0]
    assert "the workbench has adapters of timm.models.xcit.XCA" in said[1]
    assert registry_of_families.merged("adapters")["timm.models.xcit.XCA"] is ours
    assert registry_of_families.merged("heads")["somewhere.Attention"] is len
    assert [owner for owner in registry_of_families.FAMILIES.values() if owner != OURS] == ["other-a 1"]


def test_a_table_is_still_a_table(monkeypatch):
    with pytest.raises(UnknownName, match="did you mean 'gram-spectrum'"):
        raise UnknownName("analysis", "gram-spectra", ANALYSES)
    monkeypatch.setitem(ANALYSES, "mine", ANALYSES["snr"])
    assert "mine" in ANALYSES
    assert len(ANALYSES) == len(list(ANALYSES))
    assert ANALYSES.get("none") is None


FOUND = """
import json
from workbench.apps.doctor import examine

print(json.dumps({
    "values": frame["value"].tolist(), "metric": frame["metric"].unique().tolist(), "options":
    frame.attrs["provenance"]["options"], "attention": attention.unique().tolist(),
    "nulls": beside_shifted["null"].dropna().unique().tolist(), "layers": len(squared),
    "found": [finding.found for finding in examine() if finding.check == "plug-in"],
}))
"""


def test_the_worked_example(tmp_path, cold, monkeypatch):
    """In the kernel of its notebook, whose interpreter finds the package that is installed."""
    blocks = blocks_of(PAGE)
    files = {block.title: block.code for block in blocks if block.language == "python" and block.title}
    (project,) = [tomllib.loads(block.code)["project"] for block in blocks if block.language == "toml"]
    place = install(
        tmp_path / "site", project["name"], project["version"], project["entry-points"],
        files | {"speckles/__init__.py": ""},
    )  # fmt: skip
    use, parameters, figure = [
        block.code for block in blocks if block.language == "python" and not block.title
    ]
    cells = [new_code_cell(parameters, metadata={"tags": ["parameters"]}), new_code_cell(figure)]
    cells += [new_code_cell(use), new_code_cell(FOUND)]
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    path = tmp_path / "mine.ipynb"
    nbformat.write(new_notebook(cells=cells, metadata=kernel), path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(place), str(Path(__file__).parents[2])]))
    report = render([path], formats=("html",), out=tmp_path / "figures", progress=False)
    assert [str(outcome) for outcome in report.failed] == []
    assert (tmp_path / "figures" / "value_norms.html").is_file()
    executed = nbformat.read(report.out / "notebooks" / "mine.ipynb", as_version=4)
    (said,) = [output.text for output in executed.cells[-1].outputs if output.get("name") == "stdout"]
    found = json.loads(said)
    assert found["metric"] == ["value_norm"]
    assert found["options"] == {"power": 1.0, "per_input": True, "method": "auto"}
    assert min(found["values"]) > 0
    assert found["attention"] == pytest.approx([1 / 65])
    assert found["layers"] == 1
    assert found["nulls"] == ["shifted"]
    assert [text.split(" (")[0] for text in found["found"] if "speckles" in text] == [
        "analysis 'value-norm' of speckles 0.3",
        "metric 'reaction_time' of speckles 0.3",
        "null 'shifted' of speckles 0.3",
        "family 'squared' of speckles 0.3",
        "attention variant 'uniform' of speckles 0.3",
        "command 'norms' of speckles 0.3",
    ]
    done = subprocess.run(
        [sys.executable, "-m", "workbench", "norms"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, float(done.stdout) > 0) == (0, True), done.stderr
