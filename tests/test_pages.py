"""What the README and the documentation tell a reader to type is true: code runs, commands are understood."""

from __future__ import annotations

import copy
import inspect
import itertools
import re
import sys
import warnings

import pytest
import torch

import workbench
from docs.hooks.papers import pages_with_records, rewritten
from tests.pages import PAGES, ROOT, blocks_of, commands_of, run_page, understand
from workbench import METRICS, read_watch
from workbench.analyses.registry import ANALYSES
from workbench.apps.cli.shared_options import Known
from workbench.attention import VARIANTS


def _name(page):
    return str(page.relative_to(ROOT).with_suffix(""))


@pytest.fixture
def registries(families):
    """The tables that a page may add to, put back afterwards, and the modules it brings."""
    tables = (METRICS, VARIANTS, ANALYSES)
    before, modules, shown = [copy.copy(table) for table in tables], set(sys.modules), warnings.showwarning
    yield
    for table, kept in zip(tables, before, strict=True):
        table.clear()
        table.update(kept)
    warnings.showwarning = shown
    for name in set(sys.modules) - modules:
        if getattr(sys.modules[name], "__file__", None) is None and name.startswith(("workbench.", "tests.")):
            del sys.modules[name]


@pytest.mark.parametrize("page", [page for page in PAGES if blocks_of(page)], ids=_name)
def test_a_page_runs(page, registries, warm, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("WORKBENCH_OUT", raising=False)
    monkeypatch.setenv("WORKBENCH_CACHE", str(tmp_path / "cache"))
    names = run_page(page)
    check = FACTS.get(_name(page))
    if check is not None:
        check(names)


def _readme(names):
    assert names["capture"][3].attn.shape == (4, 3, 65, 65)
    assert set(names["frame"]["layer"].dropna()) == {0, 1, 2, 3}


def _family(names):
    captured = names["captured"]
    assert [record.path for record in captured] == ["blocks.0.attention", "blocks.1.attention"]
    assert captured[1].attn.shape == (2, 3, 7, 7)
    torch.testing.assert_close(captured[0].resid_pre, names["x"] + names["model"].places)
    torch.testing.assert_close(names["v"], captured[1].v)
    assert names["attention_geometry"](names["model"]) == (2, 3, 4)
    assert captured[1].position.abs().max() > 0


def _watches(names):
    default = ("projection-error", "gram-spectrum", "token-similarity", "membership")
    runs = (("mine", 20, ("attention-map",)), ("gpt2", 6, default), ("classifier", 8, default))
    for folder, last, analyses in runs:
        for analysis in analyses:
            steps = list(read_watch(f"runs/{folder}/watch", analysis).attrs["epochs"].values())
            assert (steps[0], steps[-1]) == (0, last)  # between them a busy machine stretches the cadence
    assert [*names["frame"]["step"].unique()] == [0, 5, 10, 15, 20]


def _sweeps(names):
    assert names["status"].done == 2
    assert "#SBATCH -p cpu" in names["cluster"].job_script()
    names["cluster"].close()
    frame = names["frame"]
    own = frame[(frame["metric"] == "rank_90") & frame["head"].isna() & (frame["statistic"] == "mean")]
    assert names["mean_rank"].tolist() == pytest.approx(own["value"].tolist())


FACTS = {
    "README": _readme,
    "docs/adding/family": _family,
    "docs/sweep": _sweeps,
    "docs/watching": _watches,
}
ADDED = ("key-share", "tempered")
"""An analysis and an attention variant that a page adds before its commands run."""
COMMANDS = {" ".join(words): words for page in PAGES for words in commands_of(page)}


def test_every_function_of_the_package_is_called_on_a_page():
    """In a block that runs; `reproduce` by its command, which a tutorial runs."""
    code = "\n".join(
        block.code
        for page in PAGES
        for block in blocks_of(page)
        if not block.why_not and block.language in ("python", "sh")
    )
    functions = {name for name in workbench.__all__ if inspect.isfunction(getattr(workbench, name))}
    assert len(functions) > 20
    called = {name for name in functions if re.search(rf"\b{name}\(|^workbench {name} ", code, re.MULTILINE)}
    assert functions - called == set()


@pytest.mark.parametrize("words", COMMANDS.values(), ids=lambda words: " ".join(words)[:70])
def test_its_commands_are_understood(words, monkeypatch):
    known = Known.names
    monkeypatch.setattr(Known, "names", lambda kind: [*known(kind), *ADDED])
    understand(words)


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_every_row_of_a_page_is_in_a_table_with_a_header(page):
    # A blank line or a comment inside a table ends it: the rows below become a paragraph of "|" signs.
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    runs = itertools.groupby(text.splitlines(), key=lambda line: line.startswith("|"))
    tables = [list(rows) for is_table, rows in runs if is_table]
    headless = [rows[0] for rows in tables if not re.fullmatch(r"\|[-: |]+\|", "".join(rows[1:2]))]
    assert headless == []


@pytest.mark.parametrize("page", pages_with_records(), ids=lambda page: page.stem)
def test_what_a_page_takes_from_records_is_current(page):
    text = page.read_text(encoding="utf-8")
    assert rewritten(text) == text, "write it again with: make pages"


def test_a_number_that_is_not_the_records_is_written_again():
    stale = "<!-- record: numbers wu2025 -->12<!-- end -->"
    assert rewritten(stale) != stale
    with pytest.raises(ValueError, match="not one of claims"):
        rewritten("<!-- record: nothing wu2025 -->12<!-- end -->")
