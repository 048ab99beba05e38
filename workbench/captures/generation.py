"""``capture_generation``: a model continues its prompts, and the query, attention and logits of every token are kept.

The model's own ``generate`` runs once, with its cache. Every forward pass inside is a step: its last query is the one
whose logits the step's token was chosen from. Of a step that query's row is kept, and the keys that are new; the others
are compared with those that were there before, so that attention over a cache that changes what it holds is refused,
and the keys that a sliding window lets go of keep their places.
"""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

import torch
from annotated_types import Ge
from torch import Tensor, nn

from workbench.captures.capturing import (
    Capture,
    batch_on_device,
    capture,
    check_sites,
    identity_of,
    noting_batch_shapes,
    owned_tensors,
    refuse_meta,
    switched,
    tensors_and_inputs,
    visible_modules,
    watching,
)
from workbench.captures.effective import EFFECTIVE
from workbench.captures.keeper import Keeper, tensors_in
from workbench.captures.labelled_tokens import TokenInfo, tokens_by_id
from workbench.captures.layer_records import DEFAULT_SITES, SITES, STREAM, Call, Generated, LayerRecord
from workbench.captures.layout import is_library_model, module_of
from workbench.captures.position_path import POSITION
from workbench.captures.projections import PROJ_OUT
from workbench.captures.recorder import Recorder
from workbench.captures.token_labels import readable_token, token_info
from workbench.core.errors import IncompleteCapture, InputError
from workbench.core.options import Numbers, checked, parse_numbers, ranges

_MODES = ("greedy_search", "sample")
_AFTERWARDS = "generate first, and capture the whole text in one pass: capture(model, model.generate(…))"


@checked
def capture_generation(
    model: Any,
    batch: Any,
    max_new_tokens: Annotated[int, Ge(1)] = 20,
    layers: Numbers = None,
    sites: str | Iterable[str] = DEFAULT_SITES,
    check: bool = True,
    logits: bool = True,
    **options: Any,
) -> Capture:
    """Continue the prompts in ``batch`` by ``model.generate``, and return what every generated token was chosen by.

        captured = capture_generation(model, batch, max_new_tokens=12, do_sample=True)
        captured[3].attn  # (batch, head, step, key)
        captured.generated.logits  # (batch, step, vocabulary)

    A query is a step: that of the token before the generated one, whose logits chose it. ``k`` and ``v`` are those of
    the layer's cache in the end, one for each token but the last, which was never read; ``attn`` is 0 for keys that
    were not there yet. All this equals the last rows of one capture of ``captured.generated.batch``, the whole text.
    The generated tokens are those of ``generate`` without a capture; ``options`` are passed to it.

    model: what ``load`` returned or a model of transformers that generates; your causal module without
        ``generate``, and so without a cache, is continued by its likeliest tokens and captured in one pass.
    batch: ids (batch, token), a dict or any other mapping (what a tokenizer returns), what ``inputs`` returned, or
        a list of texts. Prompts of different lengths are padded on the left.
    layers, sites, check: as in ``capture``.
    logits: keep them.

    An exception inside, also Ctrl-C, is raised unchanged; its attribute ``captured`` is the capture until then.

    Raises InputError for decoding whose steps are not one query of every input (beams, assisted and contrastive
    decoding), and what `capture` raises; IncompleteCapture for a cache whose keys change, as quantised ones do.
    """
    module = module_of(model)
    name = getattr(model, "spec", None) or type(module).__name__
    sites = check_sites(sites)
    for site in {POSITION, PROJ_OUT, EFFECTIVE}.intersection(sites):
        raise InputError(f"{site!r} is followed through a whole text: {_AFTERWARDS}")
    tensors, chosen_inputs = tensors_and_inputs(batch, model)
    tokens = getattr(chosen_inputs, "tokens", None)
    arguments = batch_on_device(tensors, module)
    refuse_meta(module, name)
    named = not isinstance(arguments, Tensor)
    if isinstance(arguments, Tensor):
        arguments = {"input_ids": arguments}
    if not isinstance(arguments, dict):
        raise InputError("prompts are ids (batch, token), a mapping of tensors, or what inputs() returned")
    if not any(tensor.numel() for tensor in tensors_in(arguments)):
        raise InputError("there are no prompts: the batch is empty")
    if getattr(module, "generation_config", None) is not None:  # of transformers
        _check_decoding(name, module, {**arguments, **options})
        if not getattr(module.config, "is_encoder_decoder", False):
            arguments, tokens = _padded_left(arguments, tokens)
        run = _Generation(model, module, name, arguments, layers, sites, check, logits, tokens)
        return run.run(max_new_tokens, options)
    if options:
        raise InputError(
            f"{name} has no generate as models of transformers have it, and is continued by its likeliest tokens; "
            f"leave out {', '.join(options)}"
        )
    ids, mask = arguments.get("input_ids"), arguments.get("attention_mask")
    if not isinstance(ids, Tensor) or ids.ndim != 2 or ids.is_floating_point():
        raise InputError(f"{name} is continued from ids (batch, token); the batch has none")
    if isinstance(mask, Tensor) and not bool(mask.all()):
        raise InputError(
            f"{name} has no cache to continue padded prompts from: give one prompt, or several of one "
            "length, such as inputs(…, max_length=16) cuts them"
        )

    def batch_of(all_ids: Tensor) -> Any:
        return {"input_ids": all_ids} if named else all_ids

    sequences = _likeliest(name, module, ids, batch_of, max_new_tokens)
    captured = capture(model, batch_of(sequences[:, :-1]), layers, dict.fromkeys([*sites, "mask"]), check)
    return _rows_of_steps(model, name, captured, sequences, ids.shape[1], logits, tokens)


