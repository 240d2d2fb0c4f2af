"""A user simulator that is a program: no key, no cost, the same words for the same seed.

It plays the script of a scenario (`agentgym.simulators.user_script`): states one request at a time,
tells facts when asked, agrees to a proposal that names what it wants and corrects one that doesn't,
changes its mind where the script says so, objects to refusals before giving in, and leaves when it
has what it came for. It is meant for tests, baselines and training without a second model; what it
can't do is understand a wording that marks nothing as a proposal, a refusal or a report.

Three rules keep its faults out of the policy's score. It never leaves in the message with which it
agrees, so whatever it agreed to can still be done. It says no line twice unless it is asked the
same thing twice. And it never aborts: a policy that doesn't get anywhere exhausts its patience, and
it leaves with `notes["gave_up"]` set, which is the policy's failure and is scored.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

from agentgym.simulator import UserDialogue, UserReply
from agentgym.simulators.hearing import Heard
from agentgym.simulators.user_script import Request, UserScript, read_script

GREETINGS = ("Hi.", "Hello.", "Hi there.", "Good morning.", "Hello, I need some help.")
YES = (
    "Yes, please go ahead.",
    "Yes, please do that.",
    "Yes, that's correct.",
    "Yes, go ahead.",
    "Yes, I confirm.",
)
VAGUE = (
    "Before I agree: what exactly will you do, and on which order?",
    "I'd like to know exactly what I'm agreeing to. Could you spell it out, order number included?",
    "Please spell out the whole change first, with the order number.",
)
NOT_UNDERSTOOD = (
    "Sorry, I don't follow.",
    "I'm not sure what you mean.",
    "That doesn't help me, I'm afraid.",
    "I don't understand what that has to do with my question.",
)
SILENCE = ("Hello? Are you there?", "Are you still there?", "Is anybody there?", "Hello?")
WAITING = ("Take your time.", "I'll wait.", "I'm still here.", "No hurry.")
WHY = (
    "Why is that?",
    "What's the reason for that?",
    "I don't see why. What's the rule behind that?",
)
NOT_ACCEPTED = (
    "That can't be right. I don't see why you couldn't do it.",
    "I don't accept that. Please check again.",
    "I still think you can do this for me.",
)
UNKNOWN = ("I'd rather not give you a {0}.", "I don't have a {0} for you.", "No {0}, sorry.")
NEXT = ("Thanks. There's one more thing.", "Great. Something else:", "Good. One more request.")
FAREWELLS = (
    "Thank you, that's all. Goodbye.",
    "Great, thanks for your help. Bye.",
    "That's everything, thank you.",
)
RESIGNED = (
    "I see. Goodbye, then.",
    "Then there's nothing to be done. Bye.",
    "I understand. That's all then.",
)
GIVING_UP = (
    "This isn't getting anywhere. I'll try another time.",
    "I give up. Goodbye.",
    "You aren't helping me. Bye.",
)
FACT = {
    "email": ("My email address is {0}.", "It's {0}.", "You'll find me under {0}."),
    "name": ("My name is {0}.", "I'm {0}.", "It's {0}."),
    "zip": ("My zip code is {0}.", "The zip code is {0}.", "Zip code {0}."),
    "order_id": ("The order number is {0}.", "It's order {0}.", "That's order {0}."),
}
ANY_FACT = ("{0}.", "That would be {0}.", "It's {0}, as far as I know.")
MOST_REPEATS = 3
"""Agreements to one proposal, or refusals of one request, before it wears the user's patience."""


class ScriptedUser:
    """Plays the `script` of a scenario; see the module.

    `UserDialogue.notes` holds: `at` (the request being made), `told` (fact to times), `agreed` and
    `refused` (times, for that request), `idle` (unhelpful messages in a row) and, in the end,
    `gave_up`.

    Raises:
        SimulatorError: From `open` and `reply`, if the scenario has no script or a wrong one.
    """

    inline = True

    async def open(self, dialogue: UserDialogue) -> UserReply:
        """The scenario's opening, or a greeting and the first request."""
        scenario = dialogue.scenario
        script = read_script(scenario.script, scenario.facts)
        dialogue.notes.update(at=[0], told={}, agreed=0, refused=0, idle=0)
        text = scenario.opening
        if text is None:
            part = _Part(dialogue, script)
            text = f"{part.pick(GREETINGS)} {part.pick(script.requests[0].ask)}"
        dialogue.said.append(("user", text))
        return UserReply(text=text)

    async def reply(self, dialogue: UserDialogue, heard: str) -> UserReply:
        """Answer what the agent said, by the script."""
        scenario = dialogue.scenario
        part = _Part(dialogue, read_script(scenario.script, scenario.facts))
        reply = part.answer(heard)
        dialogue.said += [("agent", heard), ("user", reply.text)]
        return reply


