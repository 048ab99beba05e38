"""``load(spec)``: a transformer by name, from timm, Hugging Face, a folder, a file, or the bundled ones."""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from workbench.core import paths
from workbench.core.errors import InputError, MissingResource, UnknownName, WorkbenchError
from workbench.core.extras import install_command, require
from workbench.core.notebook_html import card
from workbench.core.options import literal
from workbench.models import catalog, hub

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn
    from transformers import PreTrainedTokenizerBase

    from workbench.models.source import ImageFormat, Source

NOT_INSTALLED = "extra 'models'"
"""Place of the weights of a bundled model that is not installed, in `list_models`."""
_SCHEMES = ("timm", "hf", "tost", "crate", "bundled", "file", "py")
_WEIGHT_SUFFIXES = (".safetensors", ".pt", ".pth", ".ckpt", ".bin")
DEVICE = "WORKBENCH_DEVICE"
"""The variable that names the device where `load` is asked for none; `workbench render --device` sets it."""
_CHECKPOINT_FILE = re.compile(r"epoch-(\d+)\.safetensors")


@dataclass
class LoadedModel:
    """A model in eval mode on its device, with its identity and its input format."""

    module: nn.Module = field(repr=False)
    spec: str
    """As it can be loaded again, whatever name was asked for: ``timm:vit_tiny_patch16_224``."""
    checkpoint: str | None
    """Name of the checkpoint, file or revision; None for published weights, ``"random"`` for random ones (seed 0)."""
    family: str
    """The architecture's own kind: vit, deit, beit, eva, swin, xcit, cait, bert, gpt2, …"""
    modality: str
    """``"image"``, ``"text"``, ``"image-text"`` for both, or ``"other"`` for what ``inputs`` does not make."""
    image: ImageFormat | None = field(default=None, repr=False)
    """For image models: size (height, width), channels, mean and std per channel, own preprocessing."""
    max_length: int | None = None
    """For text models: the longest text in tokens, or None without a limit."""
    origin: str | None = None
    """Folder of the installed package that has the weights; None if they are under the name in ``spec``."""
    meta: dict[str, Any] | None = field(default=None, repr=False)
    """For models trained here: what the checkpoint says of itself (task, recipe, …; see `read_checkpoint`)."""
    _load_tokenizer: Any = field(default=None, repr=False)
    _load_processor: Any = field(default=None, repr=False)
    name: str | None = None
    """The model's name in frames and figures, instead of ``spec``."""

    @cached_property
    def processor(self) -> Any:
        """The transformers processor that makes a batch of images and texts for a model of both.

        Raises InputError for any other model, and if the weights come without one.
        """
        if self._load_processor is None:
            raise InputError(f"{self.spec} does not take images with texts and has no processor")
        return self._load_processor()

    @cached_property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The model's tokenizer, padding and cutting on the right.

        Models trained without a padding token (GPT-2) get their end-of-text token as padding: it is masked.
        Raises InputError for an image model, and if the weights come without a tokenizer.
        """
        if self._load_processor is not None:
            return self.processor.tokenizer
        if self._load_tokenizer is None:
            raise InputError(f"{self.spec} takes images and has no tokenizer")
        return self._load_tokenizer()

    @cached_property
    def _geometry(self) -> tuple[int, int | tuple[int, ...], int | tuple[int, ...]]:
        from workbench.captures.layout import attention_geometry

        return attention_geometry(self.module)

    @property
    def num_layers(self) -> int:
        """Attention layers that a capture should see."""
        return self._geometry[0]

    @property
    def num_heads(self) -> int | tuple[int, ...]:
        """Query heads; one number per layer where layers differ."""
        return self._geometry[1]

    @property
    def head_dim(self) -> int | tuple[int, ...]:
        """Width of a head; one number per layer where layers differ."""
        return self._geometry[2]

    @property
    def device(self) -> torch.device:
        return next(self.module.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        """Type of the floating-point weights."""
        import torch

        dtypes = (value.dtype for value in self.module.parameters() if value.is_floating_point())
        return next(dtypes, torch.get_default_dtype())

    @property
    def fingerprint(self) -> str:
        """The `fingerprint` of the module's weights as they are now."""
        return fingerprint(self.module)

    @property
    def has_random_weights(self) -> bool:
        """Whether the weights are drawn at random and no training ever saw them."""
        from workbench.frames.results import is_random

        return is_random(self.checkpoint)

    @property
    def identity(self) -> dict[str, str | None]:
        """The model's entry in provenance: spec, checkpoint, sha256 of the weights, and the name if any."""
        named = {} if self.name is None else {"name": self.name}
        return {"spec": self.spec, "checkpoint": self.checkpoint, "sha256": self.fingerprint} | named

    @property
    def _title(self) -> str:
        name = self.spec + (f" {self.checkpoint}" if self.checkpoint else "")
        return f"{name} weights" if self.has_random_weights else name

    @property
    def _shape(self) -> str:
        try:
            layers, heads, width = self._geometry
        except WorkbenchError:
            return "no attention that capture can see"
        return f"{layers} layers, {_spread(heads)} heads of {_spread(width)}"

    @property
    def _place(self) -> str:
        return f"{str(self.dtype).removeprefix('torch.')} on {self.device}"

    def __repr__(self) -> str:
        return f"<{self._title}: {self.family}, {self.modality}, {self._shape}, {self._place}>"

    def _repr_html_(self) -> str:
        image, weights = self.image, sum(value.numel() for value in self.module.parameters())
        facts = {
            "family": f"{self.family}, {self.modality}",
            "attention": self._shape,
            "images": image and f"{image.channels} × {image.size[0]} × {image.size[1]}",
            "longest text": self.max_length and f"{self.max_length} tokens",
            "weights": f"{weights:,}, {self._place}",
            "weights in": self.origin,
        }
        return card(f"Model {self._title}", facts)


