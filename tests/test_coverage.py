"""docs/coverage.md has a line for every table and figure, and what it names is there."""

import re
import shlex
from pathlib import Path

import pandas as pd
import pytest

from docs.hooks.papers import seeds
from tests.pages import find_command
from workbench.apps.rendering.notebooks import find_notebooks
from workbench.attention import VARIANTS
from workbench.core.options import literal
from workbench.papers.published import PAPERS, published
from workbench.studies.evaluation.protocols import PROTOCOLS
from workbench.studies.training import recipes
from workbench.studies.training.embedded_runs import PLAN, PRETRAINED
from workbench.studies.training.tasks.embedded import embedded_name

DOCS = Path(__file__).parents[1] / "docs"
PAGE = (DOCS / "coverage.md").read_text(encoding="utf-8")
TEXT = re.sub(r"<!--.*?-->", "", PAGE)
SEEDS = r"(?:\d+(?: to \d+)?|no) seeds?"
FIDELITY = re.compile(rf"(?:same quantity|analogue|differs: [^;]+)(?:; [^;]*\b{SEEDS}[^;]*)*")
COMPARING = ("robustness", "language_modelling", "training_curves", "tost_training", "long_range", "time_series",
             "offline_rl", "segmentation", "fan", "mixture")  # fmt: skip
ROMAN = ("I", "II", "III", "IV", "V")
PRINTED = {  # tables and figures as the papers number them
    "teo2024": (range(1, 15), range(1, 6)),
    "saritas2025": (range(1, 5), range(1, 6)),
    "wu2025": (range(1, 9), range(1, 12)),
    "chen2023": (range(1, 14), range(1, 4)),
    "abdullaev2025": (ROMAN, range(1, 7)),
}
NOTEBOOKS = {notebook.name: notebook for notebook in find_notebooks()}
COMMANDS = [shlex.split(command)[1:] for command in dict.fromkeys(re.findall(r"`(workbench [^`]+)`", TEXT))]


def _rows(section: str) -> list[list[str]]:
    body = re.search(rf"^## {section}$(.*?)(?=^## |\Z)", TEXT, re.DOTALL | re.MULTILINE)
    assert body is not None, section
    lines = [line for line in body[1].splitlines() if line.startswith("|")][2:]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert {len(row) for row in rows} == {5}, section
    return rows


ROWS = {section: _rows(section) for section in (*PRINTED, "Beside tables and figures")}
CELLS = [(section, row) for section, rows in ROWS.items() for row in rows]


@pytest.mark.parametrize("paper", PRINTED)
def test_every_table_and_figure_has_its_line(paper):
    tables, figures = PRINTED[paper]
    expected = [f"Table {number}" for number in tables] + [f"Figure {number}" for number in figures]
    assert [row[0] for row in ROWS[paper]] == expected


@pytest.mark.parametrize("paper", PRINTED)
def test_every_table_of_results_is_transcribed(paper):
    settings = {row[0].removeprefix("Table ") for row in ROWS[paper] if row[2] == "nothing to compute"}
    tables = {str(number) for number in PRINTED[paper][0]}
    places = published(paper)["table"]
    assert set(places[places.isin(tables)]) == tables - settings


def test_every_paper_has_its_section():
    assert set(PRINTED) == set(PAPERS)


@pytest.mark.parametrize(
    ("section", "row"), CELLS, ids=lambda cell: cell if isinstance(cell, str) else cell[0]
)
def test_a_line_is_drawn_by_a_notebook_that_exists_or_says_that_it_is_not(section, row):
    here = row[2]
    state = re.match(r"notebook|page|not computed|nothing to compute", here)
    assert state is not None, here
    if state[0] == "page":
        page, heading = re.match(r"page \[\w+\]\((.+)#(.+)\)", here).groups()
        headings = re.findall(r"^#+ (.*)$", (DOCS / page).read_text(encoding="utf-8"), re.MULTILINE)
        assert heading in {title.lower().replace(" ", "-") for title in headings}
    drawn = re.findall(r"notebook `(\w+)`", here)
    assert bool(drawn) == (state[0] == "notebook")
    assert set(drawn) <= set(NOTEBOOKS), f"{section}, {row[0]}"


@pytest.mark.parametrize(
    ("section", "row"), CELLS, ids=lambda cell: cell if isinstance(cell, str) else cell[0]
)
def test_a_line_says_how_near_it_is_to_the_paper(section, row):
    here, fidelity = row[2], row[3]
    if here.startswith("nothing to compute"):
        assert fidelity == "—"
        return
    assert FIDELITY.fullmatch(fidelity), fidelity
    trained_here = set(re.findall(r"notebook `(\w+)`", here)) & set(COMPARING)
    if trained_here and fidelity != "differs: nothing is measured":
        assert fidelity.startswith("analogue; "), "models trained here: an analogue, with its number of seeds"
    if "embedded task" in here:
        assert fidelity.startswith("analogue"), fidelity


