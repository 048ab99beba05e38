"""Checkpoints of models trained here, bundled ones included: weights and how to use them.

One safetensors file each, which runs no code.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from annotated_types import Ge, Gt, MinLen
from typing_extensions import TypedDict

from workbench.core.errors import InputError, WorkbenchError
from workbench.core.files import atomic_write, check_format, sha256_file
from workbench.core.options import conforming, parsed
from workbench.frames.results import RANDOM_WEIGHTS
from workbench.models.source import ImageFormat, Source, Unfilled, first_lines, require_file, seeded

if TYPE_CHECKING:
    from torch import Tensor, nn
    from transformers import PreTrainedTokenizerBase

FORMAT = 3
"""Format of checkpoints and of ``model.json``."""
_METADATA_KEY = "workbench"
"""Key of the safetensors metadata whose value is the checkpoint's JSON."""


class _Kept(TypedDict):
    """A line of the table of a run's checkpoints."""

    file: str
    sha256: str


class _About(TypedDict, total=False):
    """The keys of a checkpoint's metadata, or of a ``model.json``, that are read; all are optional."""

    format: int
    name: str
    task: str
    attention: str
    architecture: dict[str, Any]
    preprocessing: dict[str, Any]
    classes: list[str]
    recipe: dict[str, Any]
    epoch: int
    complete: bool
    checkpoints: list[_Kept]


class _Images(TypedDict):
    """Preprocessing of images."""

    mean: Annotated[list[float], MinLen(1)]
    std: Annotated[list[Annotated[float, Gt(0)]], MinLen(1)]
    resize: Annotated[int, Ge(1)]


class _Characters(TypedDict):
    """Preprocessing of characters."""

    characters: Annotated[str, MinLen(1)]


class _Sequences(TypedDict, total=False):
    """Preprocessing of sequences: those of words name them."""

    tokens: str
    words: list[str]
    dropped: str


def write_checkpoint(path: str | Path, module: nn.Module | Mapping[str, Tensor], meta: dict[str, Any]) -> str:
    """Write weights and `meta` (a dict that fits in JSON) to `path`; returns the file's sha256.

    The file appears whole or not at all. The same weights and `meta` give the same bytes. A parameter that
    layers share is stored once, under its first name; :func:`load_weights` gives it back to all of them.
    Raises MissingResource if the folder cannot be written.
    """
    from safetensors.torch import save

    state = module if isinstance(module, Mapping) else module.state_dict()
    shared = _shared_names(state)  # safetensors holds no tensor under two names
    tensors = {
        name: tensor.detach().cpu().contiguous() for name, tensor in state.items() if name not in shared
    }
    content = save(tensors, metadata={_METADATA_KEY: json.dumps(meta, sort_keys=True)})
    atomic_write(path, content)
    return hashlib.sha256(content).hexdigest()


