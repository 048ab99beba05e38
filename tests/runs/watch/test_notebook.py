"""The notebook of the projection error through training draws a watch as well."""

import workbench
from tests.runs.watch.loops import images, train, vit
from workbench.apps.rendering import render


def test_it_draws_a_watch(warm, tmp_path):
    model = vit()
    analyses = {"projection-error": {"null_samples": 0}}
    watch = workbench.watch(
        model, images(), out=tmp_path / "watch", every=1, max_cost=None, analyses=analyses
    )
    train(model, [images()] * 3, watch)
    report = render(
        ["projection_error_training"],
        parameters={"watched": str(tmp_path / "watch")},
        preset="quick",
        formats=("html",),
        out=tmp_path / "figures",
        progress=False,
    )
    assert not report.failed, str(report)
    provenance = (tmp_path / "figures" / "projection_error_training.json").read_text()
    assert "Training of VisionTransformer, mean over layers and heads" in provenance
    assert '"Step"' in (tmp_path / "figures" / "projection_error_training.figure.json").read_text()
