"""Prices are the shipped ones, whatever the user running the tests has in their own book."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def no_prices_of_the_user(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("config")))
