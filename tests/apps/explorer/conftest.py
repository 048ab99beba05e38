"""What the tests of the explorer share: one browser per file."""

import pytest

from tests.apps.explorer.browser import chromium


@pytest.fixture(scope="module")
def browser():
    with chromium() as opened:
        yield opened