_FINGERPRINTS: WeakKeyDictionary[Any, tuple[Any, str]] = WeakKeyDictionary()


def fingerprint(module: nn.Module) -> str:
    """Return the sha256 over a module's state dict: names, types, shapes and bytes, in order of name.

    The hash is kept with the module until a tensor is replaced or changed in place.
    """
    versions = _versions(module)
    cached = _FINGERPRINTS.get(module)
    if versions is not None and cached is not None and cached[0] == versions:
        return cached[1]
    digest = hashlib.sha256()
    for name, value in sorted(_whole_state(module).items()):
        for part in parts_of(value):
            digest.update(f"{name} {part.dtype} {tuple(part.shape)}\n".encode())
            digest.update(tensor_bytes(part))
    _FINGERPRINTS[module] = versions, digest.hexdigest()
    return digest.hexdigest()


def _versions(module: nn.Module) -> list[tuple[str, int, int]] | None:
    """Return address and count of changes of every tensor; None where a module has others than plain tensors."""
    try:
        return [
            (name, part.data_ptr(), part._version)
            for name, value in module.state_dict(keep_vars=True).items()
            for part in parts_of(value)
        ]
    except RuntimeError:  # tensors of inference mode count no changes, others have no address
        return None


def _whole_state(module: nn.Module) -> dict[str, Any]:
    """The state dict, with weights that were offloaded to memory or disk brought back."""
    state = module.state_dict()
    if not any(getattr(value, "is_meta", False) for value in state.values()):
        return state
    from workbench.captures.capturing import refuse_meta

    refuse_meta(module, type(module).__name__)
    from accelerate.utils.modeling import get_state_dict_offloaded_model

    return get_state_dict_offloaded_model(module)


