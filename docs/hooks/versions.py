"""MkDocs hook: where mike puts a version of the site beside others, every page offers them."""

from __future__ import annotations

import os

from mkdocs.config.defaults import MkDocsConfig


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Ask the theme for its choice of version; alone, the site has none to ask its own host for."""
    if os.environ.get("MIKE_DOCS_VERSION"):
        config.extra["version"] = {"provider": "mike"}
    return config
