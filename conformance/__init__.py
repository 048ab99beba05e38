"""The conformance table: every model type of transformers and timm, captured and compared with its own softmaxes.

`python -m conformance` writes `data/records/conformance.csv` and `docs/conformance.md`; see docs/capture.md.
"""
