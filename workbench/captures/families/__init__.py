"""One file for each family of models: all that is known of it. Every file here is imported with the captures."""

import importlib
import pkgutil

from workbench.captures.registry import TABLES

for _found in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_found.name}")
for _table in TABLES:
    _table.ours = dict(_table)