def read_checkpoint(path: str | Path, *, ours: bool = False) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Weights and metadata of a file written by :func:`write_checkpoint`; ``ours`` came with the package.

    The metadata holds ``architecture`` (for :func:`workbench.models.architectures.build`), ``task``, ``attention``,
    ``epoch``, ``metrics``, ``preprocessing``, ``classes``, ``recipe``, ``seed``, ``command`` and
    ``versions``. Raises InputError if the file is missing, damaged, or was not written by ``workbench
    train``.
    """
    from safetensors import SafetensorError, safe_open

    path = Path(path).expanduser()
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    except (SafetensorError, OSError) as error:
        require_checkpoint(path)  # what is missing, or of another kind, it says better
        raise InputError(
            f"{path} is not a readable safetensors file ({error}); it may be truncated: copy it again, or run the "
            "training command once more"
        ) from error
    if not ours:
        _check_unchanged(path)
    if _METADATA_KEY not in metadata:
        raise InputError(
            f"{path} holds weights but not how to rebuild their model (no {_METADATA_KEY!r} in its metadata); "
            "only files written by `workbench study train` do. For a folder of Hugging Face weights use hf:FOLDER"
        )
    try:
        meta = parsed(metadata[_METADATA_KEY])
    except ValueError as error:
        raise InputError(f"{path}: its metadata {_METADATA_KEY!r} is not valid JSON ({error})") from error
    check_description(meta, str(path))
    return state, meta


def _check_unchanged(path: Path) -> None:
    """Raise InputError for a checkpoint whose hash differs from the one in the table of its run."""
    try:
        run = parsed((path.parent / "model.json").read_bytes())
    except (OSError, ValueError):
        return  # a checkpoint on its own; who opens the run says what is wrong with its table
    table = run.get("checkpoints") if isinstance(run, dict) else None
    for line in table if isinstance(table, list) else ():
        if not isinstance(line, dict) or line.get("file") != path.name or "sha256" not in line:
            continue
        if line["sha256"] != sha256_file(path):
            raise InputError(
                f"{path} is not the file that its run wrote: its sha256 is not that in {path.parent / 'model.json'}; "
                "copy it again, or move it into another folder if you changed it"
            )


def check_description(about: dict[str, Any], origin: str = "the checkpoint") -> None:
    """Check the description of a model in a checkpoint or a ``model.json``.

    Raises InputError for another format, and for a description with entries of the wrong kind.
    """
    _held(_About, about, origin)
    check_format(origin, "format", about.get("format", FORMAT), FORMAT)


def _held(kind: Any, content: Any, origin: str) -> Any:
    try:
        return conforming(kind, content)
    except ValueError as error:
        raise InputError(
            f"{origin}: what it says of its model does not hold ({error}); take the file as `workbench study train` "
            "wrote it"
        ) from error


def restore(path: str | Path, *, ours: bool = False) -> tuple[nn.Module, dict[str, Any]]:
    """The model of a checkpoint, in eval mode on the CPU, and its metadata; ``ours`` came with the package.

    Raises InputError where :func:`read_checkpoint` does, if the metadata name two attention variants, and if
    the weights do not fit the architecture they name.
    """
    from workbench.models.architectures import attention_of, build

    state, meta = read_checkpoint(path, ours=ours)
    architecture = meta.get("architecture", {})
    if not ours:
        _check_size(architecture, state, str(path))
    module = build(architecture)
    built = attention_of(architecture)
    if (named := meta.get("attention", built)) != built:
        raise InputError(
            f"{path} says of itself that its attention is {named!r}, but its architecture has {built!r}; one of them "
            "was changed after training: take the file as `workbench study train` wrote it"
        )
    load_weights(module, state, origin=str(path), attention=built)
    return module.eval(), meta


def _check_size(architecture: dict[str, Any], state: Mapping[str, Tensor], origin: str) -> None:
    """Raise InputError for an architecture much larger than the weights, which would only fill the memory."""
    import torch

    from workbench.models.architectures import build

    size = sum(value.numel() for value in state.values())
    try:
        with torch.device("meta"), Unfilled():
            wanted = sum(value.numel() for value in build(architecture).state_dict().values())
    except WorkbenchError:
        raise
    except Exception as error:  # torch fails at sizes and options of any kind in whatever way that ends
        raise InputError(
            f"{origin}: its architecture cannot be built ({first_lines(error)}); take the file as `workbench study "
            "train` wrote it"
        ) from error
    if wanted > 4 * size + 1_000_000:
        raise InputError(
            f"{origin} does not fit its architecture: it holds {size:,} weights, and that has {wanted:,}; take the "
            "file as `workbench study train` wrote it"
        )


def load_weights(
    module: nn.Module,
    state: Mapping[str, Tensor],
    origin: str = "the checkpoint",
    *,
    attention: str | None = None,
) -> None:
    """Load all of `state` into `module`.

    InputError names both attention variants, widths or numbers of layers where they differ, and lists the
    first names and shapes that do not fit. `attention` is the variant that the module was built with, if
    known: modules do not distinguish all variants.
    """
    model_state = module.state_dict()
    state = dict(state)
    for name, first in _shared_names(model_state).items():
        if first in state:
            state.setdefault(name, state[first])
    problems = [f"{name} is missing" for name in model_state if name not in state]
    problems += [f"{name} is not part of the model" for name in state if name not in model_state]
    problems += [
        f"{name} is {tuple(tensor.shape)} in the file and {tuple(model_state[name].shape)} in the model"
        for name, tensor in state.items()
        if name in model_state and tensor.shape != model_state[name].shape
    ]
    if problems:
        more = f", and {len(problems) - 3} more" if len(problems) > 3 else ""
        listed = f"{'; '.join(problems[:3])}{more}"
        different = _differences(module, state, attention)
        if different:
            listed = f"{' and '.join(different)}; take the checkpoint that was trained so ({listed})"
        raise InputError(f"{origin} does not fit its architecture: {listed}")
    module.load_state_dict(state)


def _differences(module: nn.Module, state: Mapping[str, Tensor], attention: str | None) -> list[str]:
    """Describe the differences between the weights' attention and the module's."""
    from workbench.attention.recognition import module_variants, recognise_attention

    saved, wanted = recognise_attention(state), recognise_attention(module.state_dict())
    problems = []
    if saved and wanted and len(saved) != len(wanted):
        problems.append(f"the weights have {len(saved)} layers of attention, the model has {len(wanted)}")
    both = [path for path in wanted if path in saved]
    for path in both:
        theirs, ours = saved[path].variants, wanted[path].variants
        if theirs and ours and saved[path].form != wanted[path].form:
            exact = module_variants(module.get_submodule(path), ours)
            ours = (attention,) if attention in exact else exact or ours
            problems.append(
                f"the weights of {path} are those of {_either(theirs)}, the model has {_either(ours)}"
            )
            break
    for path in both:
        if saved[path].width != wanted[path].width:
            problems.append(f"the weights are {saved[path].width} wide, the model is {wanted[path].width}")
            break
    return problems


def _either(names: tuple[str, ...]) -> str:
    *most, last = [repr(name) for name in names]
    return f"{', '.join(most)} or {last}" if most else last


def _shared_names(state: Mapping[str, Tensor]) -> dict[str, str]:
    """Names under which a tensor stands again, such as a parameter that layers share → its first name."""
    first: dict[tuple[Any, ...], str] = {}
    shared = {}
    for name, tensor in state.items():
        memory = (tensor.device, tensor.data_ptr(), tensor.shape, tensor.stride())
        if tensor.numel() and first.setdefault(memory, name) != name:
            shared[name] = first[memory]
    return shared


def require_checkpoint(path: Path) -> None:
    """Raise `InputError` unless there is a file of the kind that `workbench study train` writes; reads none of it."""
    require_file(path)
    if path.suffix != ".safetensors":
        raise InputError(
            f"{path.name} is no checkpoint of `workbench study train`, which writes .safetensors; for weights of a "
            f"timm model give timm:NAME@{path.name}"
        )


def load(path: Path, checkpoint: str | None, pretrained: bool, *, ours: bool = False) -> Source:
    """A model from a file that ``workbench study train`` wrote, ``ours`` with the package; `checkpoint` is its name."""
    from workbench.attention.bilateral import BilateralAttention
    from workbench.models.architectures import build

    if pretrained:
        module, meta = restore(path, ours=ours)
        for layer in module.modules():
            if isinstance(layer, BilateralAttention):
                layer.precompute()
    else:
        meta = read_checkpoint(path, ours=ours)[1]
        with seeded():
            module = build(meta.get("architecture", {}))
        checkpoint = RANDOM_WEIGHTS
    about = meta.get("preprocessing", {})
    architecture = meta["architecture"]
    if "characters" in about:
        return _character_model(path, module, checkpoint, meta)
    if architecture["name"] == "sequence":
        return _sequence_model(module, checkpoint, _held(_Sequences, about, str(path)))
    if architecture["name"] == "decision":
        return Source(module, "decision", "other", checkpoint)
    preprocessing = _held(_Images, about, str(path))
    mean, std, side = tuple(preprocessing["mean"]), tuple(preprocessing["std"]), preprocessing["resize"]
    image = ImageFormat((side, side), len(mean), mean, std, recorded=True)
    return Source(module, architecture["name"], "image", checkpoint, image, meta=meta)


def _character_model(path: Path, module: Any, checkpoint: str | None, meta: dict[str, Any]) -> Source:
    from workbench.models.tokenizer import SPECIAL, character_tokenizer

    characters = _held(_Characters, meta["preprocessing"], str(path))["characters"]
    limit = getattr(module, "max_length", None)
    if not hasattr(module, "get_input_embeddings"):
        raise InputError(
            f"{path} names characters, and its architecture {meta['architecture']['name']} reads none"
        )
    has, needs = module.get_input_embeddings().num_embeddings, len(characters) + len(SPECIAL)
    if has != needs:
        raise InputError(
            f"{path} names {len(characters)} characters, which with {' and '.join(SPECIAL)} make {needs} tokens, but "
            f"its model knows {has}"
        )
    name = meta["architecture"]["name"]
    return Source(
        module,
        name,
        "text",
        checkpoint,
        max_length=limit,
        load_tokenizer=lambda: character_tokenizer(characters, limit),
        meta=meta,
    )


def _sequence_model(module: Any, checkpoint: str | None, about: dict[str, Any]) -> Source:
    """A classifier of sequences: texts are fed to one of bytes or words, tensors of one's own to the others."""
    from workbench.models.tokenizer import byte_tokenizer, word_tokenizer

    limit = module.max_length
    tokenizers: dict[str, Callable[[], PreTrainedTokenizerBase]] = {
        "bytes": lambda: byte_tokenizer(limit),
        "words": lambda: word_tokenizer(about.get("words", ()), about.get("dropped", ""), limit),
    }
    load = tokenizers.get(about.get("tokens", ""))
    if load is None:
        return Source(module, "sequence", "other", checkpoint)
    return Source(module, "sequence", "text", checkpoint, max_length=limit, load_tokenizer=load)
