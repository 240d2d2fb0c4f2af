"""Tool calls in the models' own formats: one reader per format, chosen by the chat template."""

from agentgym.tokens.calls.families import FORMATS, format_of
from agentgym.tokens.calls.ids import CallReader
from agentgym.tokens.calls.reading import CallFormat, ReadCall, Reading

__all__ = ["FORMATS", "CallFormat", "CallReader", "ReadCall", "Reading", "format_of"]