def steps_of(captured: Capture, step: int, rows: Tensor) -> list[tuple[LayerRecord, TokenInfo | None]]:
    """Return the layers of some inputs at one step, with one query and its keys, and the tokens of each."""
    generated = captured.generated
    assert generated is not None
    seen, layers = generated.prompt_tokens + step, []
    for record in captured:
        changed: dict[str, Any] = {}
        for site in ("q", "head_out", "input", *STREAM):
            value = getattr(record, site)
            if value is not None:
                changed[site] = value[rows].narrow(-2, step, 1)
        keys = seen if record.source == "self" else (record.counts or (1, seen))[1]
        for site in ("k", "v"):
            value = getattr(record, site)
            if value is not None:
                changed[site] = value[rows][:, :, :keys]
        for site in ("attn", "mask"):
            value = getattr(record, site)
            if value is not None:
                value = value[rows] if len(value) > 1 else value
                changed[site] = value.narrow(2, step if value.shape[2] > 1 else 0, 1)[..., :keys]
        tokens = None if captured.tokens is None else _tokens_at(captured.tokens, rows, seen)
        if tokens is not None and record.source == "cross":
            encoder_tokens = captured.tokens.streams.get("encoder") if captured.tokens is not None else None
            fits = (
                encoder_tokens is not None
                and encoder_tokens.count == keys
                and len(encoder_tokens) == len(captured.tokens or ())
            )
            others = (
                _tokens_at(encoder_tokens, rows, keys)
                if fits and encoder_tokens is not None
                else _numbered(rows, keys)
            )
            tokens = replace(_tokens_at(tokens, torch.arange(len(rows)), seen, seen - 1), keys=others)
        layers.append((replace(record, counts=(1, keys), **changed), tokens))
    return layers


def _tokens_at(tokens: TokenInfo, rows: Tensor, stop: int, start: int = 0) -> TokenInfo:
    """Some tokens of some inputs."""
    cut, places = slice(start, stop), rows.tolist()
    return TokenInfo(
        [tokens.labels[i][cut] for i in places],
        [tokens.kinds[i][cut] for i in places],
        tokens.grid,
        tokens.mask[rows][:, cut],
    )


def _numbered(rows: Tensor, count: int) -> TokenInfo:
    return tokens_by_id(torch.arange(count).expand(len(rows), count), None, "token")


# What is asked ---------------------------------------------------------------------------------------------


