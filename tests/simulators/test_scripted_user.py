"""The scripted user: what it tells, agrees to, refuses, and when it leaves."""

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentgym.errors import SimulatorError
from agentgym.simulator import Scenario, UserDialogue, UserSimulator
from agentgym.simulators.scripted_user import WAITING, YES, ScriptedUser
from agentgym.sync import run_inline

ORDER = "W1234567"
FACTS = {
    "email": "ada@example.com",
    "name": "Ada Lovelace",
    "zip": "97201",
    "order_id": ORDER,
    "new_address": "The new address is 12 Oak Avenue, Austin, TX 78712.",
}
CANCEL = {"ask": ["Please cancel my order."], "wants": [[ORDER], ["cancel"]]}
PROPOSAL = f"I would cancel order {ORDER} and refund $20.00. Shall I go ahead?"


def dialogue(*requests, seed=0, **more):
    script = {
        "requests": list(requests or [CANCEL]),
        "cues": {"new_address": ["new address", "address"]},
        **more,
    }
    scenario = Scenario(goal="You want to cancel.", facts=FACTS, script=script)
    return UserDialogue(scenario, seed=seed)


def talk(started, *lines):
    """Open if need be, say each line, and give the user's replies."""
    user = ScriptedUser()
    if not started.said:
        run_inline(user.open(started))
    return [run_inline(user.reply(started, line)) for line in lines]


def test_is_an_inline_user_simulator():
    assert isinstance(ScriptedUser(), UserSimulator)
    assert ScriptedUser().inline


def test_opens_with_the_first_request_or_the_scenarios_own_opening():
    started = dialogue()
    talk(started)
    assert started.said[0][1].endswith("Please cancel my order.")
    own = dialogue()
    own.scenario = own.scenario.model_copy(update={"opening": "It's me."})
    talk(own)
    assert own.said == [("user", "It's me.")]


def test_same_seed_and_lines_give_the_same_words_and_another_seed_other_words():
    lines = ["What is your email?", "And the order number?", PROPOSAL, "It has been cancelled."]
    said = []
    for seed in (0, 0, *range(1, 8)):
        started = dialogue(seed=seed)
        talk(started, *lines)
        said.append(tuple(text for _, text in started.said))
    assert said[0] == said[1]
    assert len(set(said)) > 4


@pytest.mark.parametrize(
    ("question", "told", "withheld"),
    [
        ("Could you give me your email address?", ["ada@example.com"], ["Oak", ORDER]),
        ("May I have your full name and zip code?", ["Ada Lovelace", "97201"], ["@", ORDER]),
        ("Please provide the order number.", [ORDER], ["@", "Oak"]),
        ("Which order is it?", [ORDER], ["@"]),
        ("Can you confirm your e-mail, please?", ["ada@example.com"], [ORDER]),
        ("What is the new address?", ["12 Oak Avenue"], ["@"]),
        ("I still need your email address.", ["ada@example.com"], [ORDER]),
        ("I'll need your **email** and your **zip code**.", ["@example.com", "97201"], [ORDER]),
    ],
)
def test_tells_what_it_is_asked_for_and_nothing_else(question, told, withheld):
    (reply,) = talk(dialogue(), question)
    assert all(text in reply.text for text in told)
    assert not any(text in reply.text for text in withheld)
    assert reply.ended is None


def test_a_mention_of_a_fact_that_is_no_question_is_not_answered():
    (reply,) = talk(dialogue(), "I see the email address on the account.")
    assert "@" not in reply.text


def test_a_reluctant_fact_is_told_the_second_time_without_costing_patience():
    started = dialogue(reluctant={"email": "I don't remember which one I used."}, patience=1)
    first, second = talk(started, "Your email address?", "Your email address, please?")
    assert first.text == "I don't remember which one I used."
    assert "ada@example.com" in second.text


@pytest.mark.parametrize("unknown", ["What's your phone number?", "Please give me your password."])
def test_what_the_user_does_not_know_is_not_made_up(unknown):
    (reply,) = talk(dialogue(), unknown)
    assert any(word in reply.text for word in ("rather not", "don't have", "No "))


