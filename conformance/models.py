"""Which models there are, and a small one of each that runs, with random weights."""

from __future__ import annotations

import copy
import importlib
import inspect
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from conformance.exceptions import (
    AROUND,
    CLASSES,
    FIELDS,
    INPUTS,
    OWN_WEIGHTS,
    OWN_WIDTHS,
    PARTS,
    SMALL,
    TIMM,
)
from conformance.inputs import Batch, NoInputs, batches, kind_of, mended
from conformance.shrink import AS_GIVEN, WAYS, Way, shrink

SEED = 0
LONGEST = int(os.environ.get("CONFORMANCE_LONGEST", "200"))
"""Characters of an error that are kept; more of them help to find inputs."""
LARGEST = 25_000_000
"""Parameters of a model that is still run."""


class NotBuilt(Exception):
    """No model of this type that runs."""


@dataclass
class Built:
    """A model that runs on a batch; ``way`` says how it was made small."""

    model: nn.Module
    batch: Batch | Tensor
    way: str
    kind: str


def run(model: nn.Module, batch: Batch | Tensor) -> Any:
    """What the model gives for the batch; what it draws, it draws from the same seed each time."""
    torch.manual_seed(SEED)
    with torch.no_grad():
        return model(**batch) if isinstance(batch, dict) else model(batch)


def build(library: str, name: str) -> Built:
    """A small model of this type, and a batch that it takes. Raises NotBuilt saying why there is none."""
    return _transformers_model(name) if library == "transformers" else _timm_model(name)


def with_random_weights(model: nn.Module) -> None:
    """Weights large enough that heads and tokens differ; those of state spaces, rates and norms stay."""
    generator = torch.Generator().manual_seed(SEED)
    for name, parameter in model.named_parameters():
        if (
            parameter.ndim > 1
            and parameter.numel()
            and parameter.is_floating_point()
            and not re.search(r"A_log|dt_|\.D$|norm|codebook", name)
        ):
            fresh = torch.randn(parameter.shape, generator=generator) * parameter[0].numel() ** -0.5
            parameter.data.copy_(fresh)


def is_number(result: Any) -> bool:
    return not any(bool(t.isnan().any()) for t in tensors_in(result) if t.is_floating_point())


def tensors_in(value: Any) -> list[Tensor]:
    """The tensors of a model's output, in order."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, dict):
        return [t for item in value.values() for t in tensors_in(item)]
    return [t for item in value for t in tensors_in(item)] if isinstance(value, (tuple, list)) else []


# transformers -----------------------------------------------------------------------------------------------


def transformers_types() -> list[str]:
    """Every type that transformers has a configuration of, those that give their family its name first."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    return sorted(CONFIG_MAPPING_NAMES, key=lambda name: name.replace("-", "_") != family(name))


def family(name: str) -> str:
    """The folder of transformers that a type lives in."""
    from transformers.models.auto.configuration_auto import model_type_to_module_name

    return model_type_to_module_name(name)


def model_class(name: str, config: Any) -> type[nn.Module]:
    """The class of models of a type: its bare model, else the first with a head, else what takes its configuration."""
    import transformers
    from transformers.models.auto import modeling_auto

    if name in CLASSES:
        return getattr(_modeling(config), CLASSES[name])
    tables = [table for table in vars(modeling_auto) if re.fullmatch(r"MODEL_\w*MAPPING_NAMES", table)]
    tables.sort(key=lambda table: table != "MODEL_MAPPING_NAMES")
    for table in tables:
        found = getattr(modeling_auto, table).get(name)
        found = found[0] if isinstance(found, (tuple, list)) else found
        if found is not None:
            cls = getattr(transformers, found, None) or getattr(_modeling(config), found, None)
            if cls is not None:
                return cls
    own = [
        cls
        for cls in vars(_modeling(config)).values()
        if inspect.isclass(cls)
        and issubclass(cls, transformers.PreTrainedModel)
        and type(config) in (cls.config_class, _annotated(cls))
        and "forward"
        in {key for each in cls.__mro__ if each.__module__ == cls.__module__ for key in vars(each)}
    ]
    if not own:
        raise NotBuilt(f"no model takes a {type(config).__name__}; it is part of others")
    return min(
        own,
        key=lambda cls: (
            not cls.__name__.endswith(("Model", "Transformer", "Encoder", "Decoder")),
            len(cls.__name__),
        ),
    )


def _annotated(cls: type) -> Any:
    """The configuration that a class of models says it has."""
    try:
        return inspect.get_annotations(cls, eval_str=True).get("config")
    except (NameError, TypeError, AttributeError):
        return None


def _modeling(config: Any) -> Any:
    return importlib.import_module(type(config).__module__.replace(".configuration_", ".modeling_"))


def _transformers_model(name: str) -> Built:
    from transformers import CONFIG_MAPPING

    failures: list[str] = []
    if isinstance(reason := INPUTS.get(name), str):
        raise NotBuilt(reason)
    try:
        default = CONFIG_MAPPING[name](**SMALL.get(name, FIELDS.get(name, {}).get("", {})))
        if name in PARTS:
            default = getattr(default, PARTS[name])
        cls = model_class(name, default)
    except NotBuilt:
        raise
    except Exception as error:
        raise NotBuilt(f"configuration: {said(error)}") from error
    for way in (AS_GIVEN,) if name in SMALL else WAYS[-1:] if name in OWN_WIDTHS else WAYS:
        if len(failures) > 1 and failures[-1].partition(": ")[2] == failures[-2].partition(": ")[2]:
            break  # it is no matter of sizes
        try:
            model, config = _of_size(name, cls, default, way)
        except NotBuilt:
            raise
        except Exception as error:
            failures.append(f"{way}: {said(error)}")
            continue
        try:
            batch = _batch_for(name, model, config)
        except NoInputs as error:
            raise NotBuilt(str(error)) from None
        except Exception as error:
            failures.append(f"{way}: {said(error)}")
            continue
        return Built(model, batch, str(way), kind_of(batch))
    raise NotBuilt(failures[0])


