"""The logit lens: the end of the model by hand, its own output after the last block, and other tokens."""

import numpy as np
import pytest
import torch

import workbench
from tests.analyses.test_logit_attribution import IMAGES, classifier
from tests.captures.families import FAMILIES
from tests.runs.test_analyze import bert
from workbench.captures import capture
from workbench.core.errors import InputError


def measured(frame, metric, layer):
    return frame[(frame["metric"] == metric) & (frame["layer"] == layer)]["value"].to_numpy()


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_the_lens_is_the_model_s_own_end_on_the_stream_of_every_layer(name):
    family = FAMILIES[name]
    model, batch = family.build(), family.batch()
    frame = workbench.analyze("logit-lens", model, batch)
    np.testing.assert_allclose(measured(frame, "logit_lens_divergence", 1), 0, atol=1e-6)
    assert (measured(frame, "logit_lens_agreement", 1) == 1).all()
    stream = capture(model, batch, layers=[0], sites=("resid_post",))[0].resid_post
    norm = model.transformer.ln_f if name == "gpt2" else model.model.norm
    with torch.no_grad():
        own = model(**batch).logits.log_softmax(-1)
        seen = model.lm_head(norm(stream)).log_softmax(-1)
    divergence = (own.exp() * (own - seen)).sum(-1)
    for number, length in enumerate(batch["attention_mask"].sum(1).tolist()):
        expected = sum(divergence[number, token].item() for token in range(length)) / length
        assert measured(frame, "logit_lens_divergence", 0)[number] == pytest.approx(
            expected, rel=1e-4, abs=1e-7
        )
        same = [own[number, t].argmax() == seen[number, t].argmax() for t in range(length)]
        assert measured(frame, "logit_lens_agreement", 0)[number] == pytest.approx(sum(same).item() / length)


def test_the_class_token_of_a_classifier_is_read_and_batches_do_not_matter():
    model = classifier()
    frame = workbench.analyze("logit-lens", model, IMAGES)
    single = workbench.analyze("logit-lens", model, IMAGES, batch_size=1)
    stream = capture(model, IMAGES, layers=[0], sites=("resid_post",))[0].resid_post
    with torch.no_grad():
        own, seen = model(IMAGES).log_softmax(-1), model.forward_head(model.norm(stream)).log_softmax(-1)
    expected = (own.exp() * (own - seen)).sum(-1)
    np.testing.assert_allclose(measured(frame, "logit_lens_divergence", 0), expected, rtol=1e-4)
    np.testing.assert_allclose(measured(frame, "logit_lens_divergence", 1), 0, atol=1e-6)
    for column in ("value", "null_mean"):
        np.testing.assert_allclose(single[column], frame[column], rtol=1e-3, atol=1e-6)
    last = frame[(frame["layer"] == 1) & (frame["metric"] == "logit_lens_divergence")]
    assert last["null_low"].min() > 0  # other tokens have other streams


def test_models_without_logits_and_chosen_heads_are_refused():
    with pytest.raises(InputError, match="returns no logits"):
        workbench.analyze("logit-lens", bert(), FAMILIES["bert"].batch())
    with pytest.raises(InputError, match="logit-lens measures whole layers; leave out heads"):
        workbench.analyze("logit-lens", classifier(), IMAGES, heads=[1])


def test_findings_compare_with_streams_of_other_tokens():
    frame = workbench.analyze("logit-lens", "bundled:digits-vit", "bundled:digits", n=8)
    (sentence,) = workbench.findings(frame)
    assert "1.00 [1.00, 1.00] in layer 3" in sentence
    assert "for streams of other tokens" in sentence