def _check_decoding(name: str, module: Any, options: Mapping[str, Any]) -> None:
    """Raise InputError for decoding whose forward passes are not one token of every input each."""
    config = copy.copy(options.get("generation_config") or module.generation_config)
    for key, value in options.items():
        if hasattr(config, key):
            setattr(config, key, value)
    mode = str(getattr(config.get_generation_mode(options.get("assistant_model")), "value", ""))
    if mode not in _MODES or options.get("custom_generate") is not None:
        raise InputError(
            f"{name}: in {(mode or 'custom decoding').replace('_', ' ')} a step is not one query of every input; "
            f"leave it out (greedy search and sampling are followed), or {_AFTERWARDS}"
        )
    refused = {
        "use_cache": config.use_cache is False,
        "prefill_chunk_size": getattr(config, "prefill_chunk_size", None) is not None,
        "guidance_scale": getattr(config, "guidance_scale", None) not in (None, 1),
        "inputs_embeds": options.get("inputs_embeds") is not None,
    }
    for option in (option for option, is_set in refused.items() if is_set):
        raise InputError(
            f"{name}: with {option} the passes are not the steps; leave it out, or {_AFTERWARDS}"
        )
    cache = options.get("past_key_values")
    if cache is not None and int(cache.get_seq_length()):
        raise InputError(
            f"{name}: past_key_values holds {int(cache.get_seq_length())} tokens whose keys were not seen; give an "
            "empty cache, and the whole prompt"
        )


def _padded_left(
    arguments: dict[str, Any], tokens: TokenInfo | None
) -> tuple[dict[str, Any], TokenInfo | None]:
    """Prompts with their padding before them, where generated tokens can follow them."""
    ids, mask = arguments.get("input_ids"), arguments.get("attention_mask")
    if not isinstance(ids, Tensor) or not isinstance(mask, Tensor) or mask.shape != ids.shape:
        return arguments, tokens
    moves = mask.bool().long().flip(1).argmax(1).tolist()  # how much padding follows the last real token
    if not any(moves):
        return arguments, tokens
    arguments = {
        key: torch.stack([row.roll(move, 0) for row, move in zip(value, moves, strict=True)])
        if isinstance(value, Tensor) and value.shape[:2] == ids.shape
        else value
        for key, value in arguments.items()
    }
    if tokens is not None:

        def rolled(rows: list[list[str]]) -> list[list[str]]:
            return [
                row[len(row) - move :] + row[: len(row) - move] for row, move in zip(rows, moves, strict=True)
            ]

        tokens = TokenInfo(
            rolled(tokens.labels),
            rolled(tokens.kinds),
            tokens.grid,
            torch.stack([row.roll(move, 0) for row, move in zip(tokens.mask, moves, strict=True)]),
        )
    return arguments, tokens


# Following the cache ---------------------------------------------------------------------------------------


@dataclass
class _KeySpan:
    """The keys of one step: ``visible`` selects those of the call, the first at ``start``; ``new`` selects new ones."""

    start: int
    visible: slice
    new: slice
    length: int


@dataclass(eq=False)
class _Layer:
    """The rows of one layer, and the keys and values that its cache has come to hold."""

    where: str
    record: LayerRecord | None = None
    rows: list[tuple[LayerRecord, _KeySpan]] = field(default_factory=list)
    k: Tensor | None = None
    v: Tensor | None = None
    length: int = 0
    allocated: bool = False
    """Whether the cache has its full size from the beginning, with empty places masked."""

    def locate(self, call: Call, queries: int) -> _KeySpan:
        """Find a step's keys among those that were there before; they must be the same."""
        size = call.k.shape[2]
        if self.k is None:
            self.allocated = size > queries and _hides_from(call, queries)
            live = queries if self.allocated else size
            return _KeySpan(0, slice(0, live), slice(0, live), live)
        if queries != 1:
            raise self.unlike(f"a step reads {queries} tokens at once")
        before, grown = self.k[:, :, : self.length], self.length + 1
        if size == self.length and call.k.shape == before.shape and torch.equal(call.k, before):
            return _KeySpan(
                0, slice(0, size), slice(0, 0), size
            )  # keys of something else: of an encoder's tokens
        if self.allocated and size >= grown:
            span = _KeySpan(0, slice(0, grown), slice(grown - 1, grown), grown)
            if size > grown and not _hides_from(call, grown):
                raise self.unlike("the model attends to places that are empty yet")
        elif size <= grown:
            span = _KeySpan(grown - size, slice(0, size), slice(size - 1, size), grown)
        else:
            raise self.unlike(f"it gives {size} keys for {grown} tokens")
        previous = before[:, :, span.start :]
        if previous.shape[0] != call.k.shape[0] or not torch.equal(
            call.k[:, :, span.visible][:, :, :-1], previous
        ):
            raise self.unlike("its keys are not those that were put into it")
        return span

    def unlike(self, how: str) -> IncompleteCapture:
        return IncompleteCapture(
            f"{self.where}: the cache must keep a token's key the same at every step; here {how} "
            f"(a quantised, cropped or reordered cache). Take the model's default cache, or {_AFTERWARDS}"
        )

    def hold(self, call: Call, span: _KeySpan, values: bool) -> None:
        """Keep what is new of the cache."""
        self.k = _grown(self.k, self.length, call.k[:, :, span.new])
        if values:
            self.v = _grown(self.v, self.length, call.v[:, :, span.new])
        self.length = span.length


