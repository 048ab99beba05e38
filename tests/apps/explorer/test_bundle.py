"""Bundles: their numbers are those of analyze, what was rounded says by how much, and what is no bundle is told."""

import json

import numpy as np
import pytest
import torch
import transformers

import workbench
from workbench.apps.explorer import bundle as bundles
from workbench.apps.explorer import evidence
from workbench.apps.explorer.bundle import (
    POOLED,
    SCHEMA,
    SITES,
    Bundle,
    _Input,
    _layer,
    _pooled,
    make_bundle,
    read_bundle,
    why_without,
)
from workbench.apps.explorer.evidence import SPECTRA, joint_plane
from workbench.apps.explorer.measures import NULL_SAMPLES, NUMBERS
from workbench.captures import TokenInfo, capture, recorder
from workbench.captures.layer_records import LayerRecord
from workbench.core.errors import InputError
from workbench.studies.training.cost_measures import Allocations


@pytest.fixture(scope="module")
def model():
    return workbench.load("bundled:digits-vit")


@pytest.fixture(scope="module")
def digits(model):
    return workbench.inputs("bundled:digits", model, n=2)


@pytest.fixture(scope="module")
def bundle(model, digits):
    return make_bundle(model, digits)


def with_header(bundle: Bundle, **changes) -> bytes:
    """The bytes of a bundle whose header says otherwise."""
    content = bundle.to_bytes()
    length = int.from_bytes(content[:8], "little")
    outer = json.loads(content[8 : 8 + length])
    outer["__metadata__"]["workbench"] = json.dumps(json.loads(bundle.header.model_dump_json()) | changes)
    header = json.dumps(outer).encode()
    return len(header).to_bytes(8, "little") + header + content[8 + length :]


def test_what_is_read_is_what_was_written(bundle, tmp_path):
    again = read_bundle(bundle.save(tmp_path / "digits.safetensors"))
    assert again.header == bundle.header
    assert again.arrays.keys() == bundle.arrays.keys()
    for name, array in bundle.arrays.items():
        assert again.arrays[name].dtype == array.dtype
        np.testing.assert_array_equal(again.arrays[name], array)


@pytest.mark.parametrize("analysis", ["attention-map", "attention-patterns"])
def test_metrics_equal_those_of_analyze(bundle, model, digits, analysis):
    frame = workbench.analyze(analysis, model=model, inputs=digits)
    known = {metric.name for metric in bundle.header.metrics}
    rows = frame[frame["head"].notna() & frame["metric"].isin(known)]
    assert len(rows) >= 96
    place = {name: number for number, name in enumerate(digits.ids)}
    for row in rows.to_dict("records"):
        for number in ("value", "null_mean", "z"):
            found = (
                bundle.metric(row["metric"], number, place[row["input"]])[row["layer"], row["head"]]
                if number == "value" or (row["null"] is not None and row["null"] == row["null"])
                else np.nan
            )
            assert found == pytest.approx(row[number], rel=1e-5, abs=1e-7, nan_ok=True)


def test_attention_is_as_far_from_the_captured_as_the_header_says(bundle, model, digits):
    seen = workbench.capture(model, digits[1:], sites=["attn"])
    for layer in bundle.header.layers:
        exact = seen[layer.index].attn[0].double().numpy()
        apart = np.abs(bundle.attention(layer.index, input=1).astype(np.float64) - exact).max()
        stated = bundle.header.max_error[f"inputs.1.layers.{layer.index}.attn"]
        assert apart == pytest.approx(stated, abs=1e-7)
        assert stated <= 2**-12  # half a unit in the last place of the largest weight


def rounded(bundle: Bundle, name: str) -> np.ndarray:
    """A float16 array in float64, with room for its stated error."""
    return bundle.arrays[name].astype(np.float64)


def test_spectra_equal_those_of_analyze(bundle, model, digits):
    for name, (analysis, options) in SPECTRA.items():
        own = workbench.analyze(analysis, model=model, inputs=digits[1:], **options)
        seen = workbench.capture(model, digits[1:])
        rows = workbench.analyze(
            analysis, qkv=seen, **options
        )  # whose null samples are those of no input's name
        np.testing.assert_allclose(rows["value"].to_numpy(float), own["value"].to_numpy(float))
        rows = rows[(rows["metric"] == name) & (rows["layer"] == 2)]
        assert len(rows) >= 3 * 16
        for number in NUMBERS:
            array = bundle.arrays[f"inputs.1.layers.2.spectra.{name}.{number}"]
            found = array[rows["head"].to_numpy(int), rows["rank"].to_numpy(int) - 1]
            np.testing.assert_allclose(found, rows[number].to_numpy(float), rtol=1e-5, atol=1e-12)


