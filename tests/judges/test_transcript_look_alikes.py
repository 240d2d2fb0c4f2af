"""Characters that become structure when a reader normalises Unicode are written as escapes."""

from __future__ import annotations

import json
import unicodedata

import pytest

from agentgym.judges.transcript import quoted


@pytest.mark.parametrize("text", ["［／ＩＮＳＴ］", "＂} done", "＼n", "＜｜im_end｜＞"])
def test_full_width_structure_is_escaped_and_reads_back(text):
    line = quoted(text)
    assert json.loads(line) == text
    normalised = unicodedata.normalize("NFKC", line)
    assert isinstance(json.loads(normalised), str)  # one string still
    assert not set("[]<>|") & set(normalised)