def parts_of(value: Any) -> list[Tensor]:
    """The plain tensors that a value of a state dict consists of: of a quantised one its integers, scales and zeros."""
    import torch

    if isinstance(value, (tuple, list)):
        return [part for item in value for part in parts_of(item)]
    if not isinstance(value, torch.Tensor):
        return []
    if value.is_quantized:
        if value.qscheme() in (torch.per_channel_affine, torch.per_channel_symmetric):
            return [value.int_repr(), value.q_per_channel_scales(), value.q_per_channel_zero_points()]
        return [value.int_repr(), torch.tensor([value.q_scale(), value.q_zero_point()])]
    if hasattr(value, "__tensor_flatten__"):
        names, _ = value.__tensor_flatten__()
        return [part for name in names for part in parts_of(getattr(value, name))]
    return [value]


def tensor_bytes(tensor: Tensor) -> memoryview:
    """The bytes of a tensor's values in reading order; seen as bytes, because numpy has no bfloat16."""
    import torch

    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().data


def load(
    spec: str,
    checkpoint: str | int | None = None,
    pretrained: bool = True,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
    *,
    name: str | None = None,
    trust: bool = False,
    revision: str | None = None,
    attn_implementation: str | None = None,
    device_map: Any = None,
    quantization: Any = None,
) -> LoadedModel:
    """Load a model in eval mode.

        load("timm:vit_tiny_patch16_224?reg_tokens=4&img_size=256@weights.pth")
        load("bundled:digits-vit@epoch-003")

    `spec` is ``timm:NAME``, ``hf:REPO-OR-FOLDER``, ``tost:SIZE``, ``crate:SIZE``, ``bundled:NAME``,
    ``file:CHECKPOINT``, ``py:package.module:function``, or a bare name: one of the catalog (``workbench models``), else
    a timm model, else a hub repository. A model of transformers is of the class that its ``config.json`` names, except
    for heads of pre-training. Cached weights are used without asking the hub; ``HF_HOME`` and ``HF_HUB_OFFLINE`` are
    honoured.

    ``?key=value&key=value`` are arguments of timm's model, values of the configuration of ``hf:``, or arguments of the
    function of ``py:``. That function returns a torch module, or what `wrap` returns; it runs only with ``trust=True``.

    ``@CHECKPOINT``, or `checkpoint`, chooses the weights: a name or epoch of a bundled model (``"epoch-003"``, 3; by
    default the last), a revision of a hub repository, a subfolder of a local folder, a file of weights for ``timm:``,
    ``hf:`` and ``py:``, or a file of the authors for ``tost:`` and ``crate:``, which without one have random weights
    and warn. A prefix that the names in a file share (``model.``, ``net.``) is removed, with a warning.
    `pretrained=False` gives random weights (drawn with seed 0; the checkpoint is then called ``"random"``;
    ``"random-3"`` draws them with seed 3). `device` is ``"cpu"``, ``"cuda"``, ``"auto"`` or any torch device, by
    default the one that ``WORKBENCH_DEVICE`` names, or the CPU; `dtype` a torch floating type or its name, by default
    the type the weights are stored in.

    `name` is what frames and figures call the model in place of its spec, so that two models of one spec differ.

    `revision` is that of a hub repository, by its own name. `attn_implementation` and `device_map` (``"auto"``, or
    submodules and their devices, ``"disk"`` among them) are those of transformers, for ``hf:`` models.
    `quantization` puts the weights of linear layers into 8 or 4 bits: ``"int8"``, ``"int8-dynamic"`` (what goes into
    them as well) or ``"int4"`` by torchao, or for ``hf:`` models any quantization config of transformers.

    Raises UnknownName for names that do not exist, InputError for folders and files that cannot be read, and
    MissingResource for weights that are neither here nor to be had, and for a missing device.
    """
    from workbench.frames.results import RANDOM_WEIGHTS, random_seed
    from workbench.models.source import initialised_from

    target, number = find_device(device), _dtype(dtype)
    plain, options, label = split_spec(spec)
    scheme, short = resolve(plain)
    if label is not None and checkpoint is not None:
        raise InputError(f"{spec} and checkpoint={str(checkpoint)!r} both name a checkpoint; give one")
    label = str(checkpoint) if checkpoint is not None else label
    if revision is not None:
        if label is not None:
            raise InputError(f"checkpoint={label!r} and revision={revision!r} both name a revision; give one")
        label = revision
    if device_map is not None and device is not None:
        raise InputError(
            "device puts the whole model on one device, device_map its parts on several; give one"
        )
    by_transformers: dict[str, Any] = {"attn_implementation": attn_implementation, "device_map": device_map}
    if not (quantization is None or isinstance(quantization, str)):
        by_transformers["quantization_config"] = quantization
    by_transformers = {key: value for key, value in by_transformers.items() if value is not None}
    if revision is not None or by_transformers:
        _need_transformers(spec, scheme, {"revision": revision, **by_transformers})
    initialisation = random_seed(label)
    if initialisation is not None:
        pretrained, label = False, None
    canonical = f"{scheme}:{short}{_written(options)}"
    with initialised_from(initialisation or 0):
        source, origin = _source(
            plain, scheme, short, label, pretrained, number, by_transformers, options, trust=trust
        )
    module = source.module.eval().requires_grad_(False)
    if device_map is None and "quantization_config" not in by_transformers:
        module = module.to(device=target, dtype=number) if number is not None else module.to(target)
    if isinstance(quantization, str):
        module = quantized(module, quantization)
    return LoadedModel(
        module=module,
        spec=canonical,
        checkpoint=f"{RANDOM_WEIGHTS}-{initialisation}" if initialisation else source.checkpoint,
        origin=origin,
        name=name,
        **_feeding(source),
    )


