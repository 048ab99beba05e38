"""Activation patching of pairs: hooks by hand, small steps as the gradient, and inputs that are no pairs."""

from contextlib import contextmanager

import numpy as np
import pytest
import torch

import workbench
from tests.captures.families import FAMILIES
from tests.runs.test_analyze import bert, vit
from workbench.analyses import patching
from workbench.captures import capture
from workbench.core.errors import InputError
from workbench.figures import head_grid_figure

IMAGES = torch.randn(4, 3, 16, 16, generator=torch.Generator().manual_seed(3))
DONORS = [1, 0, 3, 2]  # the other input of each pair


def classifier():
    """A vision transformer that predicts different classes."""
    model = vit()
    with torch.no_grad():
        model.head.bias -= model(torch.randn(50, 3, 16, 16, generator=torch.Generator().manual_seed(4))).mean(
            0
        )
    return model


def gpt2():
    """A language model, texts of 6 and 5 tokens with padding, and the place of each last token."""
    ids = torch.randint(0, 50, (4, 6), generator=torch.Generator().manual_seed(5))
    real = torch.ones_like(ids)
    real[2:, 5] = 0
    return FAMILIES["gpt2"].build(), {"input_ids": ids, "attention_mask": real}, [5, 5, 4, 4]


def run(model, batch):
    result = model(**batch) if isinstance(batch, dict) else model(batch)
    return result if isinstance(result, torch.Tensor) else result.logits


@contextmanager
def hooked(projection, head, size, change):
    """Change the output of one head where the output projection reads it."""

    def hook(module, args):
        outputs = args[0].clone()
        part = slice(head * size, (head + 1) * size)
        outputs[..., part] = change(outputs[..., part])
        return (outputs,)

    handle = projection.register_forward_pre_hook(hook)
    try:
        yield
    finally:
        handle.remove()


def shares(model, batch, last, projection, head, size, change):
    """The share of the way to the logit difference of the other input, input by input."""
    with torch.no_grad():
        plain = run(model, batch)
        with hooked(projection, head, size, change):
            patched = run(model, batch)
    if last is not None:
        plain, patched = (logits[range(4), last] for logits in (plain, patched))
    outcomes = plain.argmax(-1).tolist()
    result = []
    for number, donor in enumerate(DONORS):
        a, b = outcomes[number], outcomes[donor]
        own, other, new = ((row[b] - row[a]).item() for row in (plain[number], plain[donor], patched[number]))
        result.append((new - own) / (other - own) if a != b else float("nan"))
    return result


def parts(kind):
    if kind == "vit":
        model = classifier()
        return model, IMAGES, None, model.blocks[1].attn.proj, model.blocks[1].attn.head_dim
    model, batch, last = gpt2()
    attn = model.transformer.h[1].attn
    return model, batch, last, attn.c_proj, attn.head_dim


def measured(frame, metric, head):
    return frame[(frame["metric"] == metric) & (frame["head"] == head)]["value"].to_numpy()


def of_pairs(values):
    """The mean of both directions of each pair."""
    return [(values[0] + values[1]) / 2, (values[2] + values[3]) / 2]