def test_scaled_products_of_q_and_k_are_the_logits_of_its_attention(bundle):
    for layer in (0, 3):
        start = f"inputs.1.layers.{layer}"
        q, k = (rounded(bundle, f"{start}.{site}") for site in ("q", "k"))
        for site, operand in (("q", q), ("k", k)):
            assert 0 < bundle.header.max_error[f"{start}.{site}"] <= np.abs(operand).max() * 2**-11
        logits = np.einsum("hqd,hkd->hqk", q, k) * bundle.arrays[f"{start}.scale"][:, None, None]
        shares = np.exp(logits - logits.max(-1, keepdims=True))
        np.testing.assert_allclose(
            shares / shares.sum(-1, keepdims=True), bundle.attention(layer, 1), atol=5e-3
        )


def test_the_plane_of_queries_and_keys_is_that_of_their_principal_components(bundle):
    generator = torch.Generator().manual_seed(3)
    q = torch.randn(7, 5, generator=generator).double() * 3 + 1
    k = torch.randn(11, 5, generator=generator).double() / 4 - 2
    plane = joint_plane(q, k)
    spread = [float((x - x.mean(0)).pow(2).mean()) for x in (q, k)]
    factor = (spread[1] / spread[0]) ** 0.25
    both = np.concatenate([((x - x.mean(0)).double() * f).numpy() for x, f in ((q, factor), (k, 1 / factor))])
    values, vectors = np.linalg.eigh(both.T @ both)
    for axis in (0, 1):
        component = vectors[:, -1 - axis]
        component = component * np.sign(component[np.abs(component).argmax()])
        found = torch.cat([plane.queries, plane.keys])[:, axis].numpy()
        np.testing.assert_allclose(found, both @ component, atol=1e-10)
        assert float(plane.share[axis]) == pytest.approx(values[-1 - axis] / values.sum())
    assert joint_plane(q[:, :1], k[:, :1]).share.tolist() == pytest.approx([1.0, 0.0])
    assert torch.isfinite(joint_plane(torch.ones(4, 3), k[:, :3]).queries).all()  # queries all alike


def test_the_prediction_and_the_effect_of_a_head_are_the_models_own(bundle, model, digits):
    with torch.no_grad():
        whole = model.module(digits[1:].batch)[0].double()
    card = bundle.header.inputs[1].prediction
    order = whole.argsort(descending=True).tolist()
    assert card.of == "class"
    assert card.outcomes == [[str(one) for one in order]]
    assert card.actual == [str(digits.targets[1])]
    np.testing.assert_allclose(
        bundle.arrays["inputs.1.prediction.probability"][0], whole.softmax(-1)[order], rtol=1e-5
    )
    # a head whose columns of the output projection are zero hands on nothing
    projection = model.module.get_submodule(bundle.header.layers[2].path).proj
    before = projection.weight.detach().clone()
    try:
        with torch.no_grad():
            projection.weight[:, 16:32] = 0
            without = model.module(digits[1:].batch)[0].double()
    finally:
        with torch.no_grad():
            projection.weight.copy_(before)
    start = "inputs.1.ablations.zero"
    np.testing.assert_allclose(
        rounded(bundle, f"{start}.probability")[2, 1, 0],
        without.softmax(-1)[order],
        atol=bundle.header.max_error[f"{start}.probability"] + 1e-6,
    )
    divergence = (whole.softmax(-1) * (whole.log_softmax(-1) - without.log_softmax(-1))).sum()
    assert bundle.arrays[f"{start}.divergence"][2, 1, 0] == pytest.approx(float(divergence), rel=1e-4)
    assert np.isfinite(bundle.arrays["inputs.1.ablations.uniform.divergence"]).all()


