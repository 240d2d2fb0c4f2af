"""What a scripted user makes of what an agent says: a proposal, a refusal, a report, a question.

Agents word things freely, so nothing here depends on one wording: a message is searched for the few
turns of phrase by which English marks a proposal or a refusal, and for the words that the script
names. What fits nothing is "not understood", which the user says; it is never guessed.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence

from agentgym.simulators.user_script import Request, UserScript

_SENTENCE = re.compile(r"(?:[^.!?\n]|[.!?](?=\w))+[.!?]*")
_PROPOSAL = re.compile(
    r"\b(shall|should) i\b"
    r"|\b(may|can) i (now |then )?(go|proceed|continue|cancel|chang|updat|process|set|return"
    r"|exchang|issu|submit|switch|replac|charg|credit|refund|do|put|mov|ship|send)"
    r"|\b(would you like|do you want|want|like) me to\b|\bproceed\b|\bgo ahead\b"
    r"|\b(do you|please|can you|could you|to) (please )?(confirm|agree|approve)\b"
    r"|\bconfirm (with|by)\b"
    r"|\b(is|does|are) (that|this|it|these|everything) "
    r"(ok|okay|correct|right|fine|acceptable|alright|all right|sound|look|work)"
    r"|\bif (that|this|it|everything)('s| is| looks| sounds| works)\b"
    r"|\b(would|will|does) (that|this) (be (ok|okay|fine)|work|suit)\b"
    r"|\byes\b[^.]{0,15}\bno\b|\b(reply|say|answer|respond)( with)? ['\"]?yes\b"
)
_OPEN_QUESTION = re.compile(
    r"\b(which|what|where|how|who|when|why)\b.*\b(shall|should|may|can) i\b"
)
_CONFIRM_A_FACT = re.compile(r"\b(confirm|verify) (me |us |for me )?(your|the|which|what)\b")
_REFUSAL = re.compile(
    r"\b(can't|cannot|can not|unable|not able|won't be able|not possible|isn't possible|impossible"
    r"|not eligible|isn't eligible|aren't eligible|ineligible|not allowed|isn't allowed"
    r"|not permitted|don't offer|do not offer|doesn't allow|does not allow|no longer possible"
    r"|(have|need) to (decline|refuse)|not something i can|against (our |the )?policy"
    r"|couldn't find|could not find|unfortunately)\b"
)
_NEGATION = re.compile(
    r"\b(\w+n't|not|cannot|no|unable|unfortunately|sorry|only|already|over|expired|out of stock"
    r"|sold out|unavailable)\b"
)
_REPORT = re.compile(
    r"\b(has been|have been|has now been|have now been|is now|are now|was|were|been|i've|i have"
    r"|i just|just|now|successfully) (now |also |just |successfully |been |both )*"
    r"(cancel+ed|returned|exchanged|refunded|updated|changed|modified|processed|issued|completed"
    r"|submitted|switched|replaced|credited|set up|arranged|requested|initiated|done|added)\b"
    r"|\ball (set|done)\b|\b(is|it's|that's) (all )?(done|complete|completed)\b"
)
_ASKS = re.compile(
    r"\?|\b(please|could you|can you|may i|i need|i'll need|i will need|i'd need|provide|share"
    r"|tell me|let me know|give me|what is|what's|which)\b"
)
_MORE = re.compile(
    r"\b(anything else|something else|any other|how (can|may) i (help|assist)"
    r"|what can i (do|help)|what would you like|help you with|assist you with)\b"
)
_WAIT = re.compile(
    r"\b(one moment|a moment|please wait|hold on|bear with me"
    r"|let me (check|look|see|find|pull|verify|review)|i'll (check|look)|i will (check|look))\b"
)
_UNKNOWN = {
    "phone number": ("phone", "mobile number"),
    "date of birth": ("date of birth", "birthday"),
    "password": ("password", "pin code"),
    "card number": ("card number", "cvv", "security code"),
}
"""What agents ask for and no scripted user tells."""


def plain(text: str) -> str:
    """Text as words are looked for in it: case, emphasis, dashes and kinds of apostrophe apart."""
    text = re.sub(r"[\u2018\u2019\u02bc]", "'", text.casefold())
    text = re.sub(r"[\u2010-\u2015]", "-", text)
    return re.sub(r"\s+", " ", re.sub(r"[*_`]+", "", text)).strip()


def names_any(text: str, words: Sequence[str]) -> bool:
    """Whether a plain text has one of the words or phrases.

    A word of four letters or more also counts with an ending ("cancel" in "cancelled"), and a
    phrase with its parts run together ("4 mm" in "4mm").
    """
    return any(_pattern_of(word).search(text) for word in words)


_plain_word = functools.lru_cache(maxsize=4096)(plain)
"""For the words of scripts, which are few and looked for in every line."""


@functools.lru_cache(maxsize=4096)
def _pattern_of(word: str) -> re.Pattern[str]:
    parts = [re.escape(part) for part in _plain_word(word).split()]
    whole = len(parts) == 1 and (len(word) < 4 or word[-1].isdigit())
    return re.compile(rf"(?<!\w){r'[ -]?'.join(parts)}" + (r"(?!\w)" if whole else ""))


def _is_proposal(sentence: str) -> bool:
    """Whether a sentence asks to agree to something; "which card should I use?" doesn't."""
    return bool(_PROPOSAL.search(sentence)) and not _OPEN_QUESTION.search(sentence)