class _Part:
    """The user's part at one moment of a dialogue."""

    def __init__(self, dialogue: UserDialogue, script: UserScript) -> None:
        self._facts = dialogue.scenario.facts
        self._notes: dict[str, Any] = dialogue.notes
        self._script = script
        self._said = {text for who, text in dialogue.said if who == "user"}
        self._rng = random.Random(f"{dialogue.seed}/{len(dialogue.said)}")

    @property
    def _request(self) -> Request:
        return self._script.at(self._notes["at"])

    def answer(self, text: str) -> UserReply:
        """What the user says to `text`."""
        heard = Heard(text, self._script, list(self._facts))
        request = self._request
        refused = heard.refuses or heard.gives_reason(request)
        asks_for_news = any(map(self._is_news, heard.asked))
        agreeable = self._agrees_to(heard) is not None
        cases: tuple[tuple[bool, Callable[[Heard], UserReply]], ...] = (
            (not heard.text, lambda _: self._unhelped(SILENCE)),
            (heard.answers(request), lambda _: self._settled(FAREWELLS)),
            (heard.proposes and agreeable, self._agree),
            (heard.reports and self._notes["agreed"] > 0, lambda _: self._settled(FAREWELLS)),
            (bool(heard.asked) and asks_for_news and not heard.gives_reason(request), self._tell),
            (refused, self._hear_refusal),
            (heard.invites and agreeable, self._agree),
            (heard.reports and heard.grants(request), lambda _: self._settled(FAREWELLS)),
            (heard.proposes and not heard.asked, self._question_proposal),
            (bool(heard.asked), self._tell),
            (heard.asked_unknown is not None, self._have_no_such_fact),
            (heard.offers_more, lambda _: self._unhelped(request.ask)),
            (heard.asks_to_wait, lambda _: self._unhelped(WAITING)),
            (heard.invites and heard.misses(request), self._question_proposal),
        )
        for applies, act in cases:
            if applies:
                return act(heard)
        return self._unhelped(NOT_UNDERSTOOD)

    # --- reactions ----------------------------------------------------------------------------

    def _agrees_to(self, heard: Heard) -> list[Any] | None:
        """Position of the request that a proposal grants: this one, or what it falls back to."""
        at, request = self._notes["at"], self._request
        if heard.grants(request):
            return list(at)
        while request.fallback is not None:
            at, request = [*at, "fallback"], request.fallback
            if heard.grants(request):
                return list(at)
        return None

    def _agree(self, heard: Heard) -> UserReply:
        self._go_to(self._agrees_to(heard) or self._notes["at"])
        change = self._request.change
        if change is not None:
            self._go_to([*self._notes["at"], "change"])
            return self._helped(self.pick(change.ask))
        self._notes["agreed"] += 1
        if self._notes["agreed"] > MOST_REPEATS:
            return self._unhelped(YES)
        return self._helped(self.pick(YES))

    def _question_proposal(self, heard: Heard) -> UserReply:
        request = self._request
        if heard.misses(request):
            return self._unhelped(request.correction or request.ask)
        return self._unhelped(VAGUE)

    def _hear_refusal(self, heard: Heard) -> UserReply:
        request = self._request
        if not request.refusable:
            return self._unhelped(NOT_ACCEPTED)
        if not heard.gives_reason(request):
            return self._unhelped(WHY)
        self._notes["refused"] += 1
        if self._notes["refused"] <= len(request.objections):
            return self._helped(self.pick((request.objections[self._notes["refused"] - 1],)))
        if request.fallback is not None:
            self._go_to([*self._notes["at"], "fallback"])
            return self._helped(self.pick(request.fallback.ask))
        return self._settled(RESIGNED)

    def _tell(self, heard: Heard) -> UserReply:
        told = self._notes["told"]
        news = [fact for fact in heard.asked if self._is_news(fact)]
        lines = []
        for fact in news or heard.asked:
            told[fact] = told.get(fact, 0) + 1
            lines.append(self._fact_line(fact, times=told[fact]))
        text = " ".join(lines)
        return self._helped(text) if news else self._unhelped((text,))

    def _is_news(self, fact: str) -> bool:
        """Whether a fact hasn't been told; one told reluctantly was only asked for."""
        told: int = self._notes["told"].get(fact, 0)
        return told <= (fact in self._script.reluctant)

    def _fact_line(self, fact: str, *, times: int) -> str:
        if times == 1 and fact in self._script.reluctant:
            return self._script.reluctant[fact]
        value = self._facts[fact]
        if value.endswith((".", "!")):
            return self.pick((value,))
        return self.pick([line.format(value) for line in FACT.get(fact, ANY_FACT)])

    def _have_no_such_fact(self, heard: Heard) -> UserReply:
        return self._unhelped([line.format(heard.asked_unknown) for line in UNKNOWN])

    # --- the dialogue's position --------------------------------------------------------------

    def _settled(self, farewells: Sequence[str]) -> UserReply:
        """Go on to the next request, or leave."""
        following = self._notes["at"][0] + 1
        if following == len(self._script.requests):
            return UserReply(text=self.pick(farewells), ended="done")
        self._go_to([following])
        return self._helped(f"{self.pick(NEXT)} {self.pick(self._request.ask)}")

    def _go_to(self, position: list[Any]) -> None:
        if position != self._notes["at"]:
            self._notes.update(at=position, agreed=0, refused=0)

    def _helped(self, text: str) -> UserReply:
        self._notes["idle"] = 0
        return UserReply(text=text)

    def _unhelped(self, lines: Sequence[str]) -> UserReply:
        """Say one of the lines, or leave if patience is exhausted."""
        self._notes["idle"] += 1
        if self._notes["idle"] >= self._script.patience:
            self._notes["gave_up"] = True
            return UserReply(text=self.pick(GIVING_UP), ended="done")
        return UserReply(text=self.pick(lines))

    def pick(self, lines: Sequence[str]) -> str:
        """One of the lines, none that was said before while there are others."""
        fresh = [line for line in lines if not any(line in said for said in self._said)]
        if fresh:
            return self._rng.choice(fresh)
        line = self._rng.choice(list(lines))
        for again in ("As I said: {0}", "Again: {0}", "I told you already: {0}"):
            if not any(again.format(line) in said for said in self._said):
                return again.format(line)
        return line
