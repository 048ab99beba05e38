"""One file for each family of models: all that is known of it. Every file here is imported with the captures."""

import importlib
import pkgutil

from workbench.captures.family import Family, register_family
from workbench.core.plugins import OURS

for _module in pkgutil.iter_modules(__path__):
    for _value in vars(importlib.import_module(f"{__name__}.{_module.name}")).values():
        if isinstance(_value, Family):
            register_family(_value, OURS)
