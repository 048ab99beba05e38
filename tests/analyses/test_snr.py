"""Signal and noise around a block: α, β, γ, the bound of abdullaev2025's Prop. III.1 and the gain that it bounds."""

import math

import numpy as np
import pytest
import timm
import torch

import workbench
from tests.runs.test_analyze import bert, same, texts
from workbench.analyses.snr import residual_noise, signal_to_noise
from workbench.captures import capture
from workbench.core.errors import InputError
from workbench.core.null_distributions import derived_seed
from workbench.data.batches import NoImages
from workbench.data.corruptions import corrupt
from workbench.frames.metric import METRICS
from workbench.frames.results import COLUMNS
from workbench.runs.analyze import analyze

BATCH, TOKENS, WIDTH = 3, 7, 5


def parts(count=4, *shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    shape = shape or (BATCH, TOKENS, WIDTH)
    return [torch.randn(*shape, dtype=torch.float64, generator=generator) for _ in range(count)]


def length(values):
    return math.sqrt(sum(value**2 for value in values))


def test_all_parts_are_those_of_one_long_vector():
    clean, noisy, clean_update, noisy_update = parts()
    found = residual_noise(clean, noisy, clean_update, noisy_update)
    for place in range(BATCH):
        u, noise, put_out, put_noise = (
            part[place].flatten().tolist()
            for part in (clean, noisy - clean, clean_update, noisy_update - clean_update)
        )
        alpha, gamma = length(put_out) / length(u), length(put_noise) / length(noise)
        beta = sum(a * b for a, b in zip(u, put_out, strict=True)) / length(u) / length(put_out)
        before = length(u) / length(noise)
        after = length(a + b for a, b in zip(u, put_out, strict=True)) / length(
            a + b for a, b in zip(noise, put_noise, strict=True)
        )
        expected = [
            alpha,
            beta,
            gamma,
            math.sqrt(1 + 2 * alpha * beta + alpha**2) / (1 + gamma),
            after / before,
        ]
        named = [found.alpha, found.beta, found.gamma, found.bound, found.gain]
        assert [part[place].item() for part in named] == pytest.approx(expected, rel=1e-12)
        assert signal_to_noise(clean, noisy)[place].item() == pytest.approx(before, rel=1e-12)


def test_a_block_that_puts_out_its_input_leaves_the_ratio_as_it_is():
    clean, noisy = parts(2)
    found = residual_noise(clean, noisy, clean, noisy)
    ones = torch.ones(BATCH, dtype=torch.float64)
    for part in (found.alpha, found.beta, found.gamma, found.noise_cosine, found.bound, found.gain):
        torch.testing.assert_close(part, ones)
    torch.testing.assert_close(signal_to_noise(2 * clean, 2 * noisy), signal_to_noise(clean, noisy))


def test_a_block_that_removes_the_noise_doubles_the_ratio():
    clean, noisy = parts(2)
    found = residual_noise(clean, noisy, clean, clean)
    torch.testing.assert_close(found.gain, torch.full((BATCH,), 2.0, dtype=torch.float64))
    torch.testing.assert_close(found.bound, found.gain)
    assert found.assumed.all()
    assert found.sufficient.all()


def test_the_bound_is_never_above_the_gain_and_met_by_parallel_noise():
    clean, noisy, put_out, other = parts(4, 200, TOKENS, WIDTH)
    found = residual_noise(clean, noisy, put_out, other)
    assert (found.bound <= found.gain * (1 + 1e-12)).all()
    assert (found.bound < found.gain).any()
    parallel = residual_noise(clean, noisy, put_out, put_out + 0.3 * (noisy - clean))
    torch.testing.assert_close(parallel.bound, parallel.gain)
    torch.testing.assert_close(parallel.gamma, torch.full((200,), 0.3, dtype=torch.float64))


def test_the_printed_assumption_does_not_give_a_bound_above_one():
    """α = β = 0.5 and γ = 0.4: min(α, β) > γ, and the ratio falls."""
    u = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    noise = torch.tensor([[0.0, 1.0]], dtype=torch.float64)
    put_out = 0.5 * torch.tensor([[0.5, math.sqrt(0.75)]], dtype=torch.float64)
    found = residual_noise(u, u + noise, put_out, put_out + 0.4 * noise)
    assert (found.alpha.item(), found.beta.item(), found.gamma.item()) == pytest.approx((0.5, 0.5, 0.4))
    assert found.assumed
    assert not found.sufficient
    assert found.gain.item() == pytest.approx(found.bound.item())
    assert found.gain.item() == pytest.approx(math.sqrt(1.75) / 1.4)
    assert round(found.gain.item(), 3) == 0.945


def test_the_condition_is_that_the_bound_exceeds_one():
    clean, noisy, put_out, other = parts(4, 500, 2, 3)
    found = residual_noise(clean, clean + 0.2 * noisy, put_out + clean, put_out + clean + 0.1 * other)
    assert torch.equal(found.sufficient, found.bound > 1)
    assert 0 < found.sufficient.double().mean() < 1
    # an α above 1, as an expanding block has, is outside of what the paper assumes
    assert not found.assumed[found.alpha > 1].any()
    assert found.assumed.any()


def test_padding_is_left_out():
    clean, noisy, put_out, other = parts()
    mask = torch.arange(TOKENS) < torch.tensor([7, 4, 2])[:, None]
    found = residual_noise(clean, noisy, put_out, other, mask)
    for place, count in enumerate((7, 4, 2)):
        alone = residual_noise(*(part[place, :count] for part in (clean, noisy, put_out, other)))
        torch.testing.assert_close(found.gain[place], alone.gain)
        torch.testing.assert_close(found.beta[place], alone.beta)
    centred = signal_to_noise(clean, noisy, mask, centre=True)
    mean = clean[1, :4].mean(0)
    torch.testing.assert_close(centred[1], signal_to_noise(clean[1, :4] - mean, noisy[1, :4] - mean))


def test_centred_signals_know_nothing_of_what_all_tokens_share():
    clean, noisy, put_out, other = parts()
    shared = torch.randn(WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    plain = residual_noise(clean, noisy, put_out, other, centre=True)
    moved = residual_noise(clean + shared, noisy + shared, put_out - shared, other - shared, centre=True)
    for one, two in zip(plain, moved, strict=True):
        torch.testing.assert_close(one, two)
    assert not torch.allclose(plain.beta, residual_noise(clean, noisy, put_out, other).beta)


def test_one_token_and_no_noise():
    clean, noisy, put_out, other = parts(4, 1, WIDTH)
    assert residual_noise(clean, noisy, put_out, other).gain.isfinite()
    assert signal_to_noise(clean, clean).item() == math.inf
    assert residual_noise(clean, clean, put_out, put_out).gamma.isnan()


def test_what_does_not_fit_is_refused():
    clean, noisy, put_out, other = parts()
    with pytest.raises(InputError, match="not of the same inputs"):
        signal_to_noise(clean, noisy[:2])
    with pytest.raises(InputError, match="cannot be added"):
        residual_noise(clean, noisy, put_out[:, :3], other[:, :3])
    noisy[1, 2, 3] = math.nan
    with pytest.raises(InputError, match=r"noisy .* batch 1, token 2, width 3"):
        signal_to_noise(clean, noisy)
    with pytest.raises(InputError, match="boolean"):
        signal_to_noise(clean, put_out, torch.ones(BATCH, TOKENS))


DIGITS, PLAIN, BOOSTED = "bundled:digits", "bundled:digits-vit", "bundled:digits-softmax-boost"
LAYERS = 4


@pytest.fixture(scope="module")
def plain():
    return workbench.load(PLAIN)


@pytest.fixture(scope="module")
def digits(plain):
    return workbench.inputs(DIGITS, plain, n=5, seed=2)


def value(frame, metric, candidate=None, **where):
    rows = frame[frame["metric"] == metric]
    rows = rows[rows["candidate"].isna() if candidate is None else rows["candidate"] == candidate]
    for column, wanted in where.items():
        rows = rows[rows[column].isna() if wanted is None else rows[column] == wanted]
    assert len(rows) == 1
    return rows["value"].item()


def streams(model, batch):
    """(before attention, attention's own output, after the block) of every block, read with hooks."""
    held = []
    handles = []
    for block in model.blocks:
        held.append({})
        one = held[-1]
        handles += [
            block.register_forward_pre_hook(lambda _, args, one=one: one.update(before=args[0].double())),
            block.attn.register_forward_hook(lambda _, args, out, one=one: one.update(added=out.double())),
            block.register_forward_hook(lambda _, args, out, one=one: one.update(after=out.double())),
        ]
    with torch.no_grad():
        model(batch)
    for handle in handles:
        handle.remove()
    return held


@pytest.mark.parametrize("name", [PLAIN, BOOSTED])
def test_numbers_are_those_of_the_model_run_twice(name):
    model = workbench.load(name)
    chosen = workbench.inputs(DIGITS, model, n=3, seed=2)
    frame = analyze(
        "snr", model=model, inputs=chosen, seed=7, noise="impulse-noise", severity=2, per_head=True
    )
    noisy = chosen.perturbed(
        lambda label, image: corrupt(
            image, "impulse-noise", 2, np.random.default_rng(derived_seed(7, "impulse-noise", label))
        )
    )
    clean, after = streams(model.module, chosen.batch), streams(model.module, noisy.batch)
    for layer, (u, y) in enumerate(zip(clean, after, strict=True)):
        t = model.module.blocks[layer].boost.t.item() if name == BOOSTED else 0.0
        for place, label in enumerate(chosen.ids):
            here = {"layer": layer, "input": label}
            start, put_out = u["before"][place], u["added"][place]
            noise = y["before"][place] - start
            put_noise = y["added"][place] - put_out
            ratio = start.norm() / noise.norm()
            plain_sum = (start + put_out).norm() / (noise + put_noise).norm()
            close = pytest.approx
            assert value(frame, "snr", "resid_pre", **here) == close(ratio.item(), rel=1e-5)
            assert value(frame, "snr_alpha", **here) == close(
                (put_out.norm() / start.norm()).item(), rel=1e-4
            )
            assert value(frame, "snr_gamma", **here) == close(
                (put_noise.norm() / noise.norm()).item(), rel=1e-4
            )
            assert value(frame, "snr_gain", "attention", **here) == close(
                (plain_sum / ratio).item(), rel=1e-4
            )
            later = u["after"][place].norm() / (y["after"][place] - u["after"][place]).norm()
            assert value(frame, "snr_gain", "block", **here) == close((later / ratio).item(), rel=1e-4)
            if name == BOOSTED:
                first, first_noise = (
                    clean[0]["before"][place],
                    after[0]["before"][place] - clean[0]["before"][place],
                )
                signal = start + put_out + t * (first - start)
                changed = noise + put_noise + t * (first_noise - noise)
                gain = signal.norm() / changed.norm() / ratio
                assert value(frame, "snr_gain", "boosted", **here) == close(gain.item(), rel=1e-4)
    assert ("boosted" in set(frame["candidate"])) == (name == BOOSTED)


def test_batches_do_not_change_the_numbers_and_seeds_do(plain, digits):
    whole, parts = (analyze("snr", model=plain, inputs=digits, batch_size=size) for size in (8, 2))
    same(whole, parts)
    other = analyze("snr", model=plain, inputs=digits, seed=1)
    assert value(whole, "snr_gamma", layer=None, input=None) != value(
        other, "snr_gamma", layer=None, input=None
    )
    blurred = (analyze("snr", model=plain, inputs=digits, noise="defocus-blur", seed=seed) for seed in (0, 1))
    same(*blurred)  # a blur draws nothing


def test_means_are_of_the_rows_and_shares_count_them(plain, digits):
    rows = analyze("snr", model=plain, inputs=digits, severity=5, per_head=True)
    means = analyze("snr", model=plain, inputs=digits, severity=5)
    gains = rows[(rows["metric"] == "snr_gain") & (rows["candidate"] == "attention")]["value"]
    assert len(gains) == LAYERS * len(digits)
    assert value(means, "snr_gain", "attention", layer=None, input=None) == pytest.approx(gains.mean())
    assert value(means, "snr_raised", "attention", layer=None, input=None) == pytest.approx(
        (gains > 1).mean()
    )
    bounds = rows[rows["metric"] == "snr_bound"]["value"]
    assert (bounds.to_numpy() <= gains.to_numpy() + 1e-9).all()


def test_every_metric_is_known_and_in_its_range(plain, digits):
    frame = analyze("snr", model=plain, inputs=digits, centre=True, per_head=True)
    assert tuple(frame.columns) == COLUMNS
    for name, rows in frame.groupby("metric"):
        assert rows["value"].between(METRICS[name].low - 1e-9, METRICS[name].high + 1e-9).all()


def test_a_stronger_noise_lowers_the_ratio(plain, digits):
    frame = workbench.analyze_grid(
        "snr", [(PLAIN, DIGITS)], {"noise": ["gaussian-noise", "impulse-noise"], "severity": [1, 3, 5]}, n=4
    )
    before = frame[(frame["metric"] == "snr") & (frame["candidate"] == "resid_pre")]
    first = before[(before["layer"] == 0) & before["input"].isna()].set_index(["noise", "severity"])["value"]
    for noise in ("gaussian-noise", "impulse-noise"):
        assert first[noise].is_monotonic_decreasing
    assert len(frame.attrs["provenance"]) == 6
    assert frame.attrs["provenance"][5]["options"]["severity"] == 5


def test_a_grid_needs_models_and_values():
    with pytest.raises(InputError, match="at least one value of severity"):
        workbench.analyze_grid("snr", [(PLAIN, DIGITS)], {"severity": []})
    with pytest.raises(InputError, match="no model to run"):
        workbench.analyze_grid("snr", [(None, DIGITS)], {"severity": [1]})


def test_windows_and_channel_attention_are_measured_too():
    """What attention adds is all that the ratios need: not a map of tokens."""
    for name, layers in (("xcit_nano_12_p16_224", "0,-1"), ("swin_tiny_patch4_window7_224", "0")):
        loaded = workbench.load(f"timm:{name}", pretrained=False)
        chosen = workbench.inputs("bundled:photos", loaded, n=1)
        frame = analyze("snr", model=loaded, inputs=chosen, layers=layers)
        assert value(frame, "snr_gain", "attention", layer=None, input=None) > 0
        left_out = [note for note in frame.attrs["notes"] if "left out" in note]
        assert len(left_out) == name.startswith("xcit")  # its class attention moves one token


def test_what_carries_no_images_is_refused(plain, digits):
    reader = workbench.load("bundled:prose-softmax")
    with pytest.raises(NoImages, match="texts have no pixels"):
        analyze("snr", model=reader, inputs="bundled:prose", n=1)
    with pytest.raises(InputError, match="perturbs the inputs; give them by name"):
        analyze("snr", model=plain, inputs=digits.batch)
    held = capture(plain, digits, sites=("q", "k", "v"))
    with pytest.raises(InputError, match="perturbed inputs; give model and inputs, not a file"):
        analyze("snr", qkv=held)
    with pytest.raises(InputError, match="severity must be a whole number from 1 to 5; got 6"):
        analyze("snr", model=plain, inputs=digits, severity=6)
    with pytest.raises(InputError, match="noise must be 'gaussian-noise' or"):
        analyze("snr", model=plain, inputs=digits, noise="snow")


def test_what_is_added_is_read_where_something_is_added():
    for record in capture(bert(), texts(), sites=("resid_pre", "attn_out", "resid_mid")):
        assert record.attn_out is None  # BERT normalises the sum
        assert record.resid_pre.shape == record.resid_mid.shape
    model = timm.create_model("vit_tiny_patch16_224", img_size=32, depth=2, init_values=0.1).eval()
    batch = torch.randn(2, 3, 32, 32)
    for record, block in zip(
        capture(model, batch, sites=("input", "resid_pre", "attn_out", "resid_mid")),
        model.blocks,
        strict=True,
    ):
        with torch.no_grad():
            torch.testing.assert_close(block.norm1(record.resid_pre), record.input)
            added = block.ls1(block.attn(record.input))
        torch.testing.assert_close(record.attn_out, added, rtol=1e-4, atol=1e-5)
    decoder = torch.nn.TransformerDecoder(
        torch.nn.TransformerDecoderLayer(12, 3, batch_first=True, norm_first=True), 1
    )
    x = torch.randn(2, 5, 12)
    for record in capture(decoder.eval(), (x, x), sites=("resid_pre", "attn_out", "resid_post")):
        assert record.resid_pre is None  # two attentions in one block
        assert record.attn_out is None
    cait = timm.create_model("cait_xxs24_224", img_size=32, patch_size=8, depth=2, num_heads=4, embed_dim=24)
    *patches, first, second = capture(cait.eval(), batch, sites=("resid_pre", "attn_out", "resid_mid"))
    for record in (first, second):  # the patches come as one argument, the class token as another
        assert record.resid_pre is None
        assert record.attn_out is None
    for record in patches:
        torch.testing.assert_close(record.resid_pre + record.attn_out, record.resid_mid)


def test_a_perturbed_image_is_what_the_model_would_get(digits):
    same_again = digits.perturbed(lambda _, image: image)
    torch.testing.assert_close(same_again.batch, digits.batch)
    assert all(np.array_equal(one, two) for one, two in zip(same_again.images, digits.images, strict=True))
    names = []
    inverted = digits.perturbed(lambda name, image: names.append(name) or 1 - image)
    assert names == digits.ids
    for one, two in zip(inverted.images, digits.images, strict=True):
        assert np.abs(255 - one.astype(int) - two).max() <= 1
    assert (inverted.ids, inverted.sha256) == (digits.ids, digits.sha256)
