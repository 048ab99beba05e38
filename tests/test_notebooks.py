"""Every figure notebook runs with its quick preset, and is stored as a notebook should be."""

import ast
import json
import re
from functools import cache

import nbformat
import pandas as pd
import pytest

from workbench.apps.rendering import render
from workbench.apps.rendering.notebooks import find_notebooks
from workbench.core.paths import bundled_notebooks, notebooks_dir
from workbench.studies.records import recorded

NAMES, PATHS = (list(held) for held in zip(*bundled_notebooks().items(), strict=True))
# a line that holds words of a caption or an alternative text and no code
WORDS_ALONE = re.compile(r'((caption|alt) ?\+?= ?)?f?"[^"]*",?|(caption|alt) \+?= \(')
STUDIES = [path for path in PATHS if path.parent.name == "studies"]
COMMON = {"model", "inputs", "n", "seed", "out"}
ABSENT = {
    "fan": {"model", "inputs", "n", "seed"},  # of training runs on record
    "mixture": {"inputs", "out"},  # those of the task that its models were trained on
    "long_range": {"inputs"},  # those of the task that its models were trained on
    "offline_rl": {"model", "inputs", "n", "seed", "out"},  # of training runs on record, in tables
    "operator_efficiency": {"model", "inputs", "n", "seed"},  # no cost depends on the numbers of a tensor
    "segmentation": {"inputs"},  # those of the task that its models were trained on
    "subspaces": {"inputs", "n"},  # of weights
    "time_series": {"model", "inputs"},  # trains its own
    "training_curves": {"n", "seed"},  # of training runs on record: how many, and from which on
}
MODELS = {  # notebooks, and figures, of another model than the plain one
    "class_attention": "bundled:photos-tost",
    **dict.fromkeys(["class_attention_text", "language_modelling"], "bundled:prose-softmax"),
    "long_range": [f"bundled:embedded-digits-{name}" for name in ("softmax", "bilateral", "primal", "tssa")],
    "robust_components": "bundled:digits-rpc-sym",
    "segmentation": "bundled:embedded-mosaics-softmax-sym",
    **dict.fromkeys(["coding_rate", "membership_maps", "subspaces", "tost_training"], "bundled:digits-tost"),
    **dict.fromkeys([f"attention_in_one_hour_{part}" for part in ("text", "words")], "bundled:prose-softmax"),
    "attention_in_one_hour_members": "bundled:prose-tost",
    "attention_in_one_hour_other": "bundled:digits-bilateral",
}
LONGEST_CAPTION = 110  # words, marks included; charts of claims have their own rules
NOT_OF_AN_ANALYSIS = {"attention_in_one_hour", "explorer"}  # a lecture, and an application
ONLY_TABLES = {"mixture", "offline_rl"}  # no difference is decided
NO_MODEL = {
    *(f"operator_efficiency{part}" for part in ("", "_exponents")),
    "verdict_matrix", "robust_components_planted", "softmax_sensitivity",
    *("fan", "long_range", "time_series"),
    *(f"segmentation{part}" for part in ("", "_masks")),
}  # fmt: skip


