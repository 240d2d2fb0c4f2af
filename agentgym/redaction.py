"""What must not be written: keys and passwords in traces and recordings.

Tools can return anything, the process's environment included. So whatever appends episodes to a
file passes its lines through a `Redactor`, which knows the values of the environment's credentials
and the forms that well-known services' keys have.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable

REDACTED = "[redacted]"

SHORTEST_SECRET = 8
"""Shorter values (EMPTY, none, an API version's v1) would blot out ordinary text."""

_CREDENTIAL = re.compile(
    r"(^|_)(KEY|TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIALS?|PAT)$"
    r"|API_?KEY|ACCESS_KEY|SECRET|PASSWORD",
    re.IGNORECASE,
)
"""Names of environment variables that hold a credential."""

_FIRST = r"(?:(?<![A-Za-z0-9])|(?<=\\[nrt]))"  # of a word, after an escaped line feed too
_WITH_DIGIT = r"(?=[\w.~+/-]{0,99}[0-9])"  # looked for nearby only, so that time stays linear
_KEY_FORMS = re.compile(
    rf"{_FIRST}(?:"
    rf"sk-{_WITH_DIGIT}[A-Za-z0-9_-]{{16,}}"
    r"|hf_[A-Za-z0-9]{20,}"
    r"|gh[opsru]_[A-Za-z0-9]{20,}"
    r"|github_pat_[A-Za-z0-9_]{20,}"
    r"|glpat-[A-Za-z0-9_-]{20,}"
    r"|xox[abeprs]-[A-Za-z0-9-]{16,}"
    r"|AIza[A-Za-z0-9_-]{35,}"
    r"|(?:AKIA|ASIA)[A-Z0-9]{16}(?![A-Za-z0-9])"
    rf"|(?P<before>[Bb]earer ){_WITH_DIGIT}[A-Za-z0-9._~+/-]{{16,}}=*"
    r")",
    re.ASCII,
)
"""Keys that show by their form: OpenAI's and its imitators', Hugging Face's, GitHub's, GitLab's,
Slack's, Google's, Amazon's, and whatever an Authorization header bears."""
_MARKS = (
    *("sk-", "hf_", "ghp_", "gho_", "ghs_", "ghr_", "ghu_", "github_pat_", "glpat-"),
    *("xox", "AIza", "AKIA", "ASIA", "earer "),
)
"""One of them is in every such key."""

_STRING = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"')
_FIELD_NAME = re.compile(r"[a-z_]+")
_CORE = re.compile("[A-Za-z0-9]+")
_NESTED = 2  # JSON inside JSON inside a string


def credentials_in_environment() -> set[str]:
    """The values of the variables that are named like a credential, as they stand now."""
    values = {value.strip() for name, value in os.environ.items() if _CREDENTIAL.search(name)}
    return {value for value in values if len(value) >= SHORTEST_SECRET}


class Redactor:
    """Takes secrets out of JSON, which stays JSON.

    It knows the environment's credentials, as they stand when it is made, and the usual forms of
    keys. Taking out twice is the same as once.

    Args:
        secrets: Further values to take out.
    """

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self._secrets: set[str] = set()
        self._forms: list[tuple[str, str]] = []
        self.add(credentials_in_environment())
        self.add(secrets)

    def add(self, secrets: Iterable[str]) -> None:
        """Take these values out as well."""
        self._secrets.update(secret for secret in secrets if secret)
        forms = {form: _core(secret) for secret in self._secrets for form in _forms(secret)}
        # The longest first, since one may hold another.
        self._forms = sorted(forms.items(), key=lambda pair: len(pair[0]), reverse=True)

    def __call__(self, text: str) -> str:
        """JSON text without the secrets in its strings; names of fields stay."""
        # A secret's core stands in the text however that is escaped.
        forms = [(form, core) for form, core in self._forms if core in text]
        marks = [mark for mark in _MARKS if mark in text]
        if not forms and not marks:
            return text

        def without(match: re.Match[str]) -> str:
            literal = match[0]
            near = [form for form, core in forms if core in literal]
            if not near and not any(mark in literal for mark in marks):
                return literal
            string = json.loads(literal, strict=False)
            found = _without(near, string)
            is_field = text[match.end() : match.end() + 1] == ":" and _FIELD_NAME.fullmatch(string)
            return literal if found == string or is_field else json.dumps(found)

        return _STRING.sub(without, text)

    def from_text(self, text: str) -> str:
        """A text that is no JSON without the secrets in it."""
        return _without((form for form, _ in self._forms), text)


def _without(forms: Iterable[str], text: str) -> str:
    for form in forms:
        text = text.replace(form, REDACTED)
    return _KEY_FORMS.sub(rf"\g<before>{REDACTED}", text)


def _forms(secret: str) -> set[str]:
    """A secret as it stands in text: as it is, and as JSON and `repr` escape it, repeatedly."""
    forms = {secret}
    for _ in range(_NESTED):
        for form in tuple(forms):
            forms |= {json.dumps(form)[1:-1], json.dumps(form, ensure_ascii=False)[1:-1]}
            forms.add(repr(form)[1:-1])
    return forms


def _core(secret: str) -> str:
    """The longest part of a secret that no escaping changes."""
    return max(_CORE.findall(secret), key=len, default="")