def _feeding(source: Source) -> dict[str, Any]:
    """Return the fields of a loaded model that say what it is and how it is fed."""
    return {
        "family": source.family,
        "modality": source.modality,
        "image": source.image,
        "max_length": source.max_length,
        "meta": source.meta,
        "_load_tokenizer": source.load_tokenizer,
        "_load_processor": source.load_processor,
    }


def wrap(
    module: nn.Module,
    like: str | None = None,
    *,
    transform: Callable[[Any], Tensor] | None = None,
    tokenizer: Any = None,
    name: str | None = None,
) -> LoadedModel:
    """Wrap a torch module as `load` returns a model, so that inputs, analyses, the explorer and sweeps take it.

        mine = workbench.wrap(module, like="timm:vit_tiny_patch16_224", name="before")
        workbench.inputs("bundled:photos", mine, n=2)

    `like` is the spec of a model with the same inputs, whose weights are not read. `transform` makes a tensor (channel,
    height, width) of a PIL image; `tokenizer` is one of transformers. A module of timm needs none of them. `name` is
    the model's name in frames and figures; two models of one name are numbered there. The module stays as it is:
    training mode, gradients, device.

    Raises `InputError` if ``module`` is no module, and the errors of `load` for `like`.
    """
    import torch

    from workbench.models.from_python import described

    if not isinstance(module, torch.nn.Module):
        raise InputError(f"wrap takes a torch module; got a {type(module).__name__}")
    if transform is not None and tokenizer is not None:
        raise InputError("transform is for images and tokenizer for texts; give one")
    source = described(module, None if like is None else _unfilled(like), transform, tokenizer)
    return LoadedModel(
        module=module, spec=type(module).__name__, checkpoint=None, name=name, **_feeding(source)
    )


