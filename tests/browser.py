"""What the tests that print figures need."""

from __future__ import annotations

import pytest

from workbench.figures.export.chrome import find_chrome, missing_chrome

needs_chrome = pytest.mark.skipif(find_chrome() is None, reason=f"prints figures: {missing_chrome()}")
