"""Why a training run fails, said while it does, and from its files.

The monitors look at the numbers of each step (`agentgym.train.metrics`, TRL's own, the held-out
evaluations) and raise an alarm once there is evidence for it: what is seen, with the figures; the
likely cause; the first thing to change. None of this needs torch: `diagnose` reads a run anywhere.
"""

from agentgym.train.monitors.alarm import Alarm, AlarmBook
from agentgym.train.monitors.checks import ALARMS, look
from agentgym.train.monitors.history import RunHistory, Thresholds
from agentgym.train.monitors.offline import Diagnosis, diagnose

__all__ = [
    "ALARMS",
    "Alarm",
    "AlarmBook",
    "Diagnosis",
    "RunHistory",
    "Thresholds",
    "diagnose",
    "look",
]
