"""Words of options: what tells two lenses or two scripts apart."""

from __future__ import annotations

import pytest

from agentgym.envs.webshop.external import _words


@pytest.mark.parametrize(
    ("one", "other"),
    [("+2.00", "-2.00"), ("红色", "蓝色"), ("café", "caf"), ("large", "x-large"), ("5.5", "55")],
)
def test_other_options(one: str, other: str) -> None:
    assert _words(one) != _words(other)


@pytest.mark.parametrize(
    ("one", "other"), [("X-Large", "x large"), ("8 x 10", "8  X 10"), ("b07-black", "b07 Black")]
)
def test_the_same_option(one: str, other: str) -> None:
    assert _words(one) == _words(other)