@pytest.mark.parametrize(
    "proposal",
    [
        PROPOSAL,
        f"To confirm: cancel order {ORDER}. Is that correct?",
        f"I can **cancel** order #{ORDER} for you. Would you like me to proceed?",
        f"Just to be sure, you’d like to cancel {ORDER}, right? Please confirm (yes/no).",
        f"Cancelling order {ORDER} refunds $20.00 to your card. Do you want me to go ahead?",
    ],
)
def test_agrees_to_a_proposal_that_names_what_it_wants(proposal):
    (reply,) = talk(dialogue(), proposal)
    assert reply.text in YES
    assert reply.ended is None


PLAN = f"I'd cancel order {ORDER} and refund $20.00 to your card."


@pytest.mark.parametrize(
    "question",
    [
        "OK?",
        "Sound good?",
        "Are you okay with this?",
        "Do I have your permission to do this?",
        "Are you sure you want to do this?",
        "Can I get your confirmation?",
        "Please type YES to continue.",
        "Let me know if you agree.",
        "I need your explicit yes to do this.",
        "I'll await your explicit confirmation before making this change.",
        "You want that I do it now?",
    ],
)
def test_any_way_of_waiting_for_a_yes_gets_one_if_everything_wanted_is_named(question):
    named, vague = talk(dialogue(), f"{PLAN} {question}")[0], talk(dialogue(), question)[0]
    assert named.text in YES
    assert vague.text not in YES


@pytest.mark.parametrize(
    "proposal",
    [
        f"Here's what I'd do:\n\n- **Order number:** {ORDER}\n- Action: cancel\n\nShall I proceed?",
        f"What I'd do:\n1. Cancel\n2. Order: {ORDER}\n\nMay I proceed?",
        f"What changes:\n\n| Order number | {ORDER} |\n|---|---|\n| Action | Cancel |\n\nShall I?",
        f"Please confirm the following:\n- Order number: {ORDER}\n- Action: cancel",
    ],
)
def test_agrees_to_a_proposal_laid_out_as_a_list_or_table(proposal):
    assert talk(dialogue(), proposal)[0].text in YES


def test_a_list_of_questions_is_answered_whole():
    (reply,) = talk(dialogue(), "Could you please give me:\n- your email address\n- your zip code")
    assert "ada@example.com" in reply.text
    assert "97201" in reply.text


@pytest.mark.parametrize(
    "line",
    [
        "Before I proceed, could you please give me your email address?",
        "To proceed, I need your email address.",
        "May I have your email address so I can proceed?",
    ],
)
def test_what_a_question_is_needed_for_makes_it_no_proposal(line):
    assert "ada@example.com" in talk(dialogue(), line)[0].text


def test_a_question_that_offers_what_is_wanted_among_others_is_answered_not_agreed_to():
    wish = {"ask": ["Pay otherwise."], "wants": [["pay"], ["97201", "PayPal"]]}
    (reply,) = talk(dialogue(wish), "Which zip code do you pay from: 97201 or another?")
    assert reply.text not in YES


def test_what_a_proposal_leaves_alone_does_not_spoil_it():
    wanted = {**CANCEL, "rejects": ["lamp"]}
    for line in ("The lamp stays as it is.", "Nothing changes for the lamp.", "You keep the lamp."):
        assert talk(dialogue(wanted), f"{PLAN} {line} Shall I go ahead?")[0].text in YES
    assert talk(dialogue(wanted), f"{PLAN} And the lamp. Shall I go ahead?")[0].text not in YES


@pytest.mark.parametrize(
    "report",
    [
        f"Order {ORDER} is now cancelled.",
        "All set!",
        "Done: $20.00 is on its way back to you.",
        "The cancellation went through.",
        "Refund issued.",
        "I've put the cancellation through.",
        "Your cancellation has been booked. Anything else?",
    ],
)
def test_leaves_after_a_report_in_any_words_but_only_once_it_agreed(report):
    agreed, done = talk(dialogue(), PROPOSAL, report)
    assert (agreed.ended, done.ended) == (None, "done")


