"""timm comes without torch's compiler, and the compiler, where somebody wants it, is the real one."""

import runpy
import sys
from types import ModuleType

import torch

from workbench.core import light_timm


def test_the_compiler_leaves_alone_what_the_stand_in_was_told_to_disable():
    @light_timm._disable(reason="not to be traced")
    def inner(x):
        return x + torch.compiler.is_compiling()

    def outer(x):
        return inner(x * (2 + torch.compiler.is_compiling()))

    assert torch.compile(outer, backend="eager")(torch.ones(3)).tolist() == [3.0] * 3


def test_what_an_import_asks_beyond_the_stand_in_it_gets_from_the_compiler(monkeypatch, tmp_path):
    (tmp_path / "timm.py").write_text("from torch._dynamo import optimize\n")
    monkeypatch.syspath_prepend(tmp_path)
    real = {name: module for name, module in sys.modules.items() if name.partition(".")[0] == "timm"}
    for name in real:
        monkeypatch.delitem(sys.modules, name)
    with monkeypatch.context() as patch:
        from torch._dynamo import optimize

        for name in ("torch._dynamo", "torch._dynamo.utils"):
            patch.setitem(sys.modules, name, sys.modules[name])
        light_timm._import_timm()
    assert "timm" not in sys.modules  # the stand-in had no `optimize`, and is gone
    import timm

    assert timm.optimize is optimize
    monkeypatch.delitem(sys.modules, "timm")
    assert light_timm._is_compile_supported("cpu")


def test_a_compiler_that_is_imported_already_stays(monkeypatch, tmp_path):
    (tmp_path / "timm.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    for name in [name for name in sys.modules if name.partition(".")[0] == "timm"]:
        monkeypatch.delitem(sys.modules, name)
    compiler = ModuleType("torch._dynamo")
    monkeypatch.setitem(sys.modules, "torch._dynamo", compiler)
    runpy.run_path(light_timm.__file__)
    assert sys.modules["torch._dynamo"] is compiler
    monkeypatch.delitem(sys.modules, "timm")