def _grown(buffer: Tensor | None, length: int, new: Tensor) -> Tensor:
    """A tensor with ``new`` from place ``length`` on, of up to double the size that is needed."""
    if buffer is None:
        return new.clone(memory_format=torch.contiguous_format)
    if length + new.shape[2] > buffer.shape[2]:
        larger = buffer.new_empty(*buffer.shape[:2], 2 * (length + new.shape[2]), buffer.shape[3])
        larger[:, :, :length] = buffer[:, :, :length]
        buffer = larger
    buffer[:, :, length : length + new.shape[2]] = new
    return buffer


def _hides_from(call: Call, start: int) -> bool:
    """Whether no query attends to any key from ``start`` on."""
    if call.attn is not None:
        return not bool(call.attn[..., start:].any())
    if call.mask is None or call.mask.shape[-1] == 1:
        return False
    rest = call.mask[..., start:]
    visible = rest if rest.dtype == torch.bool else rest > torch.finfo(rest.dtype).min / 10
    return not bool(visible.any())


def _last_query(call: Call) -> Call:
    """Return the call of its last query."""
    if call.q.shape[2] == 1 or call.recompute is not None:
        return call
    mask = call.mask
    return replace(
        call,
        q=call.q[:, :, -1:],
        head_out=call.head_out[:, :, -1:],
        mask=mask[..., -1:, :] if mask is not None and mask.shape[-2] > 1 else mask,
        attn=None if call.attn is None else call.attn[:, :, -1:],
    )