def split_spec(spec: str) -> tuple[str, dict[str, Any], str | None]:
    """Split ``NAME?key=value&key=value@CHECKPOINT`` into the name, its options and the checkpoint.

    A name that exists as a file or folder is not split. Raises `InputError` for options that cannot be read.
    """
    if not isinstance(spec, str) or "hf-hub:" in spec or "hf_hub:" in spec or _exists(spec):
        return spec, {}, None
    name, at, checkpoint = spec.partition("@")
    name, question, listed = name.partition("?")
    options = {}
    for part in listed.split("&") if question else ():
        key, equals, text = part.partition("=")
        if not equals or not key.strip().isidentifier() or key.strip() in options:
            raise InputError(f"{spec}: options are written ?key=value&key=value, each key once; got {part!r}")
        options[key.strip()] = literal(text.strip())
    if at and not checkpoint.strip():
        raise InputError(f"{spec} names no checkpoint after the @")
    return name, options, checkpoint.strip() or None


def _exists(spec: str) -> bool:
    scheme, _, name = spec.partition(":")
    paths_named = [spec] + ([name] if scheme in _SCHEMES and name else [])
    return any(os.path.exists(os.path.expanduser(path)) for path in paths_named)


def _written(options: Mapping[str, Any]) -> str:
    """Write options as a spec has them."""
    texts = (
        f"{key}={value if isinstance(value, str) else json.dumps(value)}" for key, value in options.items()
    )
    return "?" + "&".join(texts) if options else ""


def architecture_of(spec: str) -> nn.Module:
    """The model's modules without its weights, on the device "meta": shapes that hold no numbers.

    Raises what `load` raises for a name or a file that is wrong, and where only the hub knows the architecture and
    cannot be reached.
    """
    return _unfilled(spec).module


def _unfilled(spec: str) -> Source:
    """Return a model without its weights, on the device "meta", with how it is fed."""
    import torch

    from workbench.models.source import Unfilled

    plain, options, _ = split_spec(spec)
    scheme, name = resolve(plain)
    with torch.device("meta"), Unfilled():
        return _source(plain, scheme, name, None, False, None, {}, options)[0]


def _source(
    spec: str,
    scheme: str,
    name: str,
    label: str | None,
    pretrained: bool,
    number: torch.dtype | None,
    by_transformers: dict[str, Any],
    options: Mapping[str, Any],
    trust: bool = False,
) -> tuple[Source, str | None]:
    """The module as its place gives it, and where that was, if not under its name."""
    from workbench.models import checkpoints, from_authors, from_hugging_face, from_python, from_timm

    _check_options(scheme, options)
    if scheme == "py":
        return from_python.load(name, label, options, trust), None
    if scheme == "timm":
        return from_timm.load(name, label, pretrained, options), None
    if scheme == "hf":
        entry = catalog.find(spec)
        origin = _elsewhere(entry, name) if entry and label is None else None
        try:
            source = from_hugging_face.load(
                origin or name, label, pretrained, number, by_transformers, options
            )
        except (MissingResource, hub.NoSuchRepository) as error:
            better = _unknown_bare_name(spec, error) if ":" not in spec and entry is None else error
            if better is error:
                raise
            raise better from error
        return source, origin
    if scheme in ("tost", "crate"):
        return from_authors.load(scheme, name, label, pretrained), None
    ours = scheme == "bundled"
    path = bundled_checkpoint(name, label) if ours else _one_file(name, label)
    return checkpoints.load(path, path.stem, pretrained, ours=ours), None


def _check_options(scheme: str, options: Mapping[str, Any]) -> None:
    if options and scheme not in ("timm", "hf", "py"):
        raise InputError(f"{scheme}: takes no options; leave {_written(options)} out")


def _need_transformers(spec: str, scheme: str, options: dict[str, Any]) -> None:
    """Raise for options of `load` that only models of transformers take, or that need a package."""
    option_names = [name for name, value in options.items() if value is not None]
    if scheme != "hf":
        raise InputError(
            f"{', '.join(option_names)}: only models of transformers (hf:) take that, and {spec} is {scheme}:"
        )
    if options.get("device_map") is not None:
        require("device_map", "accelerate")


