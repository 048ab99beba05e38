"""What the general ways of shrinking and of making inputs do not know of single models.

``CLASSES`` names the class of a type's models. ``FIELDS`` sets fields of its configuration after shrinking, by path
("" holds what the configuration is made with). ``INPUTS`` makes its batch of the configuration, or says why there is
none. ``ELSEWHERE`` says of softmaxes that meet data in a model and are no attention over tokens what they are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

CLASSES: dict[str, str] = {}
FIELDS: dict[str, dict[str, Any]] = {}
INPUTS: dict[str, str | Callable[[Any], dict[str, Any]]] = {}
ELSEWHERE: dict[str, str] = {}