# Steps -----------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class _Steps:
    """The passes of one model that generates: the last query of each is recorded.

    Passes of a part of the model, an encoder before the first step, are counted and not recorded, so that layers have
    the numbers that they have in one capture of everything.
    """

    recorder: Recorder
    logits: list[Tensor] | None = None
    layers: dict[int, _Layer] = field(default_factory=dict)
    opener: nn.Module | None = None
    """The outermost module that runs."""
    before: int = 0
    """Layers that ran before the first step."""
    queries: int = 0
    places: dict[int, _KeySpan] = field(default_factory=dict)
    steps: int = 0
    prompt_tokens: int = 0
    """How many tokens the first step read."""
    mask: Tensor | None = None
    """The mask of the prompts' tokens as the model was given it."""
    sources: dict[int, str] = field(default_factory=dict)
    once: list[int] = field(default_factory=list)
    """Layers that ran only in the first step."""

    def __post_init__(self) -> None:
        self.recorder.rows = self
        self.recorder.visits.busy = True  # between passes nothing is the model's

    # Passes -----------------------------------------------------------------------------------------------

    def enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self.opener is None:
            recorder, self.opener = self.recorder, module
            recorder.visits.busy = False
            recorder.visits.frames.clear()
            recorder.records.clear()
            recorder.numbers.begin(self.before)
            recorder.only_counts = module is not recorder.modules[""]
            self.places.clear()
            if not recorder.only_counts and not self.steps:
                self.prompt(kwargs)
        self.recorder.enter(module, args, kwargs)

    def prompt(self, arguments: Mapping[str, Any]) -> None:
        """Note what the first step reads."""
        ids = arguments.get("decoder_input_ids", arguments.get("input_ids"))
        self.prompt_tokens = ids.shape[1] if isinstance(ids, Tensor) else 0
        mask = None if "decoder_input_ids" in arguments else arguments.get("attention_mask")
        if isinstance(mask, Tensor) and mask.ndim == 2 and mask.shape[1] == self.prompt_tokens:
            self.mask = mask

    def leave(self, module: nn.Module, output: Any) -> None:
        recorder = self.recorder
        recorder.leave(module, output)
        if module is not self.opener or recorder.visits.frames:
            return
        self.opener, recorder.visits.busy = None, True
        if recorder.only_counts:
            self.before = self.before if self.steps else recorder.numbers.count
        elif output is not None:
            self.step(output)

    def step(self, output: Any) -> None:
        """A pass of the model is over: take its rows."""
        recorder = self.recorder
        records = recorder.selected()
        if not self.steps:
            recorder.chosen = parse_numbers("layer", recorder.chosen, recorder.numbers.count)
            recorder.last, recorder.numbers.repeats = 0, True
            self.prompt_tokens = self.prompt_tokens or self.queries
        kept = {record.index for record in records}
        if self.steps == 1:
            self.once = sorted(set(self.layers) - kept)
        self.layers = {index: layer for index, layer in self.layers.items() if index in kept}
        for record in records:
            for site in ("input", *STREAM):
                value = getattr(record, site)
                if value is not None:
                    setattr(record, site, value[:, -1:].clone())
            self.layers[record.index].rows.append((record, self.places[record.index]))
        if self.logits is not None:
            self.logits.append(_logits(recorder.name, output)[:, -1].clone())
        self.steps += 1

    # Rows of one pass -------------------------------------------------------------------------------------

    def narrow(self, call: Call) -> Call:
        self.queries = call.q.shape[2]
        return _last_query(call)

    def trim(self, record: LayerRecord, call: Call, attn: Tensor | None) -> tuple[Call, Tensor | None]:
        layer = self.layers.setdefault(
            record.index, _Layer(f"{self.recorder.name}, layer {record.index} ({record.path})")
        )
        span = layer.locate(call, self.queries)
        layer.hold(call, span, "v" in self.recorder.sites)
        self.places[record.index] = span
        mask = call.mask
        if mask is not None and mask.shape[-1] > 1:
            mask = mask[..., span.visible]
        record.extra = {}  # of all tokens
        record.source = self.sources.setdefault(record.index, record.source)
        # The layer has the keys and values.
        row = replace(call, q=call.q[:, :, -1:], k=None, v=None, mask=mask, head_out=call.head_out[:, :, -1:])
        return row, None if attn is None else attn[:, :, -1:, span.visible]

    def joined(self, steps: int) -> list[LayerRecord]:
        """Return the layers, with the rows of the first ``steps``."""
        sites = self.recorder.sites
        return [_joined(layer, layer.rows[:steps], sites) for _, layer in sorted(self.layers.items())]


def _logits(name: str, output: Any) -> Tensor:
    logits = getattr(output, "logits", output)
    logits = logits[0] if isinstance(logits, tuple) else logits
    if not isinstance(logits, Tensor) or logits.ndim != 3:
        raise InputError(
            f"{name} returns no logits (batch, token, vocabulary) of the next token: take a causal language model"
        )
    return logits


def _joined(layer: _Layer, rows: list[tuple[LayerRecord, _KeySpan]], sites: tuple[str, ...]) -> LayerRecord:
    """One layer of all steps, of the rows of each."""
    records, places = [record for record, _ in rows], [span for _, span in rows]
    first, keys = records[0], places[-1].length
    scales = [record.scale for record in records]
    if any(not _same(scale, scales[0]) for scale in scales):
        raise IncompleteCapture(
            f"{layer.where}: the scale of the scores differs between steps; {_AFTERWARDS}"
        )
    changed: dict[str, Any] = {
        "rows_sum_to_one": all(record.rows_sum_to_one for record in records),
        "counts": (len(rows), keys),
    }
    for site, axis in {"q": 2, "head_out": 2, **dict.fromkeys(("input", *STREAM), 1)}.items():
        values = [getattr(record, site) for record in records]
        if values[0] is not None:
            changed[site] = torch.cat(values, dim=axis)
    for site, keys_or_values in (("k", layer.k), ("v", layer.v)):
        if site in sites and keys_or_values is not None:
            changed[site] = keys_or_values[:, :, :keys]
    if first.attn is not None:
        changed["attn"] = _side_by_side([record.attn for record in records], places, keys, 0)
    if "mask" in sites:
        changed["mask"] = _masks([record.mask for record in records], places, keys)
    return replace(first, **changed)


