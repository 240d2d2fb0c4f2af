"""Experiment trackers: TRL's `report_to`, checked before a model is loaded for nothing.

TRL's logs hold its own metrics and ours (`agentgym/…`), so a tracker gets both.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable

from agentgym.errors import ConfigError, unknown_name

_PACKAGES = {
    "tensorboard": ("tensorboard", "tensorboardX"),
    "trackio": ("trackio",),
    "wandb": ("wandb",),
    "mlflow": ("mlflow",),
    "swanlab": ("swanlab",),
}
"""Trackers and the packages of which one must be there. Others that transformers knows check that
themselves."""


def check_trackers(report_to: Iterable[str]) -> None:
    """See that each tracker exists and is installed.

    Raises:
        ConfigError: If one doesn't, or isn't.
    """
    from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK

    for name in report_to:
        if name not in INTEGRATION_TO_CALLBACK:
            known = ["none", *_PACKAGES, *sorted(set(INTEGRATION_TO_CALLBACK) - set(_PACKAGES))]
            raise ConfigError(f"[grpo]: report_to: {unknown_name('tracker', name, known)}")
        packages = _PACKAGES.get(name, ())
        if packages and not any(map(importlib.util.find_spec, packages)):
            raise ConfigError(
                f"[grpo]: report_to = {name!r} needs the package {packages[0]}: "
                f"pip install {packages[0]}"
            )