@pytest.mark.parametrize("kind", ["vit", "gpt2"])
def test_the_effect_is_that_of_a_hook_by_hand(kind):
    model, batch, last, projection, size = parts(kind)
    frame = workbench.analyze("patching", model, batch, layers=[1], null_samples=0)
    assert frame["value"].notna().any()
    for head in sorted(frame["head"].dropna().unique()):
        expected = shares(model, batch, last, projection, head, size, lambda out: out[DONORS])
        rows = measured(frame, "patching_effect", head)
        np.testing.assert_allclose(rows, of_pairs(expected), rtol=1e-4, atol=1e-6)
    assert frame["input"].unique().tolist() == ["0", "2"]  # a pair is one sample of an interval
    for start, direction in enumerate(("noising", "denoising")):
        one = workbench.analyze("patching", model, batch, layers=[1], null_samples=0, direction=direction)
        rows = measured(one, "patching_effect", head)
        np.testing.assert_allclose(rows, expected[start::2], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kind", ["vit", "gpt2"])
def test_attribution_is_the_slope_of_a_small_step_to_the_other_input(kind):
    model, batch, last, projection, size = parts(kind)
    model.double()
    batch = batch.double() if isinstance(batch, torch.Tensor) else batch
    step = 1e-5
    frame = workbench.analyze("patching", model, batch, layers=[1], null_samples=0)
    for head in sorted(frame["head"].dropna().unique()):
        moved = shares(
            model, batch, last, projection, head, size, lambda out: out + step * (out[DONORS] - out)
        )
        slope = np.array(moved) / step
        rows = measured(frame, "patching_attribution", head)
        np.testing.assert_allclose(rows, of_pairs(slope), rtol=1e-3, atol=1e-4)


def test_rows_per_token_patch_one_token():
    model, batch, last, projection, size = parts("gpt2")
    rows = workbench.analyze("patching", model, batch, layers=[1], heads=[2], per="token")
    assert rows.groupby("input").size().tolist() == [6, 6, 5, 5]

    def change(token):
        def patched(out):
            new = out.clone()
            new[:, token] = out[DONORS][:, token]
            return new

        return patched

    for token in range(6):
        expected = shares(model, batch, last, projection, 2, size, change(token))
        found = rows[rows["token"] == token]["value"].to_numpy()
        np.testing.assert_allclose(found, expected[: len(found)], rtol=1e-4, atol=1e-6)


def test_right_answers_are_the_last_tokens():
    model, batch, last, projection, size = parts("gpt2")
    frame = workbench.analyze("patching", model, batch, layers=[1], heads=[0], target="right", null_samples=0)
    ids = batch["input_ids"][range(4), last]
    with torch.no_grad():
        plain = run(model, batch)
        with hooked(projection, 0, size, lambda out: out[DONORS]):
            patched = run(model, batch)
    expected = []
    for number, donor in enumerate(DONORS):
        place, a, b = last[number] - 1, ids[number], ids[donor]
        own, other, new = (
            (row[b] - row[a]).item()
            for row in (plain[number, place], plain[donor, place], patched[number, place])
        )
        expected.append((new - own) / (other - own))
    np.testing.assert_allclose(measured(frame, "patching_effect", 0), of_pairs(expected), rtol=1e-3)


@pytest.mark.parametrize("target", ["2/5", "5/2"])
def test_two_named_outcomes_are_compared_in_every_pair(target):
    model = classifier()
    frame = workbench.analyze(
        "patching", model, IMAGES, layers=[1], heads=[0], target=target, direction="denoising", null_samples=0
    )
    attn = model.blocks[1].attn
    with torch.no_grad():
        plain = model(IMAGES)
        with hooked(attn.proj, 0, attn.head_dim, lambda out: out[DONORS]):
            patched = model(IMAGES)
    difference, new = (logits[:, 5] - logits[:, 2] for logits in (plain, patched))
    shares = (new - difference) / (difference[DONORS] - difference)
    np.testing.assert_allclose(measured(frame, "patching_effect", 0), shares[1::2], rtol=1e-3, atol=1e-5)


def test_outcomes_have_the_names_of_tokens():
    texts = ["The sea was", "The sun was", "A cat and I", "A dog and I"]
    named, reverse = (
        workbench.analyze(
            "patching", "bundled:prose-softmax", texts, layers=[0], heads=[0], target=target, null_samples=0
        )
        for target in ("a/e", "e/a")
    )
    assert named["value"].notna().all()
    sign = np.where(named["metric"] == "patching_baseline", -1, 1)
    np.testing.assert_allclose(named["value"], sign * reverse["value"], rtol=1e-4)
    with pytest.raises(InputError, match=r"'the' is not one token of the model \(t h e\)"):
        workbench.analyze("patching", "bundled:prose-softmax", texts, target="the/a")
    with pytest.raises(InputError, match="give two different ones of the model's 7 outcomes"):
        workbench.analyze("patching", classifier(), IMAGES, target="2/9")
    with pytest.raises(
        InputError, match="'predicted', 'right' or two outcomes by name, as 'Mary/John'; got 'Mary'"
    ):
        workbench.analyze("patching", classifier(), IMAGES, target="Mary")


def test_batches_of_whole_pairs_do_not_matter():
    model, batch, *_ = gpt2()
    whole = workbench.analyze("patching", model, batch)
    pairs = workbench.analyze("patching", model, batch, batch_size=2)
    for column in ("value", "null_mean"):
        np.testing.assert_allclose(pairs[column], whole[column], rtol=1e-3, atol=1e-5)


def test_a_random_direction_moves_the_outputs_as_far(monkeypatch):
    from workbench.runs import loop

    model, original, seen = classifier(), loop.intervene, []
    monkeypatch.setattr(
        loop,
        "intervene",
        lambda loaded, changes, *site: seen.append(changes) or original(loaded, changes, *site),
    )
    workbench.analyze("patching", model, IMAGES, layers=[0], heads=[1], null_samples=2)
    (record,) = capture(model, IMAGES, layers=[0], sites=("head_out",))
    outputs = record.head_out[:, 1]
    *passes, _ = seen  # the last pass is that of the gradient
    donor, *noises = (changes[0, 1](outputs) for changes in passes)
    assert torch.equal(donor, outputs[DONORS])
    assert len(noises) == 2
    for noise in noises:
        torch.testing.assert_close((noise - outputs).norm(dim=-1), (donor - outputs).norm(dim=-1))
    assert not torch.equal(*noises)


def test_other_pairs_of_as_many_tokens_are_a_null():
    model, batch, _, projection, size = parts("vit")
    batch = torch.cat([batch, IMAGES[[2, 1]] + 0.5])
    frame = workbench.analyze("patching", model, batch, layers=[1], heads=[1], null="others")
    rows = frame[frame["metric"] == "patching_effect"].reset_index()
    with torch.no_grad():
        plain = model(batch)
        effects = []
        for source in ([4, 5, 0, 1, 2, 3], [2, 3, 4, 5, 0, 1]):
            with hooked(projection, 1, size, lambda out, source=source: out[source]):
                effects.append(model(batch))
    means = []
    for number, donor in enumerate([1, 0, 3, 2, 5, 4]):
        a, b = plain[number].argmax(), plain[donor].argmax()
        own, other = (plain[row][b] - plain[row][a] for row in (number, donor))
        shares = [((new[number][b] - new[number][a] - own) / (other - own)).item() for new in effects]
        means.append(sum(shares) / 2 if a != b else np.nan)
    expected = (np.array(means[::2]) + means[1::2]) / 2
    assert np.isfinite(expected).any()
    np.testing.assert_allclose(rows["null_mean"].astype(float), expected, rtol=1e-3, atol=1e-6)
    model, batch, *_ = gpt2()  # the two pairs have no equal token counts
    alone = workbench.analyze("patching", model, batch, layers=[0], null="others")
    assert alone["null_mean"].isna().all()
    (note,) = (note for note in alone.attrs["notes"] if "have no null" in note)
    assert note.startswith("2 of 2 pairs, counted per layer, have no null: null='others' needs 2 other pairs")


def test_inputs_that_are_no_pairs_are_refused():
    model, batch, _ = gpt2()
    with pytest.raises(InputError, match="got a batch of 3; give an even number of inputs and an even"):
        workbench.analyze("patching", vit(), IMAGES[:3])
    unequal = {name: value[[0, 2]] for name, value in batch.items()}
    with pytest.raises(InputError, match="0 and 1 have 6 and 5 tokens; give pairs of equal token counts"):
        workbench.analyze("patching", model, unequal)
    with pytest.raises(InputError, match="give target='predicted'"):
        workbench.analyze("patching", vit(), IMAGES, target="right")
    with pytest.warns(
        UserWarning, match=r"patching: every value is undefined \(NaN\): 1 of 1 pairs"
    ) as caught:
        same = workbench.analyze("patching", vit(), IMAGES[[0, 0]], layers=[0])
    assert caught[0].filename == __file__
    assert same["value"].isna().all()
    assert same.attrs["notes"] == [
        "1 of 1 pairs, counted per layer, have no value: both inputs have the same outcome (target='predicted'); "
        "target='right' or 'Mary/John' gives two"
    ]
    with pytest.raises(InputError, match=r"all values of patching_effect are NaN; frame.attrs\['notes'\]"):
        head_grid_figure(same, "patching_effect")
    equal = torch.stack([IMAGES[0], IMAGES[0], IMAGES[1], IMAGES[2]])
    mixed = workbench.analyze("patching", classifier(), equal, layers=[0, 1], target="1/4")
    effects = mixed[mixed["metric"] != "patching_baseline"]
    assert effects["value"].isna().sum() == len(effects) / 2
    assert mixed.attrs["notes"] == [
        "2 of 4 pairs, counted per layer, have no value: both inputs have the same logit difference; let them differ "
        "before the token that is predicted"
    ]
    words = {name: value[:, :7] for name, value in FAMILIES["bert"].batch().items()}
    with pytest.raises(InputError, match="returns no logits"):
        workbench.analyze("patching", bert(), {name: value[:2] for name, value in words.items()})


@pytest.mark.parametrize("kind", ["vit", "gpt2"])
def test_both_baselines_of_a_pair_are_rows_of_no_layer(kind):
    model, batch, last, *_ = parts(kind)
    frame = workbench.analyze("patching", model, batch, null_samples=0)
    rows = frame[frame["metric"] == "patching_baseline"]
    assert rows["layer"].isna().all()
    assert rows["value"].notna().any()
    with torch.no_grad():
        logits = run(model, batch) if last is None else run(model, batch)[range(4), last]
    outcome = logits.argmax(-1).tolist()
    for pair in (0, 2):
        clean, corrupted = outcome[pair : pair + 2]
        for number, candidate in enumerate(("clean", "corrupted")):
            row = rows[(rows["input"] == str(pair)) & (rows["candidate"] == candidate)]["value"]
            difference = (logits[pair + number, clean] - logits[pair + number, corrupted]).item()
            expected = difference if clean != corrupted else np.nan
            np.testing.assert_allclose(row, [expected], rtol=1e-4, atol=1e-6)


def test_a_z_score_needs_ten_null_samples():
    model, batch, *_ = parts("vit")
    for samples in (2, 9, 10):
        frame = workbench.analyze("patching", model, batch, layers=[1], null_samples=samples)
        rows = frame[(frame["metric"] == "patching_effect") & frame["value"].notna()]
        assert rows["null_low"].notna().all()
        assert rows["z"].notna().all() == (samples == 10)
        assert rows["z"].isna().all() == (samples < 10)
        assert not any("all null samples agree" in note for note in frame.attrs["notes"])


def test_pairs_whose_logits_hardly_differ_are_counted(monkeypatch):
    model, batch, *_ = parts("vit")
    gap = patching._Patching.gap.fget
    plain = workbench.analyze("patching", model, batch, layers=[1], null_samples=2)
    assert not any("large by chance" in note for note in plain.attrs["notes"])
    monkeypatch.setattr(patching._Patching, "gap", property(lambda self: gap(self) / 1000))
    close = workbench.analyze("patching", model, batch, layers=[1], null_samples=2)
    assert any("large by chance" in note for note in close.attrs["notes"])


def test_findings_print_the_rank_correlation_of_attribution():
    frame = workbench.analyze("patching", "bundled:digits-vit", "bundled:digits", n=6, target="right")
    sentences = workbench.findings(frame)
    assert "of the way to the other input of the pair" in sentences[0]
    assert "for random directions of the same norm" in sentences[0]
    exact, estimate = (
        frame[frame["metric"] == metric].groupby(["layer", "head"])["value"].mean().rank()
        for metric in ("patching_effect", "patching_attribution")
    )
    correlation = np.corrcoef(exact, estimate)[0, 1]
    assert f"attribution patching: rank correlation {correlation:.2f} with patching, over" in sentences[1]