class Heard:
    """One message of the agent's, as the user understands it.

    Args:
        text: The message.
        script: Says which words ask for which facts.
        facts: Names of what the user knows.
    """

    def __init__(self, text: str, script: UserScript, facts: Sequence[str]) -> None:
        self.raw = text
        self.text = plain(text)
        self.asked, self.asked_unknown = self._facts_asked_for(script, facts)
        self.proposes = any(
            _is_proposal(sentence) and not self._checks_a_fact(sentence)
            for sentence in _SENTENCE.findall(self.text)
        )
        self.refuses = bool(_REFUSAL.search(self.text))
        self.reports = bool(_REPORT.search(self.text))
        self.offers_more = bool(_MORE.search(self.text))
        self.asks_to_wait = bool(_WAIT.search(self.text))

    def _checks_a_fact(self, sentence: str) -> bool:
        return bool(self.asked and _CONFIRM_A_FACT.search(sentence))

    def _facts_asked_for(
        self, script: UserScript, facts: Sequence[str]
    ) -> tuple[list[str], str | None]:
        """Facts whose cue stands in a question, in the order of the facts."""
        asking = " ".join(
            s
            for s in _SENTENCE.findall(self.text)
            if _ASKS.search(s) and (_CONFIRM_A_FACT.search(s) or not _is_proposal(s))
        )
        unknown = next((name for name, cues in _UNKNOWN.items() if names_any(asking, cues)), None)
        cues = sorted(
            ((_plain_word(cue), fact) for fact in facts for cue in script.cues_of(fact)),
            key=lambda pair: -len(pair[0]),
        )
        found = set()
        for cue, fact in cues:  # the longest first: "email address" isn't about the address
            asking, count = re.subn(rf"(?<!\w){re.escape(cue)}", " ", asking)
            if count:
                found.add(fact)
        return [fact for fact in facts if fact in found], unknown

    def answers(self, request: Request) -> bool:
        """Whether a sentence that is no question has the form of an answer to the request."""
        pattern = request.answer
        return pattern is not None and any(
            re.search(pattern, sentence, re.IGNORECASE)
            for sentence in _SENTENCE.findall(self.text)
            if not sentence.endswith("?")
        )

    def grants(self, request: Request) -> bool:
        """Whether this names all that the user wants, and nothing they don't."""
        named = all(names_any(self.text, group) for group in request.wants)
        return bool(request.wants) and named and not names_any(self.text, request.rejects)

    def misses(self, request: Request) -> bool:
        """Whether this is definite and wrong: about the thing itself, but not what is wanted."""
        definite = not request.wants or names_any(self.text, request.wants[0])
        return definite or names_any(self.text, request.rejects)

    def gives_reason(self, request: Request) -> bool:
        """Whether this says no, if only by the way, for a reason that the user gives in to."""
        return bool(_NEGATION.search(self.text)) and names_any(self.text, request.refusable)
