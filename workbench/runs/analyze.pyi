# Written by `python -m tests.stubs` from the signatures and the registry of analyses.
# fmt: off
# ruff: noqa: I001 (imports in the order of the source)
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
import pandas as pd
from workbench.analyses.registry import ANALYSES, Analysis, Per, check_request
from workbench.captures import Capture
from workbench.core.options import Numbers
from workbench.frames.measurement import Accumulator
from workbench.runs import settings as setting
from workbench.runs.loop import Source, capture_inputs
from workbench.runs.settings import RunSettings
from typing import Literal, Unpack, overload
from workbench.runs import options

__all__ = ["ANALYSES", "analyze", "capture_inputs", "check_request", "result_frame"]
@overload
def analyze(
    analysis: Literal["attention-map"], model: setting.AnyModel | None = None,
    inputs: setting.AnyInputs | None = None, *, n: setting.Count | None = None, seed: setting.Seed = 0,
    layers: Numbers = None, heads: Numbers = None, order: setting.Order | None = None,
    preprocessing: setting.Preprocessing = "model", batch_size: setting.BatchSize = 8,
    device: setting.Device | None = None, dtype: setting.DType | None = None, name: str | None = None,
    per: None = None, qkv: str | Path | Capture | None = None, progress: bool | Callable[[float], None] = False,
    cache: bool | None = None, **options: Unpack[options.AttentionMap],
) -> pd.DataFrame: ...
@overload
def analyze(
    analysis: Literal["attention-map"], model: setting.AnyModel | None = None,
    inputs: setting.AnyInputs | None = None, *, n: setting.Count | None = None, seed: setting.Seed = 0,
    layers: Numbers = None, heads: Numbers = None, order: setting.Order | None = None,
    preprocessing: setting.Preprocessing = "model", batch_size: setting.BatchSize = 8,
    device: setting.Device | None = None, dtype: setting.DType | None = None, name: str | None = None,
    per: Literal["pair"], qkv: str | Path | Capture | None = None, progress: bool | Callable[[float], None] = False,
    cache: bool | None = None, **options: Unpack[options.AttentionMapPair],
) -> pd.DataFrame: ...
@overload
def analyze(
    analysis: Literal["attention-patterns"], model: setting.AnyModel | None = None,
    inputs: setting.AnyInputs | None = None, *, n: setting.Count | None = None, seed: setting.Seed = 0,
    layers: Numbers = None, heads: Numbers = None, order: setting.Order | None = None,
    preprocessing: setting.Preprocessing = "model", batch_size: setting.BatchSize = 8,
    device: setting.Device | None = None, dtype: setting.DType | None = None, name: str | None = None,
    per: None = None, qkv: str | Path | Capture | None = None, progress: bool | Callable[[float], None] = False,
    cache: bool | None = None, **options: Unpack[options.AttentionPatterns],
) -> pd.DataFrame: ...
@overload
def analyze(
    analysis: Literal["attention-spectrum"], model: setting.AnyModel | None = None,
    inputs: setting.AnyInputs | None = None, *, n: setting.Count | None = None, seed: setting.Seed = 0,
    layers: Numbers = None, heads: Numbers = None, order: setting.Order | None = None,
    preprocessing: setting.Preprocessing = "model", batch_size: setting.BatchSize = 8,
    device: setting.Device | None = None, dtype: setting.DType | None = None, name: str | None = None,
    per: None = None, qkv: str | Path | Capture | None = None, progress: bool | Callable[[float], None] = False,
    cache: bool | None = None, **options: Unpack[options.AttentionSpectrum],
) -> pd.DataFrame: ...
@overload
def analyze(
    analysis: Literal["class-attention"], model: setting.AnyModel | None = None,
    inputs: setting.AnyInputs | None = None, *, n: setting.Count | None = None, seed: setting.Seed = 0,
    layers: Numbers = None, heads: Numbers = None, order: setting.Order | None = None,
    preprocessing: setting.Preprocessing = "model", batch_size: setting.BatchSize = 8,
    device: setting.Device | None = None, dtype: setting.DType | None = None, name: str | None = None,
    per: None = None, qkv: str | Path | Capture | None = None, progress: bool | Callable[[float], None] = False,
    cache: bool | None = None, **options: Unpack[options.ClassAttention],
) -> pd.DataFrame: ...
@overload
def analyze(
    analysis: Literal["class-attention"], model: setting.AnyModel | None = None,
    inputs: setting.AnyInputs | None = None, *, n: setting.Count | None = None, seed: setting.Seed = 0,
    layers: Numbers = None, heads: Numbers = None, order: setting.Order | None = None,
    preprocessing: setting.Preprocessing = "model", batch_size: setting.BatchSize = 8,
    device: setting.Device | None = None, dtype: setting.DType | None = None, name: str | None = None,
    per: Literal["token"], qkv: str | Path | Capture | None = None, progress: bool | Callable[[float], None] = False,
    cache: bool | None = None, **options: Unpack[options.ClassAttentionToken],
) -> pd.DataFrame: ...
@overload
def analyze(
    analysis: Literal["coding-rate"], model: setting.AnyModel | None = None, inputs: setting.AnyInputs | None = None,
    *, n: setting.Count | None = None, seed: setting.Seed = 0, layers: Numbers = None, heads: Numbers = None,
    order: setting.Order | None = None, preprocessing: setting.Preprocessing = "model",
    batch_size: setting.BatchSize = 8, device: setting.Device | None = None, dtype: setting.DType | None = None,
    name: str | None = None, per: None = None, qkv: str | Path | Capture | None = None,
    progress: bool | Callable[[float], None] = False, cache: bool | None = None,
    **options: Unpack[options.CodingRate],
) -> pd.DataFrame: ...
@overload
def analyze(
    analysis: Literal["eigenvector-test"], model: setting.AnyModel | None = None,
    inputs: setting.AnyInputs | None = None, *, n: setting.Count | None = None, seed: setting.Seed = 0,
    layers: Numbers = None, heads: Numbers = None, order: setting.Order | None = None,
    preprocessing: setting.Preprocessing = "model", batch_size: setting.BatchSize = 8,
    device: setting.Device | None = None, dtype: setting.DType | None = None, name: str | None = None,
    per: None = None, qkv: str | Path | Capture | None = None, progress: bool | Callable[[float], None] = False,
    cache: bool | None = None, **options: Unpack[options.EigenvectorTest],
) -> pd.DataFrame: ...
@overload
def analyze(
    analysis: Literal["filter-kernels"], model: setting.AnyModel | None = None,
    inputs: setting.AnyInputs | None = None, *, n: setting.Count | None = None, seed: setting.Seed = 0,
    layers: Numbers = None, heads: Numbers = None, order: setting.Order | None = None,
    preprocessing: setting.Preprocessing = "model", batch_size: setting.BatchSize = 8,
    device: setting.Device | None = None, dtype: setting.DType | None = None, name: str | None = None,
    per: None = None, qkv: str | Path | Capture | None = None, progress: bool | Callable[[float], None] = False,
    cache: bool | None = None, **options: Unpack[options.FilterKernels],
) -> pd.DataFrame: ...
@overload
def analyze(
    analysis: Literal["gram-spectrum"], model: setting.AnyModel | None = None,
    inputs: setting.AnyInputs | None = None, *, n: setting.Count | None = None, seed: setting.Seed = 0,
    layers: Numbers = None, heads: Numbers = None, order: setting.Order | None = None,
    preprocessing: setting.Preprocessing = "model", batch_size: setting.BatchSize = 8,
    device: setting.Device | None = None, dtype: setting.DType | None = None, name: str | None = None,
    per: None = None, qkv: str | Path | Capture | None = None, progress: bool | Callable[[float], None] = False,
    cache: bool | None = None, **options: Unpack[options.GramSpectrum],
) -> pd.DataFrame: ...
@overload
def analyze(
    analysis: Literal["head-effect"], model: setting.AnyModel | None = None, inputs: setting.AnyInputs | None = None,
    *, n: setting.Count | None = None, seed: setting.Seed = 0, layers: Numbers = None, heads: Numbers = None,
    order: setting.Order | None = None, preprocessing: setting.Preprocessing = "model",
    batch_size: setting.BatchSize = 8, device: setting.Device | None = None, dtype: setting.DType | None = None,
    name: str | None = None, per: None = None, qkv: str | Path | Capture | None = None,
    progress: bool | Callable[[float], None] = False, cache: bool | None = None,
    **options: Unpack[options.HeadEffect],
) -> pd.DataFrame: ...
@overload
def analyze(
    analysis: Literal["logit-attribution"], model: setting.AnyModel | None = None,
    inputs: setting.AnyInputs | None = None, *, n: setting.Count | None = None, seed: setting.Seed = 0,
    layers: Numbers = None, heads: Numbers = None, order: setting.Order | None = None,
    preprocessing: setting.Preprocessing = "model", batch_size: setting.BatchSize = 8,
    device: setting.Device | None = None, dtype: setting.DType | None = None, name: str | None = None,
    per: None = None, qkv: str | Path | Capture | None = None, progress: bool | Callable[[float], None] = False,
    cache: bool | None = None, **options: Unpack[options.LogitAttribution],
) -> pd.DataFrame: ...
@overload
def analyze(
    analysis: Literal["logit-attribution"], model: setting.AnyModel | None = None,
    inputs: setting.AnyInputs | None = None, *, n: setting.Count | None = None, seed: setting.Seed = 0,
    layers: Numbers = None, heads: Numbers = None, order: setting.Order | None = None,
    preprocessing: setting.Preprocessing = "model", batch_size: setting.BatchSize = 8,
    device: setting.Device | None = None, dtype: setting.DType | None = None, name: str | None = None,
    per: Literal["pair"], qkv: str | Path | Capture | None = None, progress: bool | Callable[[float], None] = False,
    cache: bool | None = None, **options: Unpack[options.LogitAttributionPair],
) -> pd.DataFrame: ...
@overload
def analyze(
    analysis: Literal["logit-lens"], model: setting.AnyModel | None = None, inputs: setting.AnyInputs | None = None,
    *, n: setting.Count | None = None, seed: setting.Seed = 0, layers: Numbers = None, heads: Numbers = None,
    order: setting.Order | None = None, preprocessing: setting.Preprocessing = "model",
    batch_size: setting.BatchSize = 8, device: setting.Device | None = None, dtype: setting.DType | None = None,
    name: str | None = None, per: None = None, qkv: str | Path | Capture | None = None,
    progress: bool | Callable[[float], None] = False, cache: bool | None = None,
    **options: Unpack[options.LogitLens],
) -> pd.DataFrame: ...
@overload
def analyze(
    analysis: Literal["membership"], model: setting.AnyModel | None = None, inputs: setting.AnyInputs | None = None,
    *, n: setting.Count | None = None, seed: setting.Seed = 0, layers: Numbers = None, heads: Numbers = None,
    order: setting.Order | None = None, preprocessing: setting.Preprocessing = "model",
    batch_size: setting.BatchSize = 8, device: setting.Device | None = None, dtype: setting.DType | None = None,
    name: str | None = None, per: None = None, qkv: str | Path | Capture | None = None,
    progress: bool | Callable[[float], None] = False, cache: bool | None = None,
    **options: Unpack[options.Membership],
) -> pd.DataFrame: ...
@overload
def analyze(
    analysis: Literal["membership"], model: setting.AnyModel | None = None, inputs: setting.AnyInputs | None = None,
    *, n: setting.Count | None = None, seed: setting.Seed = 0, layers: Numbers = None, heads: Numbers = None,
    order: setting.Order | None = None, preprocessing: setting.Preprocessing = "model",
    batch_size: setting.BatchSize = 8, device: setting.Device | None = None, dtype: setting.DType | None = None,
    name: str | None = None, per: Literal["token"], qkv: str | Path | Capture | None = None,
    progress: bool | Callable[[float], None] = False, cache: bool | None = None,
    **options: Unpack[options.MembershipToken],
) -> pd.DataFrame: ...
@overload
def analyze(
    analysis: Literal["patch-pca"], model: setting.AnyModel | None = None, inputs: setting.AnyInputs | None = None,
    *, n: setting.Count | None = None, seed: setting.Seed = 0, layers: Numbers = None, heads: Numbers = None,
    order: setting.Order | None = None, preprocessing: setting.Preprocessing = "model",
    batch_size: setting.BatchSize = 8, device: setting.Device | None = None, dtype: setting.DType | None = None,
    name: str | None = None, per: None = None, qkv: str | Path | Capture | None = None,
    progress: bool | Callable[[float], None] = False, cache: bool | None = None, **options: Unpack[options.PatchPca],
) -> pd.DataFrame: ...
@overload
def analyze(
    analysis: Literal["patch-pca"], model: setting.AnyModel | None = None, inputs: setting.AnyInputs | None = None,
    *, n: setting.Count | None = None, seed: setting.Seed = 0, layers: Numbers = None, heads: Numbers = None,
    order: setting.Order | None = None, preprocessing: setting.Preprocessing = "model",
    batch_size: setting.BatchSize = 8, device: setting.Device | None = None, dtype: setting.DType | None = None,
    name: str | None = None, per: Literal["token"], qkv: str | Path | Capture | None = None,
    progress: bool | Callable[[float], None] = False, cache: bool | None = None,
    **options: Unpack[options.PatchPcaToken],
) -> pd.DataFrame: ...
@overload
def analyze(
    analysis: Literal["patching"], model: setting.AnyModel | None = None, inputs: setting.AnyInputs | None = None, *,
    n: setting.Count | None = None, seed: setting.Seed = 0, layers: Numbers = None, heads: Numbers = None,
    order: setting.Order | None = None, preprocessing: setting.Preprocessing = "model",
    batch_size: setting.BatchSize = 8, device: setting.Device | None = None, dtype: setting.DType | None = None,
    name: str | None = None, per: None = None, qkv: str | Path | Capture | None = None,
    progress: bool | Callable[[float], None] = False, cache: bool | None = None, **options: Unpack[options.Patching],
) -> pd.DataFrame: ...
@overload
def analyze(
    analysis: Literal["patching"], model: setting.AnyModel | None = None, inputs: setting.AnyInputs | None = None, *,
    n: setting.Count | None = None, seed: setting.Seed = 0, layers: Numbers = None, heads: Numbers = None,
    order: setting.Order | None = None, preprocessing: setting.Preprocessing = "model",
    batch_size: setting.BatchSize = 8, device: setting.Device | None = None, dtype: setting.DType | None = None,
    name: str | None = None, per: Literal["token"], qkv: str | Path | Capture | None = None,
    progress: bool | Callable[[float], None] = False, cache: bool | None = None,
    **options: Unpack[options.PatchingToken],
) -> pd.DataFrame: ...
@overload
def analyze(
    analysis: Literal["position-logits"], model: setting.AnyModel | None = None,
    inputs: setting.AnyInputs | None = None, *, n: setting.Count | None = None, seed: setting.Seed = 0,
    layers: Numbers = None, heads: Numbers = None, order: setting.Order | None = None,
    preprocessing: setting.Preprocessing = "model", batch_size: setting.BatchSize = 8,
    device: setting.Device | None = None, dtype: setting.DType | None = None, name: str | None = None,
    per: None = None, qkv: str | Path | Capture | None = None, progress: bool | Callable[[float], None] = False,
    cache: bool | None = None, **options: Unpack[options.PositionLogits],
) -> pd.DataFrame: ...
@overload
def analyze(
    analysis: Literal["position-logits"], model: setting.AnyModel | None = None,
    inputs: setting.AnyInputs | None = None, *, n: setting.Count | None = None, seed: setting.Seed = 0,
    layers: Numbers = None, heads: Numbers = None, order: setting.Order | None = None,
    preprocessing: setting.Preprocessing = "model", batch_size: setting.BatchSize = 8,
    device: setting.Device | None = None, dtype: setting.DType | None = None, name: str | None = None,
    per: Literal["pair"], qkv: str | Path | Capture | None = None, progress: bool | Callable[[float], None] = False,
    cache: bool | None = None, **options: Unpack[options.PositionLogitsPair],
) -> pd.DataFrame: ...
@overload
def analyze(
    analysis: Literal["projection-error"], model: setting.AnyModel | None = None,
    inputs: setting.AnyInputs | None = None, *, n: setting.Count | None = None, seed: setting.Seed = 0,
    layers: Numbers = None, heads: Numbers = None, order: setting.Order | None = None,
    preprocessing: setting.Preprocessing = "model", batch_size: setting.BatchSize = 8,
    device: setting.Device | None = None, dtype: setting.DType | None = None, name: str | None = None,
    per: None = None, qkv: str | Path | Capture | None = None, progress: bool | Callable[[float], None] = False,
    cache: bool | None = None, **options: Unpack[options.ProjectionError],
) -> pd.DataFrame: ...
@overload
def analyze(
    analysis: Literal["qk-ov-circuits"], model: setting.AnyModel | None = None,
    inputs: setting.AnyInputs | None = None, *, n: setting.Count | None = None, seed: setting.Seed = 0,
    layers: Numbers = None, heads: Numbers = None, order: setting.Order | None = None,
    preprocessing: setting.Preprocessing = "model", batch_size: setting.BatchSize = 8,
    device: setting.Device | None = None, dtype: setting.DType | None = None, name: str | None = None,
    per: None = None, qkv: str | Path | Capture | None = None, progress: bool | Callable[[float], None] = False,
    cache: bool | None = None, **options: Unpack[options.QkOvCircuits],
) -> pd.DataFrame: ...
@overload
def analyze(
    analysis: Literal["relevance"], model: setting.AnyModel | None = None, inputs: setting.AnyInputs | None = None,
    *, n: setting.Count | None = None, seed: setting.Seed = 0, layers: Numbers = None, heads: Numbers = None,
    order: setting.Order | None = None, preprocessing: setting.Preprocessing = "model",
    batch_size: setting.BatchSize = 8, device: setting.Device | None = None, dtype: setting.DType | None = None,
    name: str | None = None, per: None = None, qkv: str | Path | Capture | None = None,
    progress: bool | Callable[[float], None] = False, cache: bool | None = None,
    **options: Unpack[options.Relevance],
) -> pd.DataFrame: ...
@overload
def analyze(
    analysis: Literal["relevance"], model: setting.AnyModel | None = None, inputs: setting.AnyInputs | None = None,
    *, n: setting.Count | None = None, seed: setting.Seed = 0, layers: Numbers = None, heads: Numbers = None,
    order: setting.Order | None = None, preprocessing: setting.Preprocessing = "model",
    batch_size: setting.BatchSize = 8, device: setting.Device | None = None, dtype: setting.DType | None = None,
    name: str | None = None, per: Literal["token"], qkv: str | Path | Capture | None = None,
    progress: bool | Callable[[float], None] = False, cache: bool | None = None,
    **options: Unpack[options.RelevanceToken],
) -> pd.DataFrame: ...
@overload
def analyze(
    analysis: Literal["robust-components"], model: setting.AnyModel | None = None,
    inputs: setting.AnyInputs | None = None, *, n: setting.Count | None = None, seed: setting.Seed = 0,
    layers: Numbers = None, heads: Numbers = None, order: setting.Order | None = None,
    preprocessing: setting.Preprocessing = "model", batch_size: setting.BatchSize = 8,
    device: setting.Device | None = None, dtype: setting.DType | None = None, name: str | None = None,
    per: None = None, qkv: str | Path | Capture | None = None, progress: bool | Callable[[float], None] = False,
    cache: bool | None = None, **options: Unpack[options.RobustComponents],
) -> pd.DataFrame: ...
@overload
def analyze(
    analysis: Literal["saturation"], model: setting.AnyModel | None = None, inputs: setting.AnyInputs | None = None,
    *, n: setting.Count | None = None, seed: setting.Seed = 0, layers: Numbers = None, heads: Numbers = None,
    order: setting.Order | None = None, preprocessing: setting.Preprocessing = "model",
    batch_size: setting.BatchSize = 8, device: setting.Device | None = None, dtype: setting.DType | None = None,
    name: str | None = None, per: None = None, qkv: str | Path | Capture | None = None,
    progress: bool | Callable[[float], None] = False, cache: bool | None = None,
    **options: Unpack[options.Saturation],
) -> pd.DataFrame: ...
@overload
def analyze(
    analysis: Literal["sinks"], model: setting.AnyModel | None = None, inputs: setting.AnyInputs | None = None, *,
    n: setting.Count | None = None, seed: setting.Seed = 0, layers: Numbers = None, heads: Numbers = None,
    order: setting.Order | None = None, preprocessing: setting.Preprocessing = "model",
    batch_size: setting.BatchSize = 8, device: setting.Device | None = None, dtype: setting.DType | None = None,
    name: str | None = None, per: None = None, qkv: str | Path | Capture | None = None,
    progress: bool | Callable[[float], None] = False, cache: bool | None = None, **options: Unpack[options.Sinks],
) -> pd.DataFrame: ...
@overload
def analyze(
    analysis: Literal["snr"], model: setting.AnyModel | None = None, inputs: setting.AnyInputs | None = None, *,
    n: setting.Count | None = None, seed: setting.Seed = 0, layers: Numbers = None, heads: Numbers = None,
    order: setting.Order | None = None, preprocessing: setting.Preprocessing = "model",
    batch_size: setting.BatchSize = 8, device: setting.Device | None = None, dtype: setting.DType | None = None,
    name: str | None = None, per: None = None, qkv: str | Path | Capture | None = None,
    progress: bool | Callable[[float], None] = False, cache: bool | None = None, **options: Unpack[options.Snr],
) -> pd.DataFrame: ...
@overload
def analyze(
    analysis: Literal["softmax-sensitivity"], model: setting.AnyModel | None = None,
    inputs: setting.AnyInputs | None = None, *, n: setting.Count | None = None, seed: setting.Seed = 0,
    layers: Numbers = None, heads: Numbers = None, order: setting.Order | None = None,
    preprocessing: setting.Preprocessing = "model", batch_size: setting.BatchSize = 8,
    device: setting.Device | None = None, dtype: setting.DType | None = None, name: str | None = None,
    per: None = None, qkv: str | Path | Capture | None = None, progress: bool | Callable[[float], None] = False,
    cache: bool | None = None, **options: Unpack[options.SoftmaxSensitivity],
) -> pd.DataFrame: ...
@overload
def analyze(
    analysis: Literal["subspaces"], model: setting.AnyModel | None = None, inputs: setting.AnyInputs | None = None,
    *, n: setting.Count | None = None, seed: setting.Seed = 0, layers: Numbers = None, heads: Numbers = None,
    order: setting.Order | None = None, preprocessing: setting.Preprocessing = "model",
    batch_size: setting.BatchSize = 8, device: setting.Device | None = None, dtype: setting.DType | None = None,
    name: str | None = None, per: None = None, qkv: str | Path | Capture | None = None,
    progress: bool | Callable[[float], None] = False, cache: bool | None = None,
    **options: Unpack[options.Subspaces],
) -> pd.DataFrame: ...
@overload
def analyze(
    analysis: Literal["subspaces"], model: setting.AnyModel | None = None, inputs: setting.AnyInputs | None = None,
    *, n: setting.Count | None = None, seed: setting.Seed = 0, layers: Numbers = None, heads: Numbers = None,
    order: setting.Order | None = None, preprocessing: setting.Preprocessing = "model",
    batch_size: setting.BatchSize = 8, device: setting.Device | None = None, dtype: setting.DType | None = None,
    name: str | None = None, per: Literal["pair"], qkv: str | Path | Capture | None = None,
    progress: bool | Callable[[float], None] = False, cache: bool | None = None,
    **options: Unpack[options.SubspacesPair],
) -> pd.DataFrame: ...
@overload
def analyze(
    analysis: Literal["token-similarity"], model: setting.AnyModel | None = None,
    inputs: setting.AnyInputs | None = None, *, n: setting.Count | None = None, seed: setting.Seed = 0,
    layers: Numbers = None, heads: Numbers = None, order: setting.Order | None = None,
    preprocessing: setting.Preprocessing = "model", batch_size: setting.BatchSize = 8,
    device: setting.Device | None = None, dtype: setting.DType | None = None, name: str | None = None,
    per: None = None, qkv: str | Path | Capture | None = None, progress: bool | Callable[[float], None] = False,
    cache: bool | None = None, **options: Unpack[options.TokenSimilarity],
) -> pd.DataFrame: ...
@overload
def analyze(
    analysis: Literal["value-output"], model: setting.AnyModel | None = None,
    inputs: setting.AnyInputs | None = None, *, n: setting.Count | None = None, seed: setting.Seed = 0,
    layers: Numbers = None, heads: Numbers = None, order: setting.Order | None = None,
    preprocessing: setting.Preprocessing = "model", batch_size: setting.BatchSize = 8,
    device: setting.Device | None = None, dtype: setting.DType | None = None, name: str | None = None,
    per: None = None, qkv: str | Path | Capture | None = None, progress: bool | Callable[[float], None] = False,
    cache: bool | None = None, **options: Unpack[options.ValueOutput],
) -> pd.DataFrame: ...
@overload
def analyze(
    analysis: Literal["value-output"], model: setting.AnyModel | None = None,
    inputs: setting.AnyInputs | None = None, *, n: setting.Count | None = None, seed: setting.Seed = 0,
    layers: Numbers = None, heads: Numbers = None, order: setting.Order | None = None,
    preprocessing: setting.Preprocessing = "model", batch_size: setting.BatchSize = 8,
    device: setting.Device | None = None, dtype: setting.DType | None = None, name: str | None = None,
    per: Literal["token"], qkv: str | Path | Capture | None = None, progress: bool | Callable[[float], None] = False,
    cache: bool | None = None, **options: Unpack[options.ValueOutputToken],
) -> pd.DataFrame: ...
@overload
def analyze(
    analysis: Literal["value-output"], model: setting.AnyModel | None = None,
    inputs: setting.AnyInputs | None = None, *, n: setting.Count | None = None, seed: setting.Seed = 0,
    layers: Numbers = None, heads: Numbers = None, order: setting.Order | None = None,
    preprocessing: setting.Preprocessing = "model", batch_size: setting.BatchSize = 8,
    device: setting.Device | None = None, dtype: setting.DType | None = None, name: str | None = None,
    per: Literal["pair"], qkv: str | Path | Capture | None = None, progress: bool | Callable[[float], None] = False,
    cache: bool | None = None, **options: Unpack[options.ValueOutputPair],
) -> pd.DataFrame: ...
@overload
def analyze(
    analysis: Literal["value-similarity"], model: setting.AnyModel | None = None,
    inputs: setting.AnyInputs | None = None, *, n: setting.Count | None = None, seed: setting.Seed = 0,
    layers: Numbers = None, heads: Numbers = None, order: setting.Order | None = None,
    preprocessing: setting.Preprocessing = "model", batch_size: setting.BatchSize = 8,
    device: setting.Device | None = None, dtype: setting.DType | None = None, name: str | None = None,
    per: None = None, qkv: str | Path | Capture | None = None, progress: bool | Callable[[float], None] = False,
    cache: bool | None = None, **options: Unpack[options.ValueSimilarity],
) -> pd.DataFrame: ...
@overload
def analyze(
    analysis: str, model: setting.AnyModel | None = None, inputs: setting.AnyInputs | None = None, *,
    n: setting.Count | None = None, seed: setting.Seed = 0, layers: Numbers = None, heads: Numbers = None,
    order: setting.Order | None = None, preprocessing: setting.Preprocessing = "model",
    batch_size: setting.BatchSize = 8, device: setting.Device | None = None, dtype: setting.DType | None = None,
    name: str | None = None, per: Per | None = None, qkv: str | Path | Capture | None = None,
    progress: bool | Callable[[float], None] = False, cache: bool | None = None,
) -> pd.DataFrame: ...
def run_analysis(
    name: str, settings: RunSettings, options: Mapping[str, Any], *, per: Per | None = None,
    qkv: str | Path | Capture | None = None, progress: bool | Callable[[float], None] = False,
    cache: bool | None = None,
) -> pd.DataFrame: ...
def is_kept(
    cache: bool | None,
) -> bool: ...
def result_frame(
    analysis: Analysis, options: Any, source: Source, settings: RunSettings, accumulated: Accumulator,
) -> pd.DataFrame: ...
