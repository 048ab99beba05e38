"""Data flows one way: the contract in pyproject.toml says how, and import-linter reads every import statement."""

import subprocess
import sys

from importlinter.cli import lint_imports

import workbench


def test_the_import_contract_is_kept():
    assert lint_imports(no_cache=True) == 0, "run `lint-imports` to see which import breaks it"


def test_importing_the_package_loads_nothing_heavy():
    code = (
        "import sys, workbench, workbench.apps.cli; "
        "print(*{'torch', 'timm', 'transformers', 'plotly', 'pandas', 'numpy', 'sklearn'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_every_public_name_resolves():
    assert {name for name in workbench.__all__ if getattr(workbench, name, None) is None} == set()
