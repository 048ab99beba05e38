"""timm, imported without torch's compiler: ``from workbench.core.light_timm import timm``.

Three decorators that run while timm (and torchvision, which it imports) is imported ask for `torch._dynamo`, only to
say what is not to be compiled. Importing that package takes half of the time that a program of ours needs to start,
and nothing here compiles. So a stand-in answers them; it is removed afterwards, and other code gets the real package.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial, wraps
from types import ModuleType
from typing import Any

import torch  # noqa: F401  # whole, before anything stands in for a part of it


def _disable(function: Callable[..., Any] | None = None, recursive: bool = True, **reason: Any) -> Any:
    """Stand in for `torch._dynamo.disable`, which is called at call time if something has imported it by then."""
    if function is None:
        return partial(_disable, recursive=recursive, **reason)

    @wraps(function)
    def uncompiled(*args: Any, **kwargs: Any) -> Any:
        compiler = sys.modules.get("torch._dynamo")
        called = function if compiler is None else compiler.disable(function, recursive, **reason)
        return called(*args, **kwargs)

    return uncompiled


def _is_compile_supported(device_type: str) -> bool:
    from torch._dynamo.utils import is_compile_supported

    return is_compile_supported(device_type)


def _import_timm() -> None:
    compiler, utils = ModuleType("torch._dynamo"), ModuleType("torch._dynamo.utils")
    vars(compiler).update(disable=_disable, utils=utils)
    vars(utils).update(is_compile_supported=_is_compile_supported)
    stand_ins = {module.__name__: module for module in (compiler, utils)}
    sys.modules.update(stand_ins)
    try:
        import timm  # noqa: F401  # imported for those who come after
    except (AttributeError, ImportError):
        pass  # other versions ask for more of the compiler: they get it, below
    finally:
        for name in stand_ins:
            sys.modules.pop(name, None)


if "timm" not in sys.modules and "torch._dynamo" not in sys.modules:
    _import_timm()

import timm  # noqa: E402  # after the stand-in

__all__ = ["timm"]
