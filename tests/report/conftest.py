"""Fixtures that all tests of the pages share."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from browser import browser, open_page

__all__ = ["browser", "open_page"]