def quantized(module: nn.Module, how: str) -> nn.Module:
    """The module with the weights of its linear layers in 8 or 4 bits."""
    names = {
        "int8": "Int8WeightOnlyConfig",
        "int8-dynamic": "Int8DynamicActivationInt8WeightConfig",
        "int4": "Int4WeightOnlyConfig",
    }
    if how not in names:
        raise UnknownName("quantization", how, names)
    require(f"quantization={how!r}", "torchao")
    torchao: Any = importlib.import_module("torchao.quantization")
    try:
        torchao.quantize_(module, getattr(torchao, names[how])())
    except ImportError as error:  # kernels of 4 bits come in packages of their own
        raise MissingResource(f"quantization={how!r} does not run here: {error}") from error
    return module


def check_name(
    spec: str,
    checkpoint: str | int | None = None,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
) -> None:
    """Raise the errors of `load` that every machine would raise: a name, a folder or file, a device, a type.

    Reads no weights. The hub is asked about a repository that is neither cached nor in the catalog; if the hub
    cannot be reached, a bare name is wrong only if it resembles a known name.
    """
    from workbench.frames.results import is_random
    from workbench.models import from_authors, from_hugging_face, from_python, from_timm
    from workbench.models.checkpoints import require_checkpoint

    _dtype(dtype)
    with suppress(MissingResource):  # the machine that loads may have a GPU
        find_device(device)
    plain, options, label = split_spec(spec)
    scheme, name = resolve(plain)
    _check_options(scheme, options)
    label = label if checkpoint is None else str(checkpoint)
    pretrained = not is_random(label)
    label = label if pretrained else None
    if scheme == "timm":
        from_timm.check(name, label, pretrained)
    elif scheme == "hf":
        if catalog.find(plain) is None:
            from_hugging_face.check(name, label)
            _check_repository(plain, name)
    elif scheme == "py":
        from_python.check(name)
    elif scheme in ("tost", "crate"):
        from_authors.check(scheme, name, label)
    elif scheme == "bundled":
        bundled_checkpoint(name, label)
    else:
        require_checkpoint(_one_file(name, label))


def known_modality(spec: str) -> str | None:
    """``"image"`` or ``"text"`` where that is known before the model is loaded."""
    plain = split_spec(spec)[0]
    scheme, _ = resolve(plain)
    entry = catalog.find(plain)
    return entry.modality if entry is not None else "image" if scheme == "timm" else None


def resolve(spec: str) -> tuple[str, str]:
    """(scheme, name) of a model spec without options and checkpoint; touches neither weights nor network."""
    if not isinstance(spec, str) or not spec.strip():
        description = repr(spec) if isinstance(spec, str) else f"a {type(spec).__name__}"
        raise InputError(
            f"a model is named by a text such as 'bundled:digits-vit', got {description}; give your own module to "
            "workbench.capture, or to workbench.wrap, which makes it a model"
        )
    spec = spec.strip()
    if spec.partition(":")[0] not in _SCHEMES and (entry := catalog.find(spec)) is not None:
        spec = entry.spec
    scheme, colon, name = spec.partition(":")
    if colon and scheme in _SCHEMES:
        if not name:
            raise InputError(f"{spec!r} names no model; write {scheme}:NAME")
        if scheme in ("hf", "timm") and _is_timm(name):
            folder = Path(name).expanduser().is_dir()
            return "timm", f"local-dir:{name}" if folder else name.removeprefix("timm/")
        return scheme, name
    if colon and not Path(spec).exists() and re.fullmatch(r"[a-z]{2,}", scheme):
        raise UnknownName(
            "kind of model",
            f"{scheme}:",
            [f"{name_of_scheme}:" for name_of_scheme in _SCHEMES],
            "before the name",
        )
    path = Path(spec).expanduser()
    if path.suffix in _WEIGHT_SUFFIXES and not path.exists():
        return "file", spec  # its reader says that there is none: no repository ends like a file of weights
    if path.is_dir():
        return ("timm", f"local-dir:{spec}") if _is_timm(spec) else ("hf", spec)
    if path.is_file():
        return "file", spec
    from workbench.core.light_timm import timm

    return ("timm" if timm.is_model(spec) else "hf"), spec


