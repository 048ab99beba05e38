"""What an extra brings is said once, as pyproject.toml has it, and its absence names the command that mends it."""

import importlib.metadata
import re
import sys
import tomllib
from pathlib import Path

import pytest

from workbench.core import extras
from workbench.core.errors import MissingResource

ROOT = Path(__file__).parents[2]
DECLARED = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def _names(requirements):
    return {re.match(r"[\w.-]+", requirement)[0].lower().replace("_", "-") for requirement in requirements}


def test_every_module_is_of_the_extra_that_declares_it():
    packages = importlib.metadata.packages_distributions()
    for extra, modules in extras.EXTRAS.items():
        declared = _names(DECLARED["optional-dependencies"][extra]) - {"attention-workbench"}
        for module in modules:
            held = _names(packages[module]) if module in packages else {module}  # ray is not installed here
            assert held & declared, (extra, module)


def test_the_core_declares_nothing_of_an_extra():
    core = _names(DECLARED["dependencies"])
    for extra in ("figures", "explore", "studies"):
        assert core.isdisjoint(_names(DECLARED["optional-dependencies"][extra]))


def test_what_is_missing_is_said_with_its_extra_and_the_command_of_this_checkout(monkeypatch):
    extras.require("a figure", "kaleido")  # it is here
    monkeypatch.setitem(sys.modules, "kaleido", None)
    with pytest.raises(MissingResource) as error:
        extras.require("a figure", "pypdf", "kaleido")
    assert str(error.value) == (
        "a figure needs kaleido, which the core does not bring: install the extra 'figures' with "
        f'pip install -e "{ROOT}[figures]"'
    )
    assert error.value.exit_code == 3


@pytest.mark.parametrize(
    ("record", "place"),
    [
        ('{"url": "file:///some/my%20folder", "dir_info": {}}', "/some/my folder"),
        ('{"url": "https://example.org/archive.zip"}', "CHECKOUT"),
        (None, "CHECKOUT"),
    ],
)
def test_an_installed_package_names_what_it_was_installed_from(monkeypatch, tmp_path, record, place):
    class Installed:
        def read_text(self, name):
            return record if name == "direct_url.json" else None

    monkeypatch.setattr(extras, "__file__", str(tmp_path / "site" / "workbench" / "core" / "extras.py"))
    monkeypatch.setattr(importlib.metadata, "distribution", lambda name: Installed())
    assert extras.install_command("explore") == f'pip install "{place}[explore]"'


@pytest.mark.parametrize(
    ("place", "command"),
    [
        ("/some/folder", 'pip install "/some/folder/data"'),
        (
            "/dist/attention_workbench-0.1.0-py3-none-any.whl",
            'pip install --find-links "/dist" "/dist/attention_workbench-0.1.0-py3-none-any.whl[models]"',
        ),
    ],
)
def test_the_weights_come_from_where_the_package_came_from(monkeypatch, tmp_path, place, command):
    monkeypatch.setattr(extras, "__file__", str(tmp_path / "site" / "workbench" / "core" / "extras.py"))
    monkeypatch.setattr(extras, "_installed_from", lambda: place)
    assert extras.install_command("models") == command
