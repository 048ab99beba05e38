# Written by `python -m tests.stubs` from the signatures and the registry of analyses.
# fmt: off
# ruff: noqa: I001 (imports in the order of the source)
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any
import pandas as pd
from workbench.analyses.registry import Per
from workbench.core.options import Numbers
from workbench.runs import settings as setting
from workbench.data.batches import Inputs
from workbench.models.loading import LoadedModel
from typing import Literal, Unpack, overload
from workbench.runs import options

Pairs = Iterable[tuple[Any, Any]]
@overload
def analyze_many(
    analysis: Literal["attention-map"], runs: Pairs, *, n: setting.Count | None = None, seed: setting.Seed = 0,
    layers: Numbers = None, heads: Numbers = None, order: setting.Order | None = None,
    preprocessing: setting.Preprocessing = "model", batch_size: setting.BatchSize = 8,
    device: setting.Device | None = None, dtype: setting.DType | None = None, name: str | None = None,
    per: None = None, checkpoints: Iterable[str | int] | str | None = None,
    progress: bool | Callable[[float], None] = False, cache: bool | None = None,
    **options: Unpack[options.AttentionMap],
) -> pd.DataFrame: ...
@overload
def analyze_many(
    analysis: Literal["attention-map"], runs: Pairs, *, n: setting.Count | None = None, seed: setting.Seed = 0,
    layers: Numbers = None, heads: Numbers = None, order: setting.Order | None = None,
    preprocessing: setting.Preprocessing = "model", batch_size: setting.BatchSize = 8,
    device: setting.Device | None = None, dtype: setting.DType | None = None, name: str | None = None,
    per: Literal["pair"], checkpoints: Iterable[str | int] | str | None = None,
    progress: bool | Callable[[float], None] = False, cache: bool | None = None,
    **options: Unpack[options.AttentionMapPair],
) -> pd.DataFrame: ...
@overload
def analyze_many(
    analysis: Literal["attention-patterns"], runs: Pairs, *, n: setting.Count | None = None, seed: setting.Seed = 0,
    layers: Numbers = None, heads: Numbers = None, order: setting.Order | None = None,
    preprocessing: setting.Preprocessing = "model", batch_size: setting.BatchSize = 8,
    device: setting.Device | None = None, dtype: setting.DType | None = None, name: str | None = None,
    per: None = None, checkpoints: Iterable[str | int] | str | None = None,
    progress: bool | Callable[[float], None] = False, cache: bool | None = None,
    **options: Unpack[options.AttentionPatterns],
) -> pd.DataFrame: ...
@overload
def analyze_many(
    analysis: Literal["attention-spectrum"], runs: Pairs, *, n: setting.Count | None = None, seed: setting.Seed = 0,
    layers: Numbers = None, heads: Numbers = None, order: setting.Order | None = None,
    preprocessing: setting.Preprocessing = "model", batch_size: setting.BatchSize = 8,
    device: setting.Device | None = None, dtype: setting.DType | None = None, name: str | None = None,
    per: None = None, checkpoints: Iterable[str | int] | str | None = None,
    progress: bool | Callable[[float], None] = False, cache: bool | None = None,
    **options: Unpack[options.AttentionSpectrum],
) -> pd.DataFrame: ...
@overload
def analyze_many(
    analysis: Literal["class-attention"], runs: Pairs, *, n: setting.Count | None = None, seed: setting.Seed = 0,
    layers: Numbers = None, heads: Numbers = None, order: setting.Order | None = None,
    preprocessing: setting.Preprocessing = "model", batch_size: setting.BatchSize = 8,
    device: setting.Device | None = None, dtype: setting.DType | None = None, name: str | None = None,
    per: None = None, checkpoints: Iterable[str | int] | str | None = None,
    progress: bool | Callable[[float], None] = False, cache: bool | None = None,
    **options: Unpack[options.ClassAttention],
) -> pd.DataFrame: ...
@overload
def analyze_many(
    analysis: Literal["class-attention"], runs: Pairs, *, n: setting.Count | None = None, seed: setting.Seed = 0,
    layers: Numbers = None, heads: Numbers = None, order: setting.Order | None = None,
    preprocessing: setting.Preprocessing = "model", batch_size: setting.BatchSize = 8,
    device: setting.Device | None = None, dtype: setting.DType | None = None, name: str | None = None,
    per: Literal["token"], checkpoints: Iterable[str | int] | str | None = None,
    progress: bool | Callable[[float], None] = False, cache: bool | None = None,
    **options: Unpack[options.ClassAttentionToken],
) -> pd.DataFrame: ...
@overload
def analyze_many(
    analysis: Literal["coding-rate"], runs: Pairs, *, n: setting.Count | None = None, seed: setting.Seed = 0,
    layers: Numbers = None, heads: Numbers = None, order: setting.Order | None = None,
    preprocessing: setting.Preprocessing = "model", batch_size: setting.BatchSize = 8,
    device: setting.Device | None = None, dtype: setting.DType | None = None, name: str | None = None,
    per: None = None, checkpoints: Iterable[str | int] | str | None = None,
    progress: bool | Callable[[float], None] = False, cache: bool | None = None,
    **options: Unpack[options.CodingRate],
) -> pd.DataFrame: ...
@overload
def analyze_many(
    analysis: Literal["eigenvector-test"], runs: Pairs, *, n: setting.Count | None = None, seed: setting.Seed = 0,
    layers: Numbers = None, heads: Numbers = None, order: setting.Order | None = None,
    preprocessing: setting.Preprocessing = "model", batch_size: setting.BatchSize = 8,
    device: setting.Device | None = None, dtype: setting.DType | None = None, name: str | None = None,
    per: None = None, checkpoints: Iterable[str | int] | str | None = None,
    progress: bool | Callable[[float], None] = False, cache: bool | None = None,
    **options: Unpack[options.EigenvectorTest],
) -> pd.DataFrame: ...
@overload
def analyze_many(
    analysis: Literal["filter-kernels"], runs: Pairs, *, n: setting.Count | None = None, seed: setting.Seed = 0,
    layers: Numbers = None, heads: Numbers = None, order: setting.Order | None = None,
    preprocessing: setting.Preprocessing = "model", batch_size: setting.BatchSize = 8,
    device: setting.Device | None = None, dtype: setting.DType | None = None, name: str | None = None,
    per: None = None, checkpoints: Iterable[str | int] | str | None = None,
    progress: bool | Callable[[float], None] = False, cache: bool | None = None,
    **options: Unpack[options.FilterKernels],
) -> pd.DataFrame: ...
@overload
def analyze_many(
    analysis: Literal["gram-spectrum"], runs: Pairs, *, n: setting.Count | None = None, seed: setting.Seed = 0,
    layers: Numbers = None, heads: Numbers = None, order: setting.Order | None = None,
    preprocessing: setting.Preprocessing = "model", batch_size: setting.BatchSize = 8,
    device: setting.Device | None = None, dtype: setting.DType | None = None, name: str | None = None,
    per: None = None, checkpoints: Iterable[str | int] | str | None = None,
    progress: bool | Callable[[float], None] = False, cache: bool | None = None,
    **options: Unpack[options.GramSpectrum],
) -> pd.DataFrame: ...
@overload
def analyze_many(
    analysis: Literal["head-effect"], runs: Pairs, *, n: setting.Count | None = None, seed: setting.Seed = 0,
    layers: Numbers = None, heads: Numbers = None, order: setting.Order | None = None,
    preprocessing: setting.Preprocessing = "model", batch_size: setting.BatchSize = 8,
    device: setting.Device | None = None, dtype: setting.DType | None = None, name: str | None = None,
    per: None = None, checkpoints: Iterable[str | int] | str | None = None,
    progress: bool | Callable[[float], None] = False, cache: bool | None = None,
    **options: Unpack[options.HeadEffect],
) -> pd.DataFrame: ...
@overload
def analyze_many(
    analysis: Literal["logit-attribution"], runs: Pairs, *, n: setting.Count | None = None, seed: setting.Seed = 0,
    layers: Numbers = None, heads: Numbers = None, order: setting.Order | None = None,
    preprocessing: setting.Preprocessing = "model", batch_size: setting.BatchSize = 8,
    device: setting.Device | None = None, dtype: setting.DType | None = None, name: str | None = None,
    per: None = None, checkpoints: Iterable[str | int] | str | None = None,
    progress: bool | Callable[[float], None] = False, cache: bool | None = None,
    **options: Unpack[options.LogitAttribution],
) -> pd.DataFrame: ...
@overload
def analyze_many(
    analysis: Literal["logit-attribution"], runs: Pairs, *, n: setting.Count | None = None, seed: setting.Seed = 0,
    layers: Numbers = None, heads: Numbers = None, order: setting.Order | None = None,
    preprocessing: setting.Preprocessing = "model", batch_size: setting.BatchSize = 8,
    device: setting.Device | None = None, dtype: setting.DType | None = None, name: str | None = None,
    per: Literal["pair"], checkpoints: Iterable[str | int] | str | None = None,
    progress: bool | Callable[[float], None] = False, cache: bool | None = None,
    **options: Unpack[options.LogitAttributionPair],
) -> pd.DataFrame: ...
@overload
def analyze_many(
    analysis: Literal["logit-lens"], runs: Pairs, *, n: setting.Count | None = None, seed: setting.Seed = 0,
    layers: Numbers = None, heads: Numbers = None, order: setting.Order | None = None,
    preprocessing: setting.Preprocessing = "model", batch_size: setting.BatchSize = 8,
    device: setting.Device | None = None, dtype: setting.DType | None = None, name: str | None = None,
    per: None = None, checkpoints: Iterable[str | int] | str | None = None,
    progress: bool | Callable[[float], None] = False, cache: bool | None = None,
    **options: Unpack[options.LogitLens],
) -> pd.DataFrame: ...
@overload
def analyze_many(
    analysis: Literal["membership"], runs: Pairs, *, n: setting.Count | None = None, seed: setting.Seed = 0,
    layers: Numbers = None, heads: Numbers = None, order: setting.Order | None = None,
    preprocessing: setting.Preprocessing = "model", batch_size: setting.BatchSize = 8,
    device: setting.Device | None = None, dtype: setting.DType | None = None, name: str | None = None,
    per: None = None, checkpoints: Iterable[str | int] | str | None = None,
    progress: bool | Callable[[float], None] = False, cache: bool | None = None,
    **options: Unpack[options.Membership],
) -> pd.DataFrame: ...
@overload
def analyze_many(
    analysis: Literal["membership"], runs: Pairs, *, n: setting.Count | None = None, seed: setting.Seed = 0,
    layers: Numbers = None, heads: Numbers = None, order: setting.Order | None = None,
    preprocessing: setting.Preprocessing = "model", batch_size: setting.BatchSize = 8,
    device: setting.Device | None = None, dtype: setting.DType | None = None, name: str | None = None,
    per: Literal["token"], checkpoints: Iterable[str | int] | str | None = None,
    progress: bool | Callable[[float], None] = False, cache: bool | None = None,
    **options: Unpack[options.MembershipToken],
) -> pd.DataFrame: ...
@overload
def analyze_many(
    analysis: Literal["patch-pca"], runs: Pairs, *, n: setting.Count | None = None, seed: setting.Seed = 0,
    layers: Numbers = None, heads: Numbers = None, order: setting.Order | None = None,
    preprocessing: setting.Preprocessing = "model", batch_size: setting.BatchSize = 8,
    device: setting.Device | None = None, dtype: setting.DType | None = None, name: str | None = None,
    per: None = None, checkpoints: Iterable[str | int] | str | None = None,
    progress: bool | Callable[[float], None] = False, cache: bool | None = None, **options: Unpack[options.PatchPca],
) -> pd.DataFrame: ...
@overload
def analyze_many(
    analysis: Literal["patch-pca"], runs: Pairs, *, n: setting.Count | None = None, seed: setting.Seed = 0,
    layers: Numbers = None, heads: Numbers = None, order: setting.Order | None = None,
    preprocessing: setting.Preprocessing = "model", batch_size: setting.BatchSize = 8,
    device: setting.Device | None = None, dtype: setting.DType | None = None, name: str | None = None,
    per: Literal["token"], checkpoints: Iterable[str | int] | str | None = None,
    progress: bool | Callable[[float], None] = False, cache: bool | None = None,
    **options: Unpack[options.PatchPcaToken],
) -> pd.DataFrame: ...
@overload
def analyze_many(
    analysis: Literal["patching"], runs: Pairs, *, n: setting.Count | None = None, seed: setting.Seed = 0,
    layers: Numbers = None, heads: Numbers = None, order: setting.Order | None = None,
    preprocessing: setting.Preprocessing = "model", batch_size: setting.BatchSize = 8,
    device: setting.Device | None = None, dtype: setting.DType | None = None, name: str | None = None,
    per: None = None, checkpoints: Iterable[str | int] | str | None = None,
    progress: bool | Callable[[float], None] = False, cache: bool | None = None, **options: Unpack[options.Patching],
) -> pd.DataFrame: ...
@overload
def analyze_many(
    analysis: Literal["patching"], runs: Pairs, *, n: setting.Count | None = None, seed: setting.Seed = 0,
    layers: Numbers = None, heads: Numbers = None, order: setting.Order | None = None,
    preprocessing: setting.Preprocessing = "model", batch_size: setting.BatchSize = 8,
    device: setting.Device | None = None, dtype: setting.DType | None = None, name: str | None = None,
    per: Literal["token"], checkpoints: Iterable[str | int] | str | None = None,
    progress: bool | Callable[[float], None] = False, cache: bool | None = None,
    **options: Unpack[options.PatchingToken],
) -> pd.DataFrame: ...
@overload
def analyze_many(
    analysis: Literal["position-logits"], runs: Pairs, *, n: setting.Count | None = None, seed: setting.Seed = 0,
    layers: Numbers = None, heads: Numbers = None, order: setting.Order | None = None,
    preprocessing: setting.Preprocessing = "model", batch_size: setting.BatchSize = 8,
    device: setting.Device | None = None, dtype: setting.DType | None = None, name: str | None = None,
    per: None = None, checkpoints: Iterable[str | int] | str | None = None,
    progress: bool | Callable[[float], None] = False, cache: bool | None = None,
    **options: Unpack[options.PositionLogits],
) -> pd.DataFrame: ...
@overload
def analyze_many(
    analysis: Literal["position-logits"], runs: Pairs, *, n: setting.Count | None = None, seed: setting.Seed = 0,
    layers: Numbers = None, heads: Numbers = None, order: setting.Order | None = None,
    preprocessing: setting.Preprocessing = "model", batch_size: setting.BatchSize = 8,
    device: setting.Device | None = None, dtype: setting.DType | None = None, name: str | None = None,
    per: Literal["pair"], checkpoints: Iterable[str | int] | str | None = None,
    progress: bool | Callable[[float], None] = False, cache: bool | None = None,
    **options: Unpack[options.PositionLogitsPair],
) -> pd.DataFrame: ...
@overload
def analyze_many(
    analysis: Literal["projection-error"], runs: Pairs, *, n: setting.Count | None = None, seed: setting.Seed = 0,
    layers: Numbers = None, heads: Numbers = None, order: setting.Order | None = None,
    preprocessing: setting.Preprocessing = "model", batch_size: setting.BatchSize = 8,
    device: setting.Device | None = None, dtype: setting.DType | None = None, name: str | None = None,
    per: None = None, checkpoints: Iterable[str | int] | str | None = None,
    progress: bool | Callable[[float], None] = False, cache: bool | None = None,
    **options: Unpack[options.ProjectionError],
) -> pd.DataFrame: ...
@overload
def analyze_many(
    analysis: Literal["qk-ov-circuits"], runs: Pairs, *, n: setting.Count | None = None, seed: setting.Seed = 0,
    layers: Numbers = None, heads: Numbers = None, order: setting.Order | None = None,
    preprocessing: setting.Preprocessing = "model", batch_size: setting.BatchSize = 8,
    device: setting.Device | None = None, dtype: setting.DType | None = None, name: str | None = None,
    per: None = None, checkpoints: Iterable[str | int] | str | None = None,
    progress: bool | Callable[[float], None] = False, cache: bool | None = None,
    **options: Unpack[options.QkOvCircuits],
) -> pd.DataFrame: ...
@overload
def analyze_many(
    analysis: Literal["relevance"], runs: Pairs, *, n: setting.Count | None = None, seed: setting.Seed = 0,
    layers: Numbers = None, heads: Numbers = None, order: setting.Order | None = None,
    preprocessing: setting.Preprocessing = "model", batch_size: setting.BatchSize = 8,
    device: setting.Device | None = None, dtype: setting.DType | None = None, name: str | None = None,
    per: None = None, checkpoints: Iterable[str | int] | str | None = None,
    progress: bool | Callable[[float], None] = False, cache: bool | None = None,
    **options: Unpack[options.Relevance],
) -> pd.DataFrame: ...
@overload
def analyze_many(
    analysis: Literal["relevance"], runs: Pairs, *, n: setting.Count | None = None, seed: setting.Seed = 0,
    layers: Numbers = None, heads: Numbers = None, order: setting.Order | None = None,
    preprocessing: setting.Preprocessing = "model", batch_size: setting.BatchSize = 8,
    device: setting.Device | None = None, dtype: setting.DType | None = None, name: str | None = None,
    per: Literal["token"], checkpoints: Iterable[str | int] | str | None = None,
    progress: bool | Callable[[float], None] = False, cache: bool | None = None,
    **options: Unpack[options.RelevanceToken],
) -> pd.DataFrame: ...
@overload
def analyze_many(
    analysis: Literal["robust-components"], runs: Pairs, *, n: setting.Count | None = None, seed: setting.Seed = 0,
    layers: Numbers = None, heads: Numbers = None, order: setting.Order | None = None,
    preprocessing: setting.Preprocessing = "model", batch_size: setting.BatchSize = 8,
    device: setting.Device | None = None, dtype: setting.DType | None = None, name: str | None = None,
    per: None = None, checkpoints: Iterable[str | int] | str | None = None,
    progress: bool | Callable[[float], None] = False, cache: bool | None = None,
    **options: Unpack[options.RobustComponents],
) -> pd.DataFrame: ...
@overload
def analyze_many(
    analysis: Literal["saturation"], runs: Pairs, *, n: setting.Count | None = None, seed: setting.Seed = 0,
    layers: Numbers = None, heads: Numbers = None, order: setting.Order | None = None,
    preprocessing: setting.Preprocessing = "model", batch_size: setting.BatchSize = 8,
    device: setting.Device | None = None, dtype: setting.DType | None = None, name: str | None = None,
    per: None = None, checkpoints: Iterable[str | int] | str | None = None,
    progress: bool | Callable[[float], None] = False, cache: bool | None = None,
    **options: Unpack[options.Saturation],
) -> pd.DataFrame: ...
@overload
def analyze_many(
    analysis: Literal["sinks"], runs: Pairs, *, n: setting.Count | None = None, seed: setting.Seed = 0,
    layers: Numbers = None, heads: Numbers = None, order: setting.Order | None = None,
    preprocessing: setting.Preprocessing = "model", batch_size: setting.BatchSize = 8,
    device: setting.Device | None = None, dtype: setting.DType | None = None, name: str | None = None,
    per: None = None, checkpoints: Iterable[str | int] | str | None = None,
    progress: bool | Callable[[float], None] = False, cache: bool | None = None, **options: Unpack[options.Sinks],
) -> pd.DataFrame: ...
@overload
def analyze_many(
    analysis: Literal["snr"], runs: Pairs, *, n: setting.Count | None = None, seed: setting.Seed = 0,
    layers: Numbers = None, heads: Numbers = None, order: setting.Order | None = None,
    preprocessing: setting.Preprocessing = "model", batch_size: setting.BatchSize = 8,
    device: setting.Device | None = None, dtype: setting.DType | None = None, name: str | None = None,
    per: None = None, checkpoints: Iterable[str | int] | str | None = None,
    progress: bool | Callable[[float], None] = False, cache: bool | None = None, **options: Unpack[options.Snr],
) -> pd.DataFrame: ...
@overload
def analyze_many(
    analysis: Literal["softmax-sensitivity"], runs: Pairs, *, n: setting.Count | None = None, seed: setting.Seed = 0,
    layers: Numbers = None, heads: Numbers = None, order: setting.Order | None = None,
    preprocessing: setting.Preprocessing = "model", batch_size: setting.BatchSize = 8,
    device: setting.Device | None = None, dtype: setting.DType | None = None, name: str | None = None,
    per: None = None, checkpoints: Iterable[str | int] | str | None = None,
    progress: bool | Callable[[float], None] = False, cache: bool | None = None,
    **options: Unpack[options.SoftmaxSensitivity],
) -> pd.DataFrame: ...
@overload
def analyze_many(
    analysis: Literal["subspaces"], runs: Pairs, *, n: setting.Count | None = None, seed: setting.Seed = 0,
    layers: Numbers = None, heads: Numbers = None, order: setting.Order | None = None,
    preprocessing: setting.Preprocessing = "model", batch_size: setting.BatchSize = 8,
    device: setting.Device | None = None, dtype: setting.DType | None = None, name: str | None = None,
    per: None = None, checkpoints: Iterable[str | int] | str | None = None,
    progress: bool | Callable[[float], None] = False, cache: bool | None = None,
    **options: Unpack[options.Subspaces],
) -> pd.DataFrame: ...
@overload
def analyze_many(
    analysis: Literal["subspaces"], runs: Pairs, *, n: setting.Count | None = None, seed: setting.Seed = 0,
    layers: Numbers = None, heads: Numbers = None, order: setting.Order | None = None,
    preprocessing: setting.Preprocessing = "model", batch_size: setting.BatchSize = 8,
    device: setting.Device | None = None, dtype: setting.DType | None = None, name: str | None = None,
    per: Literal["pair"], checkpoints: Iterable[str | int] | str | None = None,
    progress: bool | Callable[[float], None] = False, cache: bool | None = None,
    **options: Unpack[options.SubspacesPair],
) -> pd.DataFrame: ...
@overload
def analyze_many(
    analysis: Literal["token-similarity"], runs: Pairs, *, n: setting.Count | None = None, seed: setting.Seed = 0,
    layers: Numbers = None, heads: Numbers = None, order: setting.Order | None = None,
    preprocessing: setting.Preprocessing = "model", batch_size: setting.BatchSize = 8,
    device: setting.Device | None = None, dtype: setting.DType | None = None, name: str | None = None,
    per: None = None, checkpoints: Iterable[str | int] | str | None = None,
    progress: bool | Callable[[float], None] = False, cache: bool | None = None,
    **options: Unpack[options.TokenSimilarity],
) -> pd.DataFrame: ...
@overload
def analyze_many(
    analysis: Literal["value-output"], runs: Pairs, *, n: setting.Count | None = None, seed: setting.Seed = 0,
    layers: Numbers = None, heads: Numbers = None, order: setting.Order | None = None,
    preprocessing: setting.Preprocessing = "model", batch_size: setting.BatchSize = 8,
    device: setting.Device | None = None, dtype: setting.DType | None = None, name: str | None = None,
    per: None = None, checkpoints: Iterable[str | int] | str | None = None,
    progress: bool | Callable[[float], None] = False, cache: bool | None = None,
    **options: Unpack[options.ValueOutput],
) -> pd.DataFrame: ...
@overload
def analyze_many(
    analysis: Literal["value-output"], runs: Pairs, *, n: setting.Count | None = None, seed: setting.Seed = 0,
    layers: Numbers = None, heads: Numbers = None, order: setting.Order | None = None,
    preprocessing: setting.Preprocessing = "model", batch_size: setting.BatchSize = 8,
    device: setting.Device | None = None, dtype: setting.DType | None = None, name: str | None = None,
    per: Literal["token"], checkpoints: Iterable[str | int] | str | None = None,
    progress: bool | Callable[[float], None] = False, cache: bool | None = None,
    **options: Unpack[options.ValueOutputToken],
) -> pd.DataFrame: ...
@overload
def analyze_many(
    analysis: Literal["value-output"], runs: Pairs, *, n: setting.Count | None = None, seed: setting.Seed = 0,
    layers: Numbers = None, heads: Numbers = None, order: setting.Order | None = None,
    preprocessing: setting.Preprocessing = "model", batch_size: setting.BatchSize = 8,
    device: setting.Device | None = None, dtype: setting.DType | None = None, name: str | None = None,
    per: Literal["pair"], checkpoints: Iterable[str | int] | str | None = None,
    progress: bool | Callable[[float], None] = False, cache: bool | None = None,
    **options: Unpack[options.ValueOutputPair],
) -> pd.DataFrame: ...
@overload
def analyze_many(
    analysis: Literal["value-similarity"], runs: Pairs, *, n: setting.Count | None = None, seed: setting.Seed = 0,
    layers: Numbers = None, heads: Numbers = None, order: setting.Order | None = None,
    preprocessing: setting.Preprocessing = "model", batch_size: setting.BatchSize = 8,
    device: setting.Device | None = None, dtype: setting.DType | None = None, name: str | None = None,
    per: None = None, checkpoints: Iterable[str | int] | str | None = None,
    progress: bool | Callable[[float], None] = False, cache: bool | None = None,
    **options: Unpack[options.ValueSimilarity],
) -> pd.DataFrame: ...
@overload
def analyze_many(
    analysis: str, runs: Pairs, *, n: setting.Count | None = None, seed: setting.Seed = 0, layers: Numbers = None,
    heads: Numbers = None, order: setting.Order | None = None, preprocessing: setting.Preprocessing = "model",
    batch_size: setting.BatchSize = 8, device: setting.Device | None = None, dtype: setting.DType | None = None,
    name: str | None = None, per: Per | None = None, checkpoints: Iterable[str | int] | str | None = None,
    progress: bool | Callable[[float], None] = False, cache: bool | None = None,
) -> pd.DataFrame: ...
def example(
    pairs: Pairs, seed: int = 0, preprocessing: str = "model",
) -> tuple[LoadedModel, Inputs]: ...
def analyze_grid(
    analysis: str, runs: Pairs, grid: Mapping[str, Sequence[Any]], *, n: setting.Count | None = None,
    seed: setting.Seed = 0, layers: Numbers = None, heads: Numbers = None, order: setting.Order | None = None,
    preprocessing: setting.Preprocessing = "model", batch_size: setting.BatchSize = 8,
    device: setting.Device | None = None, dtype: setting.DType | None = None, name: str | None = None,
    per: Per | None = None, progress: bool | Callable[[float], None] = False, cache: bool | None = None,
    **options: Any,
) -> pd.DataFrame: ...
