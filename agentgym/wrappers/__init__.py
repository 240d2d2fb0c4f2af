"""Wrappers that know about conversations; they compose with Gymnasium's own."""

from agentgym.wrappers.base import AgentWrapper
from agentgym.wrappers.text import TextInTextOut
from agentgym.wrappers.trace_logger import TraceLogger
from agentgym.wrappers.turn_cap import TurnCap

__all__ = ["AgentWrapper", "TextInTextOut", "TraceLogger", "TurnCap"]
