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

_SENTENCE = re.compile(r"(?:[^.!?]|[.!?](?=\w))+[.!?]*")
_ITEM = re.compile(r"\s*(?:[-*+|\u2022]|\d{1,2}[.)])\s")
"""How an item of a list, or a row of a table, begins."""
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
    r"|\byes\b[^.]{0,15}\bno\b|\b(reply|say|answer|respond|type|write)( with)? ['\"]?yes\b"
)
_INVITATION = re.compile(
    r"\?|\b(let me know|confirm|confirmation|permission|consent|approval|approve|agree|agreement"
    r"|authori[sz]e|authori[sz]ation|explicit yes|clear yes|your (yes|okay|ok|go-ahead))\b"
)
"""What any sentence has that waits for a yes: less than a proposal, enough beside all details."""
_PREAMBLE = re.compile(
    r"\b(before|so that|so) (i|we) (can |may )?(proceed|go ahead|continue)\b"
    r"|^\W*(in order )?to (proceed|go ahead)\b"
)
"""Says what an answer is needed for: "before I proceed, what is the reason?"."""
_OPEN_QUESTION = re.compile(
    r"\b(which|what|where|how|who|when|why)\b[^:;]{0,300}\b(shall|should|may|can) i\b"
)
_WH_QUESTION = re.compile(r"\b(which|what|where|how|who|when|why)\b[^,:;]{0,300}\?")
_CONFIRM_A_FACT = re.compile(
    r"\b(confirm|verify) (me |us |for me )?(your|which|what"
    r"|the (?!following|change|cancel|return|exchange|update|details|above|below|summary))\b"
)
_REFUSAL = re.compile(
    r"\b(can't|cannot|can not|unable|not able|won't be able|not possible|isn't possible|impossible"
    r"|not eligible|isn't eligible|aren't eligible|ineligible|no longer eligible|not allowed"
    r"|isn't allowed|not permitted|don't offer|do not offer|doesn't allow|does not allow"
    r"|no longer possible|(have|need) to (decline|refuse)|not something i can"
    r"|against (our |the )?policy|couldn't find|could not find|unfortunately)\b"
)
_NEGATION = re.compile(
    r"\b(\w+n't|not|cannot|no|non|unable|unfortunately|sorry|afraid|only|already|over|past|outside"
    r"|exceed\w*|expired|closed|ineligible|excluded|too late|decline|out of stock|sold out"
    r"|unavailable|insufficient)\b"
)
_LEFT_ALONE = re.compile(
    r"\b(not|no|\w+n't|nothing|neither|nor|without|except|keep|kept|stays?|remains?|unaffected"
    r"|unchanged|untouched|rest)\b"
)
"""Marks what a proposal says it doesn't touch."""
_DONE_WORDS = (
    r"(cancel+ed|returned|exchanged|refunded|updated|changed|modified|processed|issued|completed"
    r"|submitted|switched|replaced|credited|swapped|set up|arranged|requested|initiated|done|added"
    r"|applied|made|gave|created|started|moved|sent|put)"
)
_LOOKED = (
    r"(?!noted|received|checked|verified|confirmed|reviewed|looked|located|identified|noticed"
    r"|recorded|pulled|asked|shipped|delivered|placed|ordered|purchased|promised)"
)
_REPORT = re.compile(
    r"\b(was|were|been|is now|are now|i just|i|just|now|successfully) "
    rf"(now |also |just |successfully |been |both )*{_DONE_WORDS}\b"
    r"|\b(ha(s|ve)( now| just| already| also)* been|i've|i have) "
    rf"(now |also |just |successfully |been |both )*({_DONE_WORDS}|{_LOOKED}\w*[^e\W]ed)\b"
    rf"|^\W*(\w+ )?{_DONE_WORDS}\b"
    r"|\ball (set|done)\b|\b(is|are|it's|that's) (all |now )*"
    r"(done|complete|completed|finished|made|set up|created|cancel+ed|refunded|exchanged)\b"
    r"|\b(exchange|return|refund|cancel+ation|change|credit|update|switch) "
    r"(done|issued|processed|complete|completed|confirmed|applied|added|arranged)\b"
    r"|\b(address|method|order|credit)\b.{0,150}? is now\b|\b(went|gone) through\b|\bsuccessful\b"
)
_NOT_YET = re.compile(r"\b(once|when|after|if|until|before|as soon as|not|\w+n't)\b")
_ASKS = re.compile(
    r"\?|\b(please|could you|can you|may i|provide|share"
    r"|i('ll|'d| will| would| do)?( still| also| only| just| first)* (need|require)"
    r"|tell me|let me know|give me|what is|what's|which)\b"
)
_MORE = re.compile(
    r"\b(anything else|something else|any other|how (can|may) i (help|assist)"
    r"|what can i (do|help)|what would you like|help you with|assist you with)\b"
)
_WAIT = re.compile(
    r"\b(one moment|a moment|please wait|hold on|bear with me"
    r"|let me (check|look|see|find|pull|verify|review)"
    r"|(i'll|i will) (check|look|do (it|that|this)|take care)|right away|processing"
    r"|working on (it|this|that))\b"
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
    return bool(words) and _pattern_of(tuple(words)).search(text) is not None


_plain_word = functools.lru_cache(maxsize=4096)(plain)
"""For the words of scripts, which are few and looked for in every line."""


@functools.lru_cache(maxsize=4096)
def _pattern_of(words: tuple[str, ...]) -> re.Pattern[str]:
    found = []
    for word in words:
        parts = [re.escape(part) for part in _plain_word(word).split()]
        whole = len(parts) == 1 and (len(word) < 4 or word[-1].isdigit())
        found.append(r"[ -]?".join(parts) + (r"(?!\w)" if whole else ""))
    return re.compile(rf"(?<!\w)(?:{'|'.join(found)})")


def _sentences(text: str) -> list[str]:
    """The sentences of a text, plain; what a list has belongs to the line that introduces it."""
    found: list[str] = []
    introduced = False
    for line in text.splitlines():
        words = plain(line)
        if introduced and _ITEM.match(line):
            found[-1] += f" {words}"
        elif words:
            found += _SENTENCE.findall(words)
            introduced = words.endswith(":")
    return found


def _reports(sentence: str) -> bool:
    """Whether a sentence says that something was done: not a question, a plan or a condition."""
    match = None if sentence.endswith("?") else _REPORT.search(sentence)
    return match is not None and not _NOT_YET.search(sentence[: match.start()])


def denies(text: str) -> bool:
    """Whether a plain text says no to something, if only by the way."""
    return bool(_NEGATION.search(text))


def _is_proposal(sentence: str) -> bool:
    """Whether a sentence asks to agree to something; "which card should I use?" doesn't."""
    sentence = _PREAMBLE.sub("", sentence)
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
        self._sentences = _sentences(text)
        self.asked, self.asked_unknown = self._facts_asked_for(script, facts)
        self.proposes = any(
            _is_proposal(sentence) and not self._checks_a_fact(sentence)
            for sentence in self._sentences
        )
        self.invites = any(
            _INVITATION.search(sentence)
            and not (_WH_QUESTION.search(sentence) or _MORE.search(sentence))
            for sentence in self._sentences
        )
        self.refuses = bool(_REFUSAL.search(self.text))
        self.reports = any(map(_reports, self._sentences))
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
            for s in self._sentences
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
            for sentence in self._sentences
            if not sentence.endswith("?")
        )

    def grants(self, request: Request) -> bool:
        """Whether this names all that the user wants, and nothing they don't."""
        named = all(names_any(self.text, group) for group in request.wants)
        return bool(request.wants) and named and not self._includes(request.rejects)

    def _includes(self, words: Sequence[str]) -> bool:
        """Whether one of the words is part of what is proposed, not of what is left alone."""
        return any(
            names_any(part, words) and not _LEFT_ALONE.search(part)
            for sentence in self._sentences
            for part in sentence.split(" - ")
        )

    def misses(self, request: Request) -> bool:
        """Whether this is definite and wrong: about the thing itself, but not what is wanted."""
        definite = not request.wants or names_any(self.text, request.wants[0])
        return definite or self._includes(request.rejects)

    def gives_reason(self, request: Request) -> bool:
        """Whether this says no, if only by the way, for a reason that the user gives in to."""
        return denies(self.text) and names_any(self.text, request.refusable)