@pytest.mark.parametrize("path", PATHS, ids=NAMES)
def test_it_is_stored_without_outputs_and_opens_without_a_question(path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert notebook.metadata.kernelspec.name == "python3"
    assert "widgets" not in notebook.metadata
    for cell in notebook.cells:
        if cell.cell_type == "code":
            assert cell.outputs == []
            assert cell.execution_count is None
    assert [cell.metadata.get("tags") for cell in notebook.cells].count(["parameters"]) == 1


@pytest.mark.parametrize("path", STUDIES, ids=[path.stem for path in STUDIES])
def test_a_study_says_first_what_it_draws_and_how_that_is_made_again(path):
    cells = nbformat.read(path, as_version=4).cells
    _, first, *_ = cells[0].source.split("\n\n")
    makefile = (notebooks_dir().parent / "Makefile").read_text(encoding="utf-8")
    makes = set(re.findall(r"`make (\w+)`", first))
    assert makes <= set(re.findall(r"^(\w+):", makefile, re.MULTILINE))
    assert ("committed record" in first) == bool(makes)


@pytest.mark.parametrize("path", STUDIES, ids=[path.stem for path in STUDIES])
def test_a_study_shows_a_table_and_says_what_the_library_finds(path):
    cells = nbformat.read(path, as_version=4).cells
    code = [cell.source.rstrip() for cell in cells if cell.cell_type == "code"]
    facts = {
        "at most 60 lines of code": lines_of_code(code) <= 60,
        "at least 3 text cells": sum(cell.cell_type == "markdown" for cell in cells) >= 3,
        "the frame shown": any(source.endswith(".head()") for source in code),
        "a table shown": any(
            f"{table}(" in source for source in code for table in (".pivot_table", ".groupby", "pd.crosstab")
        ),
        "findings of the library": re.search(r"[_.]findings\(|count_verdicts\(", "\n".join(code)),
    }
    lacking = [fact for fact, holds in facts.items() if not holds]
    assert lacking == []


def lines_of_code(sources):
    lines = [line.strip() for source in sources for line in source.splitlines() if line.strip()]
    return sum(not WORDS_ALONE.fullmatch(line) for line in lines)


def keeps_the_form(cells):
    """What a notebook of an analysis lacks: a question, few lines, the same by hand, a shown frame, findings."""
    text = [cell.source for cell in cells if cell.cell_type == "markdown"]
    code = [cell.source for cell in cells if cell.cell_type == "code"]
    tables = [source.rstrip().splitlines()[-1] for source in code]
    specified = sum(len(re.findall(r"\b(?:Plot|Maps|compose_maps)\(", source)) for source in code)
    facts = {
        "at most 60 lines of code, and 15 a figure": lines_of_code(code) <= 60 + 15 * specified,
        "at least 3 text cells": len(text) >= 3,
        "the equation in the first cell": text[0].count("$$") >= 2,
        "checked by hand": "torch.testing.assert_close(" in "\n".join(code),
        "the frame shown": any(line.endswith(".head()") for line in tables),
        "a table shown": any(
            f".{table}(" in source for source in code for table in ("groupby", "pivot_table")
        ),
        "findings of the library": "workbench.findings(" in code[-1],
    }
    return [fact for fact, holds in facts.items() if not holds]


@pytest.mark.parametrize(
    "path", [path for path in PATHS if path not in STUDIES and path.stem not in NOT_OF_AN_ANALYSIS],
    ids=lambda path: path.stem,
)  # fmt: skip
def test_a_notebook_of_an_analysis_shows_the_science(path):
    lacking = keeps_the_form(nbformat.read(path, as_version=4).cells)
    assert lacking == []


@pytest.mark.parametrize("path", PATHS, ids=NAMES)
def test_every_figure_is_described_and_names_no_parameters(path):
    """The render and the running notebook know the parameters."""
    sources = [cell.source for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
    calls = [
        {keyword.arg for keyword in node.keywords}
        for source in sources
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "workbench.save_figure"
    ]
    assert [call for call in calls if not call >= {"data", "caption", "alt"} or "parameters" in call] == []
    assert calls or any(".save(" in source for source in sources) or path.stem in ONLY_TABLES


@pytest.mark.parametrize("notebook", find_notebooks(NAMES), ids=lambda notebook: notebook.name)
def test_it_takes_the_parameters_that_all_take_and_has_its_presets(notebook):
    assert set(notebook.parameters) >= COMMON - ABSENT.get(notebook.name, set())
    assert set(notebook.presets) == {"quick", "paper"}


def nodes_of(path, kind):
    cells = nbformat.read(path, as_version=4).cells
    source = "\n".join(cell.source for cell in cells if cell.cell_type == "code")
    return [node for node in ast.walk(ast.parse(source)) if isinstance(node, kind)]


def saves_of(path, saving=r"workbench\.save_figure|\w+\.save"):
    """The calls of a notebook that save a figure."""
    return [call for call in nodes_of(path, ast.Call) if re.fullmatch(saving, ast.unparse(call.func))]


def written_in(path):
    """The names that calls of save_figure hold as they are."""
    names = [call.args[1] for call in saves_of(path, r"workbench\.save_figure")]
    return [name.value for name in names if isinstance(name, ast.Constant)]


def patterns_in(path):
    """The names that a notebook may save figures under: its texts, with any word in their braces."""
    texts = [text for text in nodes_of(path, ast.Constant) if isinstance(text.value, str)]
    whole = [text.value for text in texts]
    filled = [
        "".join(part.value if isinstance(part, ast.Constant) else r"\w+" for part in text.values)
        for text in nodes_of(path, ast.JoinedStr)
    ]
    return [name for name in [*whole, *filled] if re.fullmatch(r"(\\w\+)?[a-z0-9_]+(\\w\+[a-z0-9_]*)*", name)]


def test_no_two_notebooks_save_a_figure_of_the_same_name():
    names = [name for path in PATHS for name in written_in(path)]
    assert len(names) == len(set(names)) > 20


def test_every_notebook_is_rendered_by_default_but_the_explorer():
    drawn_by_default = [notebook.name for notebook in find_notebooks()]
    assert sorted([*drawn_by_default, "explorer"]) == NAMES  # the explorer draws what it is asked for


@pytest.fixture(scope="module")
def render_once(warm, tmp_path_factory):
    """What rendering a notebook with its quick preset gives, by its name; the second to ask is given the same."""

    @cache
    def rendered(name):
        return render(
            [name], preset="quick", out=tmp_path_factory.mktemp(name), formats=("html",), progress=False
        )

    return rendered


@pytest.mark.parametrize("name", ["robustness", "language_modelling"])
def test_no_figure_compares_mechanisms_by_fewer_seeds_than_are_on_record(render_once, name):
    rendered = render_once(name)
    figures = rendered.outcomes[0].figures
    assert figures
    for figure in figures:
        rows = pd.read_csv(rendered.out / f"{figure}.csv")
        rows["baseline"] = rows.get("baseline", pd.NA)
        means, seeds = rows[rows["training_seed"].isna()], rows[rows["training_seed"].notna()]
        assert len(means)
        assert means.loc[means["seeds"] == 1, ["low", "high"]].isna().all(axis=None)
        assert seeds[["low", "high"]].isna().all(axis=None)
        specs = {*means["model"], *means["baseline"].dropna()}
        names = [spec.removeprefix("bundled:") for spec in specs]
        record = pd.concat([recorded(names, "evaluation"), _clean(recorded(names, "training"))])
        for row in means.to_dict("records"):
            pair = [name for name in (row["model"], row["baseline"]) if pd.notna(name)]
            own = record[(record["protocol"] == row["protocol"]) & record["model"].isin(pair)]
            own = own[(own["epsilon"] == row["epsilon"]) | (own["epsilon"].isna() & pd.isna(row["epsilon"]))]
            by_kind = own.groupby(["seed_kind", "model"])["training_seed"].nunique().unstack(fill_value=0)
            assert row["seeds"] == by_kind.reindex(columns=pair).min(axis=1).max(), (figure, row)


def _clean(trained):
    about = {"protocol": "clean", "training_seed": trained["seed"], "model": "bundled:" + trained["model"]}
    return trained[["seed_kind"]].assign(**about)


@pytest.mark.parametrize("name", NAMES)
def test_every_notebook_renders_with_the_quick_preset(render_once, name):
    rendered = render_once(name)
    assert [str(outcome) for outcome in rendered.failed] == []
    (outcome,) = rendered.outcomes
    assert (rendered.out / "notebooks" / f"{outcome.name}.ipynb").is_file()
    assert rendered.index.is_file()
    names = {re.sub(r"_\d$", "", figure) for figure in outcome.figures}
    path = bundled_notebooks()[name]
    assert len(names) >= len(saves_of(path))  # each is reached
    assert [figure for figure in names if not re.fullmatch("|".join(patterns_in(path)), figure)] == []
    recorded = 0
    for figure in outcome.figures:
        provenance = json.loads((rendered.out / f"{figure}.json").read_text())
        recorded += len(provenance["records"])
        words = provenance["figure"]["caption"].split()
        assert provenance["figure"]["finding"], figure
        assert len(words) <= LONGEST_CAPTION or name == "claims", (figure, len(words))
        by_explorer = name in NOT_OF_AN_ANALYSIS and figure not in written_in(path)
        assert provenance["parameters_from"] == ("call" if by_explorer else "render")
        if "seed" not in ABSENT.get(outcome.name, set()):
            assert provenance["seed"] == provenance["parameters"]["seed"] == 0
        assert len(pd.read_csv(rendered.out / f"{figure}.csv")) > 0
        assert "\\toprule" in (rendered.out / f"{figure}.tex").read_text()
        if figure not in NO_MODEL:
            expected = MODELS.get(figure, MODELS.get(outcome.name, "bundled:digits-vit"))
            assert provenance["parameters"]["model"] == expected
            assert len(provenance["models"][0]["sha256"]) == 64
    if (
        path in STUDIES and name not in ONLY_TABLES
    ):  # which says at its beginning whether it draws records: its figures name them
        assert bool(recorded) == ("committed record" in nbformat.read(path, as_version=4).cells[0].source)


def test_the_efficiency_of_operators_is_measured_on_this_machine(render_once):
    rendered = render_once("operator_efficiency")
    executed = nbformat.read(rendered.out / "notebooks" / "operator_efficiency.ipynb", as_version=4)
    printed = "".join(output.get("text", "") for output in executed.cells[-1].outputs)
    (times,) = re.findall(r"Times in this run over those on record: (.*)\.", printed)
    (ends,) = re.findall(r"^tssa ([\d.]+) to ([\d.]+)$", times)
    assert 0 < float(ends[0]) <= float(ends[1])