def test_a_language_models_next_tokens_and_the_effect_of_even_attention():
    prose = workbench.load("bundled:prose-softmax")
    text = workbench.inputs("bundled:prose", prose, n=1, max_length=24)
    found = make_bundle(prose, text, layers=[3], left_out=[0, 1, 2])
    ids = text.batch["input_ids"]
    seen = workbench.capture(prose, text, layers=[3])
    whole = seen.result[0].double().softmax(-1)
    card = found.header.inputs[0].prediction
    assert card.of == "next token"
    assert card.actual == [*(prose.tokenizer.decode([one]) for one in ids[0, 1:].tolist()), ""]
    actual = whole[torch.arange(23), ids[0, 1:]]
    np.testing.assert_allclose(found.arrays["inputs.0.prediction.actual"][:-1], actual, rtol=1e-5)
    assert np.isnan(found.arrays["inputs.0.prediction.actual"][-1])
    # the first query sees itself alone: to attend evenly changes nothing there, and something later
    effect = found.arrays["inputs.0.ablations.uniform.divergence"][0]
    assert np.abs(effect[:, 0]).max() < 1e-6
    assert (effect[:, 5:].max(-1) > 1e-4).all()
    # a word that is taken out changes what follows it, and nothing before
    removed = found.arrays["inputs.0.removal.divergence"]
    assert np.nanmax(removed[10, :10]) == 0
    assert removed[10, 10] > 1e-4
    silent = make_bundle(prose, text, layers=[3], left_out=[0, 1, 2], ablations=False, with_operands=False)
    assert silent.header.ablations == {}
    assert silent.header.without_ablations == "they were not asked for"
    assert not any(name.endswith((".q", ".plane.k")) and "norms" not in name for name in silent.arrays)


def test_a_patch_taken_out_changes_the_prediction_as_the_model_says(bundle, model, digits):
    card = bundle.header.inputs[1].prediction
    token = 20  # a patch in the middle: the grid is 8 × 8, token 0 the class token
    pixels = digits[1:].batch.clone()
    side = pixels.shape[-1] // 8
    row, column = divmod(token - 1, 8)
    pixels[0, :, row * side : (row + 1) * side, column * side : (column + 1) * side] = pixels.mean()
    with torch.no_grad():
        whole, without = (model.module(batch)[0].double() for batch in (digits[1:].batch, pixels))
    divergence = (whole.softmax(-1) * (whole.log_softmax(-1) - without.log_softmax(-1))).sum()
    found = bundle.arrays["inputs.1.removal.divergence"][:, 0]
    assert found[token] == pytest.approx(float(divergence), rel=1e-3, abs=1e-7)
    assert np.isnan(found[0])
    assert np.isfinite(found[1:]).all()
    np.testing.assert_allclose(
        rounded(bundle, "inputs.1.removal.probability")[token, 0],
        without.softmax(-1)[[int(one) for one in card.outcomes[0]]],
        atol=bundle.header.max_error["inputs.1.removal.probability"] + 1e-6,
    )


def test_memberships_are_those_of_the_analysis_and_add_up_to_one(bundle, model, digits):
    found = bundle.arrays["inputs.0.layers.2.membership"]
    np.testing.assert_allclose(found.sum(0), 1, rtol=1e-5)
    rows = workbench.analyze("membership", model=model, inputs=digits[:1], per="token", layers=[2])
    np.testing.assert_allclose(
        found[1], rows[rows["head"] == 1].sort_values("token")["value"].to_numpy(float), rtol=1e-6
    )


def test_a_model_of_another_attention_has_what_can_be_measured_of_it():
    primal = workbench.load("bundled:digits-primal")
    found = make_bundle(primal, workbench.inputs("bundled:digits", primal, n=1), layers=[3], ablations=False)
    assert "singular_value" not in [
        metric.name for metric in found.header.spectra
    ]  # of weights, which no capture holds
    assert found.header.inputs[0].prediction.of == "class"


def test_the_tokens_and_the_image_are_those_of_the_input(bundle, digits):
    card = bundle.header.inputs[0]
    assert card.labels == digits.tokens.labels[0]
    assert card.kinds[:2] == ["class", "patch"]
    np.testing.assert_array_equal(bundle.arrays["inputs.0.image"], digits.images[0])
    assert bundle.header.model.spec == "bundled:digits-vit"
    assert not bundle.header.model.random_weights


def test_layers_left_out_are_named(model, digits):
    part = make_bundle(model, digits[:1], layers=[0, 3], left_out=[1, 2])
    assert [layer.index for layer in part.header.layers] == [0, 3]
    assert part.header.left_out == [1, 2]
    with pytest.raises(InputError, match="layer 1 is not in this bundle"):
        part.attention(1)