@pytest.mark.parametrize(
    "line",
    [
        "Thank you for confirming.",
        "Your confirmation has been noted.",
        "I've received your confirmation and am working on it.",
        "I'll tell you once it has been cancelled.",
        "Great, I'm cancelling it now.",
    ],
)
def test_stays_while_what_it_agreed_to_is_only_announced(line):  # case C14
    assert talk(dialogue(), PROPOSAL, line)[1].ended is None


def test_waits_when_told_that_it_is_being_done():
    reply = talk(dialogue(), PROPOSAL, "Thank you. I'm processing the cancellation right away.")[1]
    assert reply.text in WAITING


def test_a_proposal_that_names_nothing_is_not_agreed_to():
    (reply,) = talk(dialogue(), "Shall I go ahead?")
    assert reply.text not in YES


def test_a_wrong_proposal_is_corrected():
    wanted = {**CANCEL, "correction": ["No, cancel it, please."]}
    (reply,) = talk(dialogue(wanted), f"I would return order {ORDER}. Shall I go ahead?")
    assert reply.text == "No, cancel it, please."


def test_words_it_rejects_spoil_a_proposal():
    wanted = {**CANCEL, "rejects": ["W7654321"], "correction": ["Only the one."]}
    (reply,) = talk(dialogue(wanted), f"Shall I cancel {ORDER} and W7654321?")
    assert reply.text == "Only the one."


@given(
    st.lists(st.sampled_from([PROPOSAL, "It has been cancelled.", "Anything else?"]), max_size=8)
)
def test_never_leaves_in_the_message_with_which_it_agrees(lines):  # case C14
    started = dialogue()
    user = ScriptedUser()
    run_inline(user.open(started))
    for line in lines:
        reply = run_inline(user.reply(started, line))
        assert not (reply.text in YES and reply.ended)
        if reply.ended:
            break


def test_leaves_after_the_report_that_it_was_done():
    agreed, done = talk(dialogue(), PROPOSAL, f"Order {ORDER} has been cancelled.")
    assert agreed.ended is None
    assert done.ended == "done"


def test_changes_its_mind_instead_of_the_first_yes_and_never_back():
    wish = {
        **CANCEL,
        "change": {"ask": ["Wait: keep it, but send it elsewhere."], "wants": [["Oak"], ["ship"]]},
    }
    changed, wrong, agreed = talk(
        dialogue(wish), PROPOSAL, PROPOSAL, "Shall I ship it to 12 Oak Avenue?"
    )
    assert changed.text == "Wait: keep it, but send it elsewhere."
    assert wrong.text not in YES
    assert agreed.text in YES


REFUSED = {
    "ask": ["Please cancel my order."],
    "refusable": ["shipped"],
    "objections": ["Can't you stop it?"],
}


def test_gives_in_to_a_refusal_with_a_reason_after_its_objections():
    no = "I'm sorry, it was already shipped, so I can't cancel it."
    first, second = talk(dialogue(REFUSED), no, no)
    assert (first.text, first.ended) == ("Can't you stop it?", None)
    assert second.ended == "done"


def test_a_reason_that_is_only_mentioned_refuses_nothing():
    (reply,) = talk(dialogue(REFUSED), "Let me check whether it has been shipped.")
    assert reply.text != "Can't you stop it?"


def test_a_refusal_without_a_reason_is_not_accepted_and_ends_in_giving_up():
    started = dialogue(REFUSED)
    replies = talk(started, *["I'm sorry, I can't do that."] * 4)
    assert [reply.ended for reply in replies] == [None, None, None, "done"]
    assert started.notes["gave_up"]


def test_a_refusal_of_what_can_be_done_is_never_accepted():
    started = dialogue()
    assert talk(started, *["Unfortunately that's not possible."] * 4)[-1].ended == "done"
    assert started.notes["gave_up"]