def _same(a: Any, b: Any) -> bool:
    return torch.equal(a, b) if isinstance(a, Tensor) and isinstance(b, Tensor) else a is b or a == b


def _side_by_side(rows: list[Any], places: list[_KeySpan], keys: int, elsewhere: Any) -> Tensor:
    """Rows (batch, head, 1, key) as the queries of one tensor, with ``elsewhere`` for the keys that a row lacks."""
    batch, heads = (max(row.shape[axis] for row in rows) for axis in (0, 1))
    joined = rows[0].new_full((batch, heads, len(rows), keys), elsewhere)
    for number, (row, span) in enumerate(zip(rows, places, strict=True)):
        width = span.visible.stop - span.visible.start
        joined[:, :, number, span.start : span.start + width] = row[:, :, 0]
    return joined


def _masks(masks: list[Tensor | None], places: list[_KeySpan], keys: int) -> Tensor | None:
    """The masks of all steps; None where every query sees every key."""
    complete = all(span.start == 0 and span.length == keys for span in places)
    tensors = [mask for mask in masks if mask is not None]
    if not tensors and complete:
        return None
    added = next((mask for mask in tensors if mask.dtype != torch.bool), None)
    kind = torch.bool if added is None else added.dtype
    device = tensors[0].device if tensors else None
    rows = []
    for mask in masks:
        if mask is None:
            row = torch.ones(1, 1, 1, 1, dtype=torch.bool, device=device)
        else:
            row = mask.reshape((1,) * (4 - mask.ndim) + tuple(mask.shape))
        if kind != torch.bool and row.dtype == torch.bool:
            row = torch.zeros(row.shape, dtype=kind, device=device).masked_fill(~row, -math.inf)
        rows.append(row)
    return _side_by_side(rows, places, keys, False if added is None else -math.inf)


# The model's own generate ----------------------------------------------------------------------------------


class _Sequences:
    """A stopping criterion that stops nothing, and notes the tokens as they are chosen."""

    def __init__(self) -> None:
        self.ids: Tensor | None = None

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:
        self.ids = input_ids
        return torch.zeros(input_ids.shape[0], dtype=torch.bool, device=input_ids.device)


