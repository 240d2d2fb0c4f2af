"""The built-in catalogues, one module each: a declared domain and the kinds of tasks in it."""

from agentgym.envs.toolworld.domains import (
    calendar,
    clinic,
    home,
    ledger,
    library,
    tracker,
    travel,
    warehouse,
)
from agentgym.envs.toolworld.templates import Catalogue

CATALOGUES: dict[str, Catalogue] = {
    module.CATALOGUE.name: module.CATALOGUE
    for module in (travel, calendar, library, warehouse, ledger, tracker, clinic, home)
}
"""By name."""