def test_long_inputs_are_pooled_by_bins_of_tokens():
    count = POOLED + 77
    attn = np.random.default_rng(0).random((2, count, count))
    kept = _pooled(attn)
    owner = np.arange(count) * POOLED // count
    for query, key in ((0, 0), (3, POOLED - 1), (400, 17)):
        cell = attn[1][np.ix_(owner == query, owner == key)]
        assert kept["attn_mean"][1, query, key] == pytest.approx(cell.mean())
        assert kept["attn_max"][1, query, key] == cell.max()


def long_text(count):
    """A language model with rotary positions and grouped queries, and a text of so many tokens with their labels."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=50, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1,
        intermediate_size=8, max_position_embeddings=count, initializer_range=0.5,
    )  # fmt: skip
    model, ids = transformers.LlamaModel(config).eval(), torch.randint(50, (1, count))
    tokens = TokenInfo([[str(place) for place in range(count)]], [["word"] * count], None, ids > -1)
    return model, {"input_ids": ids}, tokens


def kept_of(record, tokens):
    """The card and arrays of a layer."""
    part = _Input(card=None, layers=[], arrays={}, max_error={}, sites=set(), notes=[])
    return _layer(record, tokens, part, with_operands=True), part.arrays


def test_a_long_text_is_pooled_in_tiles_as_its_whole_map_would_be():
    """Of cells that differ in size, and no operands of single tokens."""
    model, text, tokens = long_text(2 * POOLED + 77)
    whole = capture(model, text, sites=SITES)[0]
    tiled = capture(model, text, sites=SITES, map_limit=0)[0]
    assert tiled.attn is None
    assert tiled.causal
    wanted = _pooled(whole.attn[0].double().numpy())
    for record in (whole, tiled):
        card, kept = kept_of(record, tokens)
        assert card.pooled
        assert (card.heads, card.without) == (2, "")
        for name, values in wanted.items():
            assert kept[f"layers.0.{name}"].shape == (2, POOLED, POOLED)
            assert kept[f"layers.0.{name}"].dtype == np.float16
            # halves have three digits, and nothing below 6e-8
            np.testing.assert_allclose(kept[f"layers.0.{name}"], values, rtol=1e-3, atol=6e-8)
        assert not {"layers.0.q", "layers.0.k"} & {*kept}
    assert tiled.causal  # its mask was not written out for this


def test_memory_of_a_long_text_grows_with_its_tokens_and_not_with_their_pairs():
    most = []
    for count in (4 * POOLED, 8 * POOLED):
        model, text, tokens = long_text(count)
        record = capture(model, text, sites=SITES, map_limit=0)[0]
        with Allocations() as allocated:
            kept_of(record, tokens)
        most.append(allocated.peak)
    pairs = (8 * POOLED) ** 2 * 2 * 4
    assert most[1] < pairs  # one map of the two heads in single precision
    assert most[1] < 2.2 * most[0]


@pytest.mark.parametrize("modes", [None, True])
def test_a_bundle_of_a_long_text_forms_no_map_and_says_the_same(modes, monkeypatch):
    """With the size from which texts are pooled so small that a short text is long."""
    prose = workbench.load("bundled:prose-softmax")
    text = workbench.inputs("bundled:prose", prose, n=1, max_length=24)
    whole = make_bundle(prose, text, ablations=modes)
    monkeypatch.setattr(bundles, "POOLED", 16)
    monkeypatch.setattr(evidence, "MOST_TOKENS", 0)
    monkeypatch.setattr(recorder, "call_weights", lambda call: pytest.fail("a map was formed"))
    found = make_bundle(prose, text, ablations=modes)
    owner = np.arange(24) * 16 // 24
    cells = np.ix_(owner == 9, owner == 4)
    for card in found.header.layers:
        assert card.pooled
        own = whole.attention(card.index).astype(float)
        assert found.attention(card.index)[1, 9, 4] == pytest.approx(own[1][cells].mean(), rel=2e-3)
    of_tokens = (".norms.written", ".spectra.", ".plane.", ".removal.", ".route.")
    assert {*whole.arrays} - {*found.arrays} == {
        name
        for name in whole.arrays
        if name.endswith(".attn")
        or any(part in name for part in of_tokens)
        or (name.endswith((".q", ".k", ".scale", ".membership")) and ".norms." not in name)
    }
    assert [one.prediction for one in found.header.inputs] == [one.prediction for one in whole.header.inputs]
    for name in whole.arrays:
        if (
            any(f".{what}." in name for what in ("metrics", "by_layer", "prediction", "ablations", "norms"))
            and name in found.arrays
        ):
            np.testing.assert_allclose(
                found.arrays[name], whole.arrays[name], rtol=2e-3, atol=2e-6, err_msg=name
            )
    if modes:
        assert any(".ablations.uniform." in name for name in found.arrays)


def test_what_has_no_matrix_says_why():
    square = torch.zeros(1, 2, 5, 5)
    assert why_without(LayerRecord(0, "a", attn=square), 5) == ""
    assert "windows" in why_without(LayerRecord(0, "a", attn=square, origin=object()), 5)
    assert "channel" in why_without(LayerRecord(0, "a", kind="channel", attn=square), 5)
    assert "state-space" in why_without(LayerRecord(0, "a", mixer="Mamba (state-space mixer)"), 5)
    assert "cross attention" in why_without(
        LayerRecord(0, "a", source="cross", attn=torch.zeros(1, 2, 5, 9)), 5
    )
    assert why_without(LayerRecord(0, "a", attn=torch.zeros(1, 2, 1, 5)), 5) == ""  # class attention


def test_what_is_no_bundle_is_told(bundle, tmp_path):
    whole = bundle.to_bytes()
    for content, words in (
        (b"", "cut short"),
        (whole[:4000], "cut short"),
        (whole[:-100], "cut short or damaged"),
        (b"\xff" * 64, "cut short"),
        ((40).to_bytes(8, "little") + b"[" * 40, "header cannot be read"),
        (with_header(bundle, format="another"), "no bundle of the explorer"),
        (with_header(bundle, bundle_schema=SCHEMA + 1), f"schema {SCHEMA + 1}; .* reads bundle schema {SCHEMA}"),
        (with_header(bundle, bundle_schema="<b>"), "schema '<b>'"),
        (with_header(bundle, layers=[]), "layers: List should have at least 1 item"),
        (with_header(bundle, surprise=1), "surprise: Extra inputs are not permitted"),
        (with_header(bundle, max_error={}), "states no largest error"),
        (with_header(bundle, metrics=[]), "which its header does not list"),
    ):  # fmt: skip
        with pytest.raises(InputError, match=words):
            read_bundle(content)
    with pytest.raises(InputError, match="cannot be read"):
        read_bundle(tmp_path / "nothing.safetensors")


def test_arrays_that_do_not_fit_the_header_are_told(bundle):
    name = "inputs.0.layers.0.attn"
    for wrong in (bundle.arrays[name][:, :, :-1], bundle.arrays[name].astype(np.float32)):
        with pytest.raises(InputError, match=rf"'{name}' of this bundle is"):
            Bundle(bundle.header, bundle.arrays | {name: wrong})
    with pytest.raises(InputError, match=f"lacks the array '{name}'"):
        Bundle(bundle.header, {key: array for key, array in bundle.arrays.items() if key != name})


def test_norms_of_what_heads_write_are_those_of_the_analysis(bundle, model, digits):
    """Value-output of a link, over its attention."""
    rows = workbench.analyze("value-output", model=model, inputs=digits[1:], per="pair", layers=[2], query=7)
    rows = rows[rows["input"] == digits.ids[1]]
    attn = bundle.attention(2, input=1).astype(float)
    norms = bundle.arrays["inputs.1.layers.2.norms.written"]
    assert norms.shape == (attn.shape[0], attn.shape[2])
    assert len(rows) == norms.size
    for row in rows.itertuples():
        assert attn[row.head, 7, row.key] * norms[row.head, row.key] == pytest.approx(row.value, rel=2**-10)


def test_layers_over_the_patches_only_have_the_memberships_of_the_analysis():
    """Before the class token joins them, token i of the layer is patch i of the input."""
    model = workbench.load("bundled:photos-tost")
    photo = workbench.inputs("bundled:photos", model, n=1)
    rows = workbench.analyze("membership", model=model, inputs=photo, per="token", layers=[0])
    part = _Input(bundles._input(model, capture(model, photo), photo, False).card, [], {}, {}, set(), [])
    bundles._belong(part, model, photo, [0])
    found = part.arrays["layers.0.membership"]
    assert np.isnan(found[:, 0]).all()
    for row in rows.sample(40, random_state=0).itertuples():
        assert found[row.head, row.token + 1] == pytest.approx(row.value, rel=1e-6)
        assert part.card.labels[row.token + 1] == row.label


def test_a_bundle_whose_layers_have_a_stream_that_it_lacks_is_refused(bundle):
    layers = [bundle.header.layers[0].model_copy(update={"keys": 2}), *bundle.header.layers[1:]]
    with pytest.raises(InputError, match=r"has stream 2 of .*, which has 0"):
        Bundle(bundle.header.model_copy(update={"layers": layers}), bundle.arrays)


def test_spectra_of_many_heads_and_tokens_are_measured_on_request(monkeypatch):
    """Unasked only where heads × tokens³ is small; an analysis that is asked for brings its own spectra."""
    model = workbench.load("bundled:digits-vit")
    digit = workbench.inputs("bundled:digits", model, n=1)
    whole = make_bundle(model, digit, layers=[1], ablations=False)
    monkeypatch.setattr(evidence, "MOST_WORK", 3 * 65**3 - 1)
    plain = make_bundle(model, digit, layers=[1], ablations=False)
    asked = make_bundle(model, digit, layers=[1], ablations=False, analyses=["gram-spectrum"])
    assert [card.name for card in whole.header.spectra] == ["eigenvalue", "singular_value"]
    assert plain.header.spectra == []
    assert [card.name for card in asked.header.spectra] == ["eigenvalue"]
    assert sum(".spectra." in name for name in asked.arrays) == 4
    name = "inputs.0.layers.1.spectra.eigenvalue.value"  # its null draws other keys
    np.testing.assert_allclose(asked.arrays[name], whole.arrays[name], rtol=1e-5)


def test_analyses_that_run_a_large_model_again_are_left_out_unless_asked_for(model, digits):
    """Parameters × tokens beyond the limit; a note names them, and the capture's own numbers stay."""
    digit = digits[:1]
    size = sum(parameter.numel() for parameter in model.module.parameters()) * 65
    within, beyond = (
        make_bundle(model, digit, ablations=False, most_again=limit) for limit in (size, size - 1)
    )
    assert not any(bundles.LEFT_OUT in note for note in within.header.notes)
    (note,) = [note for note in beyond.header.notes if bundles.LEFT_OUT in note]
    assert note.endswith("coding-rate, membership, logit-attribution")
    kinds = {name.split(".", 4)[-1] for name in beyond.arrays}
    assert "membership" in {name.split(".", 4)[-1] for name in within.arrays}
    assert not {"membership", "route.total"} & kinds
    assert "coding_rate" not in [card.name for card in beyond.header.by_layer]
    asked = make_bundle(
        model, digit, ablations=False, most_again=size - 1, analyses=["membership", "coding-rate"]
    )
    assert "inputs.0.layers.2.membership" in asked.arrays
    assert "coding_rate" in [card.name for card in asked.header.by_layer]