@dataclass(eq=False)
class _Generation:
    """One run of ``generate``, and the capture that it becomes."""

    model: Any
    module: Any
    name: str
    arguments: dict[str, Any]
    layers: Numbers
    sites: tuple[str, ...]
    check: bool
    keep_logits: bool
    prompt_info: TokenInfo | None

    def run(self, most: int, options: dict[str, Any]) -> Capture:
        from transformers import StoppingCriteriaList

        modules = visible_modules(self.module, self.name)
        chosen = parse_numbers("layer", self.layers)
        keeper = Keeper([*owned_tensors(modules), *tensors_in(self.arguments)], copy=True)
        recorder = Recorder(modules, self.name, keeper, chosen, self.sites, self.check)
        steps = _Steps(recorder, [] if self.keep_logits else None)
        chosen_tokens = _Sequences()
        criteria = StoppingCriteriaList([*(options.pop("stopping_criteria", None) or []), chosen_tokens])
        ended = options.get("generation_config") or self.module.generation_config
        ends = options.get("eos_token_id", getattr(ended, "eos_token_id", None))
        try:
            with watching(recorder, steps, cached=True), noting_batch_shapes(self.name, self.arguments):
                result = self.module.generate(
                    **self.arguments, max_new_tokens=most, stopping_criteria=criteria, **options
                )
            strict = self.module is not self.model or is_library_model(self.module)
            not_run = recorder.completeness.check(recorder.numbers.count, strict) if self.check else []
        except BaseException as stopped:
            partial = None if chosen_tokens.ids is None else self.capture(steps, chosen_tokens.ids, ends)
            if partial is not None and partial.generated is not None:
                message = (
                    f"stopped by {type(stopped).__name__} after {partial.generated.steps} of {most} tokens"
                )
                partial.notes.append(message)
                stopped.captured = partial  # ty: ignore[missing-attribute] - exceptions take attributes
                stopped.add_note(
                    f"{self.name} was {message}; the capture until then is its attribute 'captured'"
                )
            raise
        sequences, returned = chosen_tokens.ids, getattr(result, "sequences", result)
        assert sequences is not None  # a token was chosen
        if returned.shape[1] < sequences.shape[1] and torch.equal(
            returned, sequences[:, : returned.shape[1]]
        ):
            sequences = returned  # one that was chosen and taken back
        captured = self.capture(steps, sequences, ends)
        captured.result, captured.not_run = result, not_run
        return captured

    def capture(self, steps: _Steps, sequences: Tensor, ends: Any) -> Capture:
        """Return the capture of all steps whose tokens were chosen."""
        sequences = sequences.detach().clone()
        prompt = steps.prompt_tokens
        count = min(steps.steps, sequences.shape[1] - prompt)
        sequences = sequences[:, : prompt + count]
        mask = self.prompt_mask(steps.mask, sequences)
        generated = Generated(
            sequences,
            prompt,
            _real(sequences[:, prompt:], ends),
            None if steps.logits is None else torch.stack(steps.logits[:count], dim=1),
            self.full_batch(sequences, mask),
        )
        left_out, notes = (
            steps.recorder.left_out,
            [*steps.recorder.notes, *switched(self.model, steps.recorder)],
        )
        if left_out:
            notes.append(f"layers left out, since they attend to no tokens: {', '.join(left_out)}")
        if steps.once:
            notes.append(f"layers {ranges(steps.once)} left out, since they run once, for the prompt")
        return Capture(
            layers=steps.joined(count),
            sites=tuple(site for site in self.sites if site in SITES),
            tokens=self.tokens(generated, mask),
            notes=notes,
            generated=generated,
            identity=identity_of(self.model, self.module),
        )

    def tokens(self, generated: Generated, mask: Tensor | None) -> TokenInfo:
        """Return the written tokens, and those of an encoder in another stream."""
        if not self.encodes:
            return _tokens(self.model, generated, mask, self.prompt_info, self.arguments)
        tokens = _tokens(self.model, generated, None, None, {})
        read = (
            token_info(self.model, self.arguments).alone()
            if self.prompt_info is None
            else self.prompt_info.alone()
        )
        rows = torch.arange(len(read)).repeat_interleave(len(tokens) // len(read))
        return replace(tokens, streams={"encoder": _tokens_at(read, rows, read.count)})

    def prompt_mask(self, seen: Tensor | None, sequences: Tensor) -> Tensor | None:
        """Which tokens of the prompts are real: as the model was given it, else as the batch has it."""
        mask = self.arguments.get("attention_mask") if seen is None else seen
        if self.encodes or not isinstance(mask, Tensor) or mask.ndim != 2:
            return None
        return mask.repeat_interleave(len(sequences) // len(mask), 0)

    @property
    def encodes(self) -> bool:
        return bool(getattr(self.module.config, "is_encoder_decoder", False))

    def full_batch(self, sequences: Tensor, mask: Tensor | None) -> dict[str, Any]:
        """The batch that a capture takes to see all steps in one pass."""
        read, ids = sequences[:, :-1], self.arguments.get("input_ids")
        repeats = len(sequences) // len(next(iter(tensors_in(self.arguments))))
        batch: dict[str, Any] = {}
        for key, value in self.arguments.items():
            if isinstance(value, Tensor):
                value = value.repeat_interleave(repeats, 0) if repeats > 1 else value
                if not self.encodes and ids is not None and value.shape[:2] == (len(read), ids.shape[1]):
                    more = [value, *[value[:, -1:]] * (read.shape[1] - ids.shape[1])]  # kinds of tokens go on
                    value = torch.cat(more, dim=1)
            batch[key] = value
        if self.encodes:
            return batch | {"decoder_input_ids": read}
        batch["input_ids"] = read
        batch.pop("attention_mask", None)
        batch.pop("position_ids", None)
        if mask is not None and not bool(mask.all()):
            more = mask.new_ones(len(read), read.shape[1] - mask.shape[1])
            batch["attention_mask"] = torch.cat([mask, more], dim=1)
            if "position_ids" in inspect.signature(self.module.forward).parameters:
                batch["position_ids"] = (batch["attention_mask"].long().cumsum(-1) - 1).clamp_min(0)
        return batch


def _real(tokens: Tensor, ends: Any) -> Tensor:
    """Which generated tokens come before, or are, the first that ends an input."""
    if ends is None:
        return torch.ones(tokens.shape, dtype=torch.bool)
    ending = torch.isin(
        tokens, torch.as_tensor(ends, device=tokens.device).reshape(-1).to(tokens.dtype)
    ).cpu()
    return (ending.long().cumsum(1) - ending.long()) == 0


def _tokens(
    model: Any,
    generated: Generated,
    mask: Tensor | None,
    prompt_info: TokenInfo | None,
    arguments: Mapping[str, Any],
) -> TokenInfo:
    """Return the tokens of prompt and continuation, labelled by the model's tokenizer, if any."""
    ids, prompt = generated.sequences.cpu(), generated.prompt_tokens
    inputs = len(generated.real)
    before = torch.ones(inputs, prompt, dtype=torch.bool) if mask is None else mask.bool().cpu()
    real = torch.cat([before, generated.real], dim=1)
    alone = inputs == len(next(iter(tensors_in(arguments)), ids))  # one continuation of each
    other_arguments = {
        key: value for key, value in arguments.items() if alone and not key.endswith(("_ids", "_mask"))
    }
    tokens = token_info(model, {**other_arguments, "input_ids": ids, "attention_mask": real}).alone()
    if prompt_info is None:
        return tokens
    repeats = inputs // len(prompt_info)  # several continuations of each
    load = getattr(model, "_load_tokenizer", None)
    tokenizer = model.tokenizer if load is not None else None
    for number in range(inputs):
        prompt_row = number // repeats
        if len(prompt_info.labels[prompt_row]) != prompt:
            continue  # an encoder's tokens
        tokens.labels[number][:prompt], tokens.kinds[number][:prompt] = (
            prompt_info.labels[prompt_row],
            prompt_info.kinds[prompt_row],
        )
        if tokenizer is not None:
            new = ids[number, prompt:].tolist()
            pieces = zip(tokenizer.convert_ids_to_tokens(new), new, strict=True)
            tokens.labels[number][prompt:] = [
                readable_token(tokenizer, piece, token_id) for piece, token_id in pieces
            ]
    return tokens


# Modules without generate ----------------------------------------------------------------------------------


def _likeliest(
    name: str, module: nn.Module, ids: Tensor, batch_of: Callable[[Tensor], Any], most: int
) -> Tensor:
    """The ids with their likeliest continuation."""
    with torch.inference_mode(False), torch.no_grad():
        for _ in range(most):
            batch = batch_of(ids)
            output = module(**batch) if isinstance(batch, dict) else module(batch)
            ids = torch.cat([ids, _logits(name, output)[:, -1].argmax(-1, keepdim=True)], dim=1)
    return ids


def _rows_of_steps(
    model: Any,
    name: str,
    full: Capture,
    sequences: Tensor,
    prompt: int,
    logits: bool,
    prompt_info: TokenInfo | None,
) -> Capture:
    """Return the rows from a capture of the whole text that tokens were chosen from."""
    rows = slice(prompt - 1, None)
    layers, left_out = [], []
    for record in full:
        if record.kind != "token":
            left_out.append(f"{record.index} ({record.path})")
            continue
        changed: dict[str, Any] = {}
        for site in ("q", "head_out", "input", *STREAM, "attn", "mask"):
            value = getattr(record, site)
            if value is not None and not (site == "mask" and value.shape[-2] == 1):
                changed[site] = value[..., rows, :].clone()
        keys = (record.counts or (0, sequences.shape[1] - 1))[1]
        layers.append(replace(record, counts=(sequences.shape[1] - prompt, keys), **changed))
    real = torch.ones(len(sequences), sequences.shape[1] - prompt, dtype=torch.bool)
    generated = Generated(
        sequences,
        prompt,
        real,
        _logits(name, full.result)[:, rows].clone() if logits else None,
        {"input_ids": sequences[:, :-1]},
    )
    notes = [
        *full.notes,
        f"{name} was continued by its likeliest tokens without a cache, and captured in one pass",
    ]
    if left_out:
        notes.append(f"layers left out, since they attend to no tokens: {', '.join(left_out)}")
    tokens = _tokens(model, generated, None, prompt_info, {})
    return replace(full, layers=layers, generated=generated, tokens=tokens, notes=notes, result=None)