def _is_timm(name: str) -> bool:
    """Whether a hub repository or folder holds one of timm's models, which timm knows best how to build."""
    folder = Path(name).expanduser()
    config = folder / "config.json"
    if folder.is_dir() and not config.is_file():
        return False
    if not config.is_file():
        from workbench.core.light_timm import timm

        return name.startswith("timm/") and timm.is_model(name.removeprefix("timm/").partition(".")[0])
    try:
        about = json.loads(config.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False  # whoever loads it says what is wrong with it
    return isinstance(about, dict) and "architecture" in about and "model_type" not in about


def bundled_checkpoints(name: str) -> dict[str, int]:
    """Name and epoch of every checkpoint of a bundled model, from the first to the last."""
    files = _checkpoint_files(name)
    return {files[epoch].stem: epoch for epoch in sorted(files)}


def bundled_checkpoint(name: str, checkpoint: str | None = None) -> Path:
    """File of one checkpoint of a bundled model; the last one unless `checkpoint` names another."""
    files = _checkpoint_files(name)
    if checkpoint is None:
        return files[max(files)]
    epoch = re.fullmatch(r"(?:epoch-)?0*(\d+)", checkpoint)
    if epoch is None or int(epoch[1]) not in files:
        raise UnknownName(f"checkpoint of bundled:{name}", checkpoint, [path.stem for path in files.values()])
    return files[int(epoch[1])]


def _checkpoint_files(name: str) -> dict[int, Path]:
    """Return epoch → file of a bundled model; never empty."""
    root = paths.data_dir() / "models"
    folder = root / name
    if not (folder / "model.json").is_file():
        aliases = [entry.alias for entry in catalog.bundled_models()]
        raise UnknownName("bundled model", name, aliases, f"in {root}")
    files = {
        int(match[1]): path for path in folder.iterdir() if (match := _CHECKPOINT_FILE.fullmatch(path.name))
    }
    if not files:
        raise MissingResource(
            f"the weights of bundled:{name} are not installed; choose a model that `workbench models` lists as "
            f"bundled, or install the extra 'models' with {install_command('models')}"
        )
    return files


def list_models() -> list[dict[str, str]]:
    """One row per named model: alias, spec, modality, papers, where its weights are, note. Loads none."""
    cached, installed = set(hub.cached_repos()), catalog.installed_bundled()
    rows = []
    for entry in (*catalog.bundled_models(), *catalog.CATALOG):
        scheme, _, name = entry.spec.partition(":")
        if scheme == "bundled":
            weights = "bundled" if name in installed else NOT_INSTALLED
        elif catalog.installed_folder(entry):
            weights = "installed package"
        elif scheme in ("tost", "crate"):
            weights = "random"  # unless a file of trained ones is given as checkpoint
        elif scheme == "timm":
            weights = "cached" if any(repo.startswith(f"timm/{name}.") for repo in cached) else "hub"
        else:
            weights = "cached" if cached & {name, entry.alias} else "hub"
        rows.append(
            {
                "alias": entry.alias,
                "spec": entry.spec,
                "modality": entry.modality,
                "papers": ", ".join(entry.papers),
                "weights": weights,
                "note": entry.note,
            }
        )
    return rows


def _elsewhere(entry: catalog.Entry, name: str) -> str | None:
    """Return another place of a named model's weights: an installed package, an older cached name."""
    folder = catalog.installed_folder(entry)
    if folder is not None:
        return str(folder)
    # Before they had owners, these models were cached as "bert-base-uncased", "gpt2", …
    cached, cached_as_alias = (hub.cached_file(repo, ["config.json"]) for repo in (name, entry.alias))
    return entry.alias if cached_as_alias and not cached else None


def _one_file(name: str, checkpoint: str | None) -> Path:
    if checkpoint is not None:
        raise InputError(f"file:{name} is one checkpoint; leave @{checkpoint} out")
    return Path(name).expanduser()


def _check_repository(spec: str, name: str) -> None:
    """Raise for a repository that the hub has not got; one that it cannot be asked about may be on another machine."""
    if Path(name).expanduser().is_dir() or hub.cached_file(name, ["config.json"]):
        return
    what, problem = f"hf:{name}", hub.obstacle()
    try:
        if problem is not None:
            raise hub.missing(what, name, problem)
        hub.ask(what, name)
    except (MissingResource, hub.NoSuchRepository) as error:
        better = _unknown_bare_name(spec, error) if ":" not in spec else error
        if isinstance(better, InputError):
            raise better from error


def _unknown_bare_name(name: str, error: MissingResource | hub.NoSuchRepository) -> WorkbenchError:
    """For a name without a scheme that nothing here knows: misspelt if a known one is near, else far away."""
    import difflib

    from workbench.core.light_timm import timm

    names = {*catalog.aliases(), *timm.list_models()}
    far = isinstance(error, MissingResource)
    if "/" not in name and (not far or difflib.get_close_matches(name, names, n=1, cutoff=0.8)):
        problem = f"was {hub.obstacle()}" if hub.obstacle() else "does not give it either"
        return UnknownName("model", name, names, f"as hf:{name} it is not cached, and the hub {problem}")
    if not far:
        return error
    return MissingResource(
        f"{name!r} is neither in the catalog (`workbench models`) nor in timm, and {error}"
    )


def default_device() -> str:
    """Return the name of the default device."""
    return os.environ.get(DEVICE) or "cpu"


def find_device(device: str | torch.device | None = None) -> torch.device:
    """The device of this name; without one that of ``WORKBENCH_DEVICE``, or the CPU.

    Raises `InputError` for what torch does not know, and `MissingResource` for what this machine has not got.
    """
    import torch

    device = default_device() if device is None else device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        chosen = torch.device(device)
    except RuntimeError as error:
        raise InputError(
            f"device {device!r} is not one torch knows; take 'cpu', 'cuda', 'cuda:1' or 'auto'"
        ) from error
    if chosen.type == "cuda" and not torch.cuda.is_available():
        raise MissingResource(
            "device 'cuda' was asked for, but torch sees no CUDA device; take 'cpu' or 'auto'"
        )
    if chosen.type == "meta":
        raise InputError("device 'meta' holds shapes without numbers; take 'cpu', 'cuda', 'cuda:1' or 'auto'")
    try:
        torch.empty(0, device=chosen)
    except (RuntimeError, NotImplementedError, AssertionError, ImportError) as error:
        raise MissingResource(
            f"device {device!r} was asked for, but torch has none here; take 'cpu' or 'auto'"
        ) from error
    return chosen


def _dtype(dtype: str | torch.dtype | None) -> torch.dtype | None:
    import torch

    if dtype is None or isinstance(dtype, torch.dtype):
        torch_dtype = dtype
    else:
        short = {
            "fp32": "float32",
            "fp16": "float16",
            "half": "float16",
            "bf16": "bfloat16",
            "fp64": "float64",
        }
        name = str(dtype).removeprefix("torch.")
        torch_dtype = getattr(torch, short.get(name, name), None)
    if dtype is not None and not (isinstance(torch_dtype, torch.dtype) and torch_dtype.is_floating_point):
        raise InputError(
            f"dtype {dtype!r} is not a floating type; take float32, float64, bfloat16 or float16"
        )
    return torch_dtype


def _spread(value: int | tuple[int, ...]) -> str:
    if isinstance(value, int):
        return str(value)
    low, high = min(value), max(value)
    return str(low) if low == high else f"{low}–{high}"