def test_the_null_of_spectra_has_the_mean_square_of_queries_and_keys_and_rescales_no_value(bundle):
    """Drawn here again, entry by entry: singular values of softmax, and eigenvalues of the centred kernel."""
    random, draws = np.random.default_rng(5), 60
    q, k = (bundle.arrays[f"inputs.0.layers.2.{site}"][1].astype(float) for site in ("q", "k"))
    scale = bundle.arrays["inputs.0.layers.2.scale"][1]
    centre = np.eye(len(k)) - 1 / len(k)
    singular, eigen = [], []
    for _ in range(draws):
        queries, keys = (random.normal(0, np.sqrt(np.mean(part**2)), part.shape) for part in (q, k))
        attention = np.exp(scale * queries @ keys.T)
        attention /= attention.sum(1, keepdims=True)
        singular.append(np.linalg.svd(attention, compute_uv=False))
        kernel = np.exp(scale * keys @ keys.T)
        kernel /= np.outer(kernel.sum(0), kernel.sum(0))
        eigen.append(np.linalg.eigvalsh(centre @ kernel @ centre)[::-1])
    for name, drawn in {"singular_value": np.array(singular), "eigenvalue": np.array(eigen)}.items():
        mean = bundle.arrays[f"inputs.0.layers.2.spectra.{name}.null_mean"][1]
        drawn = drawn[:, : len(mean)][:, :12]
        error = drawn.std(0, ddof=1) * np.sqrt(1 / NULL_SAMPLES + 1 / draws)
        assert (np.abs(mean[:12] - drawn.mean(0)) < 4.5 * error).all()
        value = bundle.arrays[f"inputs.0.layers.2.spectra.{name}.value"][1]
        assert (
            np.abs(value[1:12] - mean[1:12]) > 4.5 * error[1:]
        ).sum() > 6  # a test that noise passes says nothing