def test_numbers_of_seeds_of_trained_models_come_from_the_records():
    lines = [line for line in PAGE.splitlines() if line.startswith("|")]
    cells = [line.strip("|").split("|")[3] for line in lines]
    typed = [re.sub(r"<!-- record: seeds .*?<!-- end -->", "", cell) for cell in cells]
    assert set(re.findall(SEEDS, " ".join(typed))) == {"1 seed"}  # a bundled model is one training
    for cell, rest in zip(cells, typed, strict=True):
        if cell.strip().startswith("analogue"):
            assert rest != cell or cell.strip() == "analogue; 1 seed", cell


@pytest.mark.parametrize(
    ("record", "models", "file", "column"),
    [
        ("trained", "digits-rpc-sym", "confirmed/records/digits-rpc-sym/metrics.csv", "seed"),
        ("trained", "digits-rpc-asym", "records/digits-rpc-asym/metrics.csv", "seed"),
        ("evaluated", "digits-rpc-sym", "confirmed/records/robustness/evaluations.csv", "training_seed"),
        ("lag", "primal", "records/embedded/lag/epochs.csv", "seed"),
        ("lag", "primal-independent", "records/embedded/lag/epochs.csv", "seed"),
    ],
)
def test_seeds_are_those_of_the_record(record, models, file, column):
    rows = pd.read_csv(Path(__file__).parents[1] / "data" / file)
    if record not in {"trained", "evaluated"}:
        rows = rows[rows["variant"] == models]
    if record == "evaluated":
        rows = rows[rows["model"] == f"bundled:{models}"]
    number = rows[column].nunique()
    assert seeds(record, models) == f"{number} seed{'s' * (number > 1)}"


def test_models_without_a_record_have_no_seeds():
    assert seeds("lag,phase", "primal,none") == "0 to 3 seeds"
    assert seeds("lag", "none") == "no seeds"


EMBEDDED_ROWS = [(section, row) for section, row in CELLS if "`workbench study train " in row[2]]


@pytest.mark.parametrize(
    ("section", "row"), EMBEDDED_ROWS, ids=lambda cell: cell if isinstance(cell, str) else cell[0]
)
def test_an_embedded_task_is_trained_by_commands_that_need_no_data_and_is_recorded(section, row):
    commands = re.findall(r"`(workbench study train [^`]+)`", row[2])
    assert commands, section
    for command in commands:
        name, parser, asked = find_command(shlex.split(command)[1:])
        given = parser.make_context(name, asked).params
        if (given["task"], given["data"]) in PRETRAINED.values():
            continue  # what the runs on an embedded task begin with
        data = embedded_name(given["task"], given["data"])
        assert data is not None, command
        options = {key: literal(text) for key, text in given["typed"]}
        recorded = [
            planned
            for planned in PLAN[data]
            if (planned.attention, planned.layers) == (given["attention"], given["layers"])
            and options.items() <= dict(planned.options).items()
        ]
        assert recorded, command
    assert "FOLDER" in row[4] or row[4].startswith("as Table"), row[4]


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: " ".join(words)[:60])
def test_its_commands_are_understood(words):
    name, command, asked = find_command(words)
    given = command.make_context(name, asked).params
    if name == "render":
        assert set(given["notebooks"]) <= set(NOTEBOOKS)
        for notebook in given["notebooks"]:
            assert {key for key, _ in given["typed"]} <= set(NOTEBOOKS[notebook].parameters)
    if name == "train":
        assert given["attention"] in {*VARIANTS, None}
        if given["attention"]:
            assert {key for key, _ in given["typed"]} <= set(VARIANTS[given["attention"]].options)
        folder = Path(recipes.__file__).parent
        assert (folder / f"{given['recipe'] or given['task']}.toml").is_file()
    if name == "evaluate":
        assert given["protocol"] in PROTOCOLS


def test_protocols_and_recipes_named_by_themselves_are_there():
    assert set(re.findall(r"--protocol (\S+?)[`\s]", TEXT)) <= set(PROTOCOLS)
    stems = {path.stem for path in Path(recipes.__file__).parent.glob("*.toml")}
    assert set(re.findall(r"\b(imagenet-\w+-\w+)\b", TEXT)) <= stems
