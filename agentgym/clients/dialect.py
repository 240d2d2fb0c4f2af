"""What a server turns out not to know, and how requests are written for it from then on.

Half of the fields of a request are unknown to some server. A refused field that changes nothing is
left out; a newer name is learnt; a structured answer is asked for in the next weaker form. A field
with an effect is never dropped in silence: what is sampled would no longer be what was asked for.

What is learnt holds for one client, so one request pays for it. Where thousands start at once, the
first that asks for a structured answer goes ahead alone, until the server has taken a form of it.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from agentgym.client import Endpoint
from agentgym.clients.failures import is_overflow
from agentgym.clients.limiter import Limiter
from agentgym.clients.reply import BadReply

_NEUTRAL = {
    "top_p": 1.0,
    "top_k": -1,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
}
"""Fields that may be left out for a server that refuses them, as long as they change nothing."""

_FORMS = ("json_schema", "json_object", "none")
"""How an answer is held to JSON, from the strongest form to none at all."""
_ABOUT_FORMS = re.compile(
    r"response[_ ]?format|json[_ ]?(schema|object|mode)|structured[_ ]?(outputs?|generation)"
    r"|guided[_ ](json|decoding)",
    re.IGNORECASE,
)
_ABOUT_ONE_FORM = re.compile(r"json[_ ]?(schema|object|mode)|structured|guided", re.IGNORECASE)


class SpokenDialect:
    """An endpoint's dialect, and what was learnt of it.

    Args:
        endpoint: Its dialect, and fields of its own.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self._extra_body = endpoint.extra_body
        self._refused: set[str] = set()
        given = endpoint.dialect.structured_output
        self._form = 0 if given == "auto" else _FORMS.index(given)
        self._form_is_known = given != "auto"
        self._one_at_a_time = Limiter(1)

    @property
    def structured_output(self) -> str:
        """The form in which structured answers are asked for now."""
        return _FORMS[self._form]

    def as_sent(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """A request as this server takes it, with the endpoint's own fields."""
        if not (self._refused or self._extra_body or "response_format" in body):
            return body
        sent = {
            key: value
            for key, value in body.items()
            if key not in self._refused or value != _NEUTRAL.get(key, value)
        }
        if "max_completion_tokens" in self._refused:  # the newer name on OpenAI's own servers
            sent["max_completion_tokens"] = sent.pop("max_tokens")
        if "response_format" in sent:
            if self.structured_output == "json_object":
                sent["response_format"] = {"type": "json_object"}
            elif self.structured_output == "none":
                del sent["response_format"]
        return {**sent, **self._extra_body}

    @asynccontextmanager
    async def scouting(self, ticket: int) -> AsyncIterator[None]:
        """Wait for one's turn to try a form of structured answers, as long as none is known.

        Args:
            ticket: The call's place in the queue.
        """
        async with AsyncExitStack() as turn:
            if not self._knows_form():
                await turn.enter_async_context(self._one_at_a_time.slot(ticket))
                if self._knows_form():
                    await turn.aclose()
            yield

    def _knows_form(self) -> bool:
        return self._form_is_known

    def accepted(self, sent: Mapping[str, Any]) -> None:
        """The server answered this request, and so takes the form that it was in."""
        if "response_format" in sent:
            self._form_is_known = True

    def learn(self, failure: BadReply, sent: Mapping[str, Any]) -> bool:
        """Note what the server refuses, if requests can do without.

        Args:
            failure: The refusal.
            sent: The request that was refused; it may be older than what was learnt meanwhile.

        Returns:
            Whether to send the request again, in another form.
        """
        if failure.status not in (400, 422) or is_overflow(failure):
            return False
        text = str(failure)
        ours = sent.keys() - self._extra_body.keys()  # on the others the caller insists
        if "max_tokens" in ours and "max_completion_tokens" in text:
            self._refused.add("max_completion_tokens")
            return True
        if "stream_options" in ours and "stream_options" in text:
            self._refused.add("stream_options")
            return True
        for key, neutral in _NEUTRAL.items():
            if key in ours and sent[key] == neutral and re.search(rf"\b{key}\b", text):
                self._refused.add(key)
                return True
        return "response_format" in ours and self._next_form(text, sent)

    def _next_form(self, text: str, sent: Mapping[str, Any]) -> bool:
        if not _ABOUT_FORMS.search(text):
            return False
        refused = _FORMS.index(sent["response_format"]["type"])
        if refused < self._form:  # learnt by another request meanwhile
            return True
        if self._form_is_known:  # configured, or taken before: the fault is elsewhere
            return False
        # A server that names no form knows none.
        self._form = refused + 1 if _ABOUT_ONE_FORM.search(text) else len(_FORMS) - 1
        self._form_is_known = self.structured_output == "none"
        return True