def test_falls_back_when_refused_and_agrees_to_the_fallback_when_it_is_offered():
    wish = {
        "ask": ["I'd like red."],
        "refusable": ["out of stock"],
        "fallback": {"ask": ["Then blue, please."], "wants": [["blue"]]},
    }
    (asked,) = talk(dialogue(wish), "Red is out of stock.")
    assert asked.text == "Then blue, please."
    (offered,) = talk(dialogue(wish), "Red is out of stock. Shall I exchange it for the blue one?")
    assert offered.text in YES


def test_requests_come_one_after_the_other():
    second = {"ask": ["How much was it?"], "answer": r"\$\d"}
    started = dialogue(CANCEL, second)
    replies = talk(started, PROPOSAL, "It has been cancelled.", "It was $20.00.")
    assert "How much was it?" in replies[1].text
    assert [reply.ended for reply in replies] == [None, None, "done"]


def test_an_amount_in_a_question_is_no_answer():
    started = dialogue({"ask": ["How much was it?"], "answer": r"\$\d"}, patience=9)
    asked, told = talk(started, "Do you mean the one for $12.50?", "It was $20.00.")
    assert asked.ended is None
    assert told.ended == "done"


def test_says_no_line_twice_unless_it_is_asked_the_same_again():  # case C16
    started = dialogue(patience=9)
    talk(started, "What is your email?", "Your order number?", "Bananas.", "Hm.", "Bananas.", "...")
    lines = [text for who, text in started.said if who == "user"]
    assert len(set(lines)) == len(lines)
    assert lines[0] not in lines[1:]


def test_its_own_lines_are_part_of_the_dialogue():  # case C16
    started = dialogue()
    talk(started, "What is your email?")
    assert [who for who, _ in started.said] == ["user", "agent", "user"]


@given(st.lists(st.text(max_size=60), min_size=40, max_size=40))
def test_whatever_is_said_patience_is_bounded_and_nothing_breaks(lines):
    started = dialogue(reluctant={"email": "Hm."})
    user = ScriptedUser()
    run_inline(user.open(started))
    ends = []
    for line in lines:
        ends.append(run_inline(user.reply(started, line)).ended)
        if ends[-1]:
            break
    assert ends[-1] == "done"


@pytest.mark.parametrize("line", ["", "   ", "\n"])
def test_silence_exhausts_patience(line):
    started = dialogue()
    assert [r.ended for r in talk(started, *[line] * 4)] == [None, None, None, "done"]
    assert started.notes["gave_up"]


@pytest.mark.parametrize(
    "line",
    [PROPOSAL, "What is your email address?", "Let me check, one moment.", "Anything else?"],
)
def test_the_same_line_over_and_over_ends(line):
    started, user = dialogue(), ScriptedUser()
    run_inline(user.open(started))
    replies = [run_inline(user.reply(started, line)) for _ in range(12)]
    assert any(reply.ended for reply in replies)


def test_a_copied_dialogue_goes_on_like_the_original():
    started = dialogue()
    talk(started, "What is your email?")
    other = copy.deepcopy(started)
    assert talk(started, PROPOSAL, "Done.") == talk(other, PROPOSAL, "Done.")


@pytest.mark.parametrize(
    ("script", "fault"),
    [
        ({}, "requests"),
        ({"requests": []}, "requests"),
        ({"requests": [{"ask": []}]}, "ask"),
        ({"requests": [{"ask": ["x"], "answer": "("}]}, "regular expression"),
        ({"requests": [{"ask": ["x"]}], "patience": 0}, "patience"),
        ({"requests": [{"ask": ["x"], "want": []}]}, "want"),
        ({"requests": [{"ask": ["x"]}], "reluctant": {"shoe": "x"}}, "shoe"),
    ],
)
def test_a_wrong_script_is_named(script, fault):
    broken = UserDialogue(Scenario(goal="x", script=script, facts=FACTS), seed=0)
    with pytest.raises(SimulatorError, match=fault):
        run_inline(ScriptedUser().open(broken))
