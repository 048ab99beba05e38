"""The list of `make mutants` fits the library: every line stands once in its file, and its tests are there."""

import re

import pytest

from tests.mutants import drawn
from tests.mutants.__main__ import LISTED, ROOT, chosen, listed
from tests.mutants.drawn import mutations, script_mutations


def test_every_line_that_is_changed_stands_once_in_its_file():
    mutants = listed()
    assert len(mutants) == LISTED.read_text(encoding="utf-8").count("\n- ") >= 150
    assert [one.name for one in mutants if one.places() != 1] == []
    assert [one.name for one in mutants if one.old == one.new] == []
    assert len(set(mutants)) == len(mutants)


def test_a_change_touches_its_line_alone():
    one = listed()[0]
    before = (ROOT / one.file).read_text(encoding="utf-8")
    after = one.applied(before)
    changed = [pair for pair in zip(before.split("\n"), after.split("\n"), strict=True) if pair[0] != pair[1]]
    ((old, new),) = changed
    assert (old.strip(), new.strip()) == (one.old, one.new)
    compile(after, one.file, "exec")


def test_every_test_of_the_list_is_there():
    for name in sorted({test for one in listed() for test in one.tests}):
        path, _, function = name.partition("::")
        text = (ROOT / path).read_text(encoding="utf-8")
        assert re.search(rf"^def {function or 'test_'}", text, re.MULTILINE), name


def test_a_sample_is_of_the_list():
    sample = chosen(["--sample", "7"])
    assert len({*sample}) == 7
    assert {*sample} <= {*listed()}
    assert chosen(["--sample", "7"]) == sample
    with pytest.raises(ValueError, match="arger"):
        chosen(["--sample", "1000"])
    assert {one.file for one in chosen(["tssa"])} == {"workbench/attention/tssa.py"}


def test_a_drawn_mutant_changes_one_line_and_has_tests():
    mutants = chosen(["--random", "6", "--seed", "2", "core/", "frames/"])
    assert mutants == chosen(["--random", "6", "--seed", "2", "core/", "frames/"])
    assert mutants != chosen(["--random", "6", "--seed", "3", "core/", "frames/"])
    for mutant in mutants:
        assert mutant.file.startswith(("workbench/core/", "workbench/frames/"))
        assert mutant.places() == 1
        assert mutant.old != mutant.new
        assert all((ROOT / test).is_file() for test in mutant.tests)
        compile(mutant.applied((ROOT / mutant.file).read_text(encoding="utf-8")), mutant.file, "exec")
    assert {change for _, change in mutations("a = b < 1  # c\nd = (\n    2,\n)\ne: Annotated[int, Ge(1)] = 0")} == {
        "a = (b <= 1)  # c", "a = b < 2  # c", "3,",
    }  # fmt: skip


def test_sizes_assertions_and_joined_texts_are_not_drawn():
    text = "f(width=3, n=4)\ng = {'size': 5, 'k': 6}\nassert x < 7\nh = 'a' + b\nz = zip(p, strict=True)"
    changes = {change for _, change in mutations(text)}
    assert changes == {"f(width=3, n=5)", "g = {'size': 5, 'k': 7}", "pass"}
    assert [*script_mutations("const a = 16 + b[0];")] == [
        ("const a = 16 + b[0];", "const a = 16 - b[0];"),
        ("const a = 16 + b[0];", "const a = 16 + b[1];"),
    ]


def test_the_tests_of_a_file_are_its_own_then_those_that_import_it_then_those_of_its_users():
    assert drawn.tests_of("workbench/core/store.py")[0] == "tests/core/test_store.py"
    assert {"tests/figures/test_attention.py", "tests/figures/test_grammar.py"} <= {
        *drawn.tests_of("workbench/figures/marks.py")
    }
    assert drawn.tests_of("workbench/figures/export/measure.js")[0] == "tests/figures/export/test_checks.py"
    assert drawn.tests_of("workbench/apps/explorer/front/grid.js")[0] == "tests/apps/explorer/test_front.py"