def _of_size(name: str, cls: type[nn.Module], default: Any, way: Way) -> tuple[nn.Module, Any]:
    config = copy.deepcopy(default)
    if way is not AS_GIVEN:
        config = shrink(config, way)
    for path, value in FIELDS.get(name, {}).items():
        if path:
            *owners, field = path.split(".")
            owner = config
            for part in owners:
                owner = getattr(owner, part)
            setattr(owner, field, value)
    config.use_cache = False
    if way.widths != "same":
        try:
            with torch.device("meta"):
                size = sum(p.numel() for p in cls(copy.deepcopy(config)).parameters())
        except Exception:  # models that compute while they are made
            size = 0
        if size > LARGEST and name not in OWN_WIDTHS:
            raise ValueError(f"{size / 1e6:.0f} million parameters")
    torch.manual_seed(SEED)
    return AROUND.get(name, lambda model: model)(cls(config).float().eval()), config


def _batch_for(name: str, model: nn.Module, config: Any) -> Batch:
    """The first batch that the model takes; its weights are then random unless that overflows."""
    state = copy.deepcopy(model.state_dict())
    with_random_weights(model)
    failures: list[Exception] = []
    given = INPUTS.get(name)
    candidates: Iterator[Batch] = iter([given(config)]) if callable(given) else batches(model, config)
    for batch in candidates:
        for _ in range(4):
            try:
                result = run(model, batch)
                if not is_number(result):
                    model.load_state_dict(state)
                    result = run(model, batch)
                    if not is_number(result):
                        raise ValueError("its output is not a number")
                return batch
            except Exception as error:
                failures.append(error)
                again = mended(model, batch, config, error)
                if again is None:
                    break
                batch = again
    if not failures:
        raise NoInputs("its forward takes nothing that is known here")
    reasons = dict.fromkeys(map(said, failures))
    raise ValueError(" | ".join(reasons))


def said(error: BaseException) -> str:
    """An error on one line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:LONGEST]}"


# timm -------------------------------------------------------------------------------------------------------

_ATTENDS = re.compile(r"softmax|fused_attn|scaled_dot_product|self_attn|VisionTransformer|mqa_|NaFlex")
_SIZES = re.compile(
    r"test|atto|femto|pico|nano|n|zepto|x*s|x*t|ti|x*tiny|mini|x*small|m|medium|mediumd|base|b|wide|x*l|x*large|so\w*|h|huge|g"
    r"|giant\w*|gigantic|enormous|wee|pwee|dwee|dpwee|little|dlittle|betwixt|patch|window.*|p|w|r|x|ts|rw|ns|tf|ink?|rel|clip|gap|reg|"
)


_SMALL_FIRST = (
    "atto",
    "femto",
    "pico",
    "nano",
    "xxs",
    "xx_small",
    "xs",
    "x_small",
    "xtiny",
    "ti",
    "s",
    "b",
    "",
)


def timm_models() -> list[str]:
    """The smallest model of every family of timm whose code has attention, a family being names without their sizes.

    One of each file comes first.
    """
    import timm
    from timm.models import model_entrypoint

    smallest: dict[tuple[str, str], tuple[int, str]] = {}
    for name in timm.list_models():
        module = importlib.import_module(model_entrypoint(name).__module__)
        if _ATTENDS.search(inspect.getsource(module)):
            words = [re.sub(r"\d", "", word) for word in name.split("_")]
            key = module.__name__, "_".join(word for word in words if not _SIZES.fullmatch(word))
            rank = (
                next(
                    (i for i, size in enumerate(_SMALL_FIRST) if f"_{size}" in f"_{name}"), len(_SMALL_FIRST)
                ),
                name,
            )
            smallest[key] = min(smallest.get(key, rank), rank)
    modules = [module for module, _ in smallest]
    several = {key: modules[:number].count(key[0]) for number, key in enumerate(smallest)}
    return [name for _, (_, name) in sorted(smallest.items(), key=lambda item: (several[item[0]], item[1]))]


def _timm_model(name: str) -> Built:
    import timm

    failures = []
    small, side = TIMM.get(name, ({}, 0))
    ways: tuple[dict[str, Any], ...] = (small,) if side else ({"depth": 2}, {"depths": True}, {})
    for options in ways:
        try:
            if options.get("depths") is True:
                with torch.device("meta"):
                    whole = timm.create_model(name)
                depths = getattr(
                    getattr(whole, "stages", getattr(whole, "layers", None)), "__len__", lambda: 0
                )()
                if not depths:
                    continue
                options = {"depths": (2,) * depths}
            torch.manual_seed(SEED)
            model = timm.create_model(name, num_classes=7, **options).eval()
            if not side and sum(p.numel() for p in model.parameters()) > 4 * LARGEST:
                raise ValueError(f"{sum(p.numel() for p in model.parameters()) / 1e6:.0f} million parameters")
            state = copy.deepcopy(model.state_dict())
            if name not in OWN_WEIGHTS:
                with_random_weights(model)
            size = model.pretrained_cfg.get("input_size", (3, 224, 224))
            size = (3, side, side) if side else size
            batch = torch.randn(2, *size, generator=torch.Generator().manual_seed(1))
            if not is_number(run(model, batch)):
                model.load_state_dict(state)
                run(model, batch)
            return Built(
                model, batch, ", ".join(f"{k} {v}" for k, v in options.items()) or "as published", "image"
            )
        except Exception as error:
            failures.append(said(error))
    raise NotBuilt(failures[-1])
