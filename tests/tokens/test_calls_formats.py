# ruff: noqa: E501  # a reply is read best in one line
"""What models really write: read where it is certain, counted where it isn't the format (G07)."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import pytest
from call_zoo import TOOLS

from agentgym.tokens.calls import FORMATS, Reading

READERS = {f.name: f for f in FORMATS}


def read(name: str, text: str) -> Reading:
    return READERS[name].read(text, TOOLS)


def made(reading: Reading) -> list[tuple[str, Any]]:
    return [(call.name, call.arguments) for call in reading.calls]


class Case(NamedTuple):
    """One reply; a call that can't be read is None."""

    family: str
    text: str
    calls: list[tuple[str, Any] | None]
    malformed: int
    content: str = ""


A = ("search", {"q": "a"})
B = ("search", {"q": "b"})
NONE = ("list_orders", {})
JSON_A = '{"name": "search", "arguments": {"q": "a"}}'
JSON_B = '{"name": "search", "arguments": {"q": "b"}}'


def xml(query: str) -> str:
    return f"<function=search>\n<parameter=q>\n{query}\n</parameter>\n</function>"


DSML = "<｜DSML｜"
INVOKE = f'{DSML}invoke name="search">{DSML}parameter name="q" string="true">a</｜DSML｜parameter></｜DSML｜invoke>'
HARMONY = "<|channel|>commentary to=functions.search <|constrain|>json<|message|>"
SEP = "<｜tool▁call▁begin｜>search<｜tool▁sep｜>"
ATEM = (
    '<atem:function_calls>\n<atem:invoke name="search">\n<atem:parameter name="q">a'
    "</atem:parameter>\n</atem:invoke>\n</atem:function_calls>"
)
DEEPSEEK = (
    "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>search\n```json\n"
    '{"q": "a"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>'
)

WHOLE = [
    # prose and whitespace around a call that is as it should be
    Case("hermes", f"Let me check <tool_call>{JSON_A}</tool_call>\n<tool_call>{JSON_B}</tool_call>", [A, B], 0, "Let me check"),
    Case("hermes", f"<tool_call>\n\n  {JSON_A}\n </tool_call> Done.", [A], 0, "Done."),
    Case("hermes", f"one <tool_call>{JSON_A}</tool_call> two", [A], 0, "one  two"),
    Case("hermes", '<tool_call>{"name": "list_orders"}</tool_call>', [NONE], 0),
    Case("hermes", '<tool_call>{"name": "list_orders", "arguments": null}</tool_call>', [NONE], 0),
    Case("hermes", '<tool_call>{"name": "list_orders", "arguments": ""}</tool_call>', [NONE], 0),
    Case("hermes", '<tool_call>{"name": "search", "arguments": {"q": "</tool_call> \\ud83c\\udf78"}}</tool_call>', [("search", {"q": "</tool_call> 🍸"})], 0),
    Case("qwen_xml", f"Look: <tool_call>{xml('a')}</tool_call>", [A], 0, "Look:"),
    Case("qwen_xml", "<tool_call><function=search><parameter=q>a</parameter></function></tool_call>", [A], 0),
    Case("qwen_xml", f"<tool_call>\n{xml('x = 1 < 2 > 0')}\n</tool_call>", [("search", {"q": "x = 1 < 2 > 0"})], 0),
    Case("glm", "<tool_call>search<arg_key>q</arg_key><arg_value>a</arg_value></tool_call>", [A], 0),
    Case("glm", "<tool_call>list_orders</tool_call>", [NONE], 0),
    Case("llama", '<|python_tag|>{"name": "search", "parameters": {"q": "a"}}', [A], 0),
    Case("llama", '<|python_tag|>search.call(q="a")', [A], 0),
    Case("llama", '{"name": "list_orders"}', [NONE], 0),
    Case("llama", '{"name": "Bob", "age": 3}', [], 0, '{"name": "Bob", "age": 3}'),
    Case("harmony", f'<|channel|>analysis<|message|>hm<|end|><|start|>assistant{HARMONY}{{"q": "a"}}', [A], 0),
    Case("hermes", "Write std::map<function<int()>, x> or </parameter>.", [], 0, "Write std::map<function<int()>, x> or </parameter>."),
    Case("harmony", "<|channel|>final<|message|>Size 42.", [], 0, "Size 42."),
    Case("dsml", f"Sure.\n\n{DSML}function_calls>\n{INVOKE}\n{INVOKE}\n</｜DSML｜function_calls>", [A, A], 0, "Sure."),
    Case("dsml", f'{DSML}tool_calls>{DSML}invoke name="search">{DSML}parameter name="n" string="false">3</｜DSML｜parameter></｜DSML｜invoke></｜DSML｜tool_calls>', [("search", {"n": 3})], 0),
    Case("deepseek", f'<｜tool▁calls▁begin｜>{SEP}{{"q": "a"}}<｜tool▁call▁end｜><｜tool▁calls▁end｜>', [A], 0),
    Case("mistral", f"[TOOL_CALLS][{JSON_A}, {JSON_B}]", [A, B], 0),
    Case("mistral", '[TOOL_CALLS]search[CALL_ID]123456789[ARGS]{"q": "a"}[TOOL_CALLS]list_orders[ARGS]{}', [A, NONE], 0),
    Case("gemma", '<|tool_call>call:search{q:<|"|>a<|"|>}<tool_call|>Looking.', [A], 0, "Looking."),
    Case("pythonic", "<|tool_call_start|>[search(q='it\\'s'), list_orders()]<|tool_call_end|>", [("search", {"q": "it's"}), NONE], 0),
]  # fmt: skip
REPAIRED = [
    # readable for certain, and not the format
    Case("hermes", f"<tool_call>{JSON_A}", [A], 1),
    Case("hermes", f"<tool_call>{JSON_A[:-1]}", [A], 1),
    Case("hermes", f"<tool_call>{JSON_A[:-2]}</tool_call>", [A], 1),
    Case("hermes", f"<tool_call>{JSON_A}}}</tool_call>", [A], 1),
    Case("hermes", f"<tool_call>{JSON_A}\n{JSON_B}</tool_call>", [A, B], 1),
    Case("hermes", f"<tool_call>[{JSON_A}, {JSON_B}]</tool_call>", [A, B], 1),
    Case("hermes", f"<tool_call>```json\n{JSON_A}\n```</tool_call>", [A], 1),
    Case("hermes", f"<tool_call>{JSON_A}<tool_call>{JSON_B}</tool_call>", [A, B], 1),
    Case("hermes", f"<tool_call>{JSON_A}</tool_call></tool_call>", [A], 1),
    Case("hermes", f"<tool_call>{JSON_A} and then</tool_call>", [A], 1),
    Case("hermes", JSON_A, [A], 1),
    Case("hermes", f"```json\n{JSON_A}\n```", [A], 1),
    Case("hermes", '<tool_call>{"name": "search", "parameters": {"q": "a"}}</tool_call>', [A], 1),
    Case("hermes", '<tool_call>{"name": "search", "arguments": "{\\"q\\": \\"a\\"}"}</tool_call>', [A], 1),
    Case("hermes", '<tool_call>{"name": "search", "arguments": {"q": "a\nb"}}</tool_call>', [("search", {"q": "a\nb"})], 1),
    Case("hermes", f'<tool_call>{{"type": "function", "function": {JSON_A}}}</tool_call>', [A], 1),
    Case("hermes", "<tool_call>{'name': 'search', 'arguments': {'q': 'a'}}</tool_call>", [A], 1),
    Case("hermes", "<tool_call>{'name': 'search', 'arguments': {'exact': True, 'tags': [None, 'b',], }}", [("search", {"exact": True, "tags": [None, "b"]})], 1),
    Case("hermes", '<tool_call>{"name": "search", "arguments": {"q": "a",}}</tool_call>', [A], 1),
    Case("qwen_xml", f"<tool_call>{xml('a')}", [A], 1),
    Case("qwen_xml", f"<tool_call>{xml('a')}</tool_call> done</function>", [A], 1, "done"),
    Case("qwen_xml", xml("a"), [A], 1),
    Case("qwen_xml", f"<tool_call>{xml('a')}{xml('b')}</tool_call>", [A, B], 1),
    Case("qwen_xml", "<tool_call><function=search><parameter=q>a</parameter></tool_call>", [A], 1),
    Case("qwen_xml", "<tool_call><function=search><parameter=q>a</function></tool_call>", [A], 1),
    Case("qwen_xml", f"<tool_call>{xml('a')}<tool_call>{xml('b')}</tool_call>", [A, B], 1),
    Case("glm", "<tool_call>search<arg_key>q</arg_key><arg_value>a</arg_value><tool_call>list_orders</tool_call>", [A, NONE], 1),
    Case("glm", "<tool_call>search<arg_key>q<arg_value>a</arg_value></tool_call>", [A], 1),
    Case("llama", 'I search. {"name": "search", "parameters": {"q": "a"}}', [A], 1, "I search."),
    Case("llama", '{"name": "search", "parameters": {"q": "a"}}; {"name": "search", "parameters": {"q": "b"}}', [A, B], 1),
    Case("llama", '{"name": "search", "arguments": {"q": "a"}}', [A], 1),
    Case("llama", '{"name": "search", "parameters": {"q": "a"}', [A], 1),
    Case("harmony", f'{HARMONY}{{"q": "a"}} so', [A], 1),
    Case("dsml", f"{DSML}function_calls>{INVOKE}", [A], 1),
    Case("dsml", INVOKE, [A], 1),
    Case("deepseek", f'<｜tool▁calls▁begin｜>{SEP}{{"q": "a"}}<｜tool▁call▁end｜>', [A], 1),
    Case("deepseek", f'<｜tool▁calls▁begin｜>{SEP}{{"q": "a"<｜tool▁call▁end｜><｜tool▁calls▁end｜>', [A], 1),
    Case("mistral", f"[TOOL_CALLS]{JSON_A}", [A], 1),
    Case("mistral", '[TOOL_CALLS]search{"q": "a"}', [A], 1),
    Case("gemma", '<|tool_call>call:search{q:<|"|>a<|"|>}', [A], 1),
    Case("pythonic", "<|tool_call_start|>[search(q='a')", [A], 1),
    Case("pythonic", "<|tool_call_start|>search(q='a')<|tool_call_end|>", [A], 1),
    Case("muse", ' to=other<|message|><atem:function_calls><atem:invoke name="search"><atem:parameter name="q">a</atem:parameter></atem:invoke></atem:function_calls>', [A], 1),
]  # fmt: skip
UNREADABLE = [
    # meant as a call, and nobody can say which: never an answer, never run
    Case("hermes", '<tool_call>{"name": "search", "arguments": {"q": "a', [None], 1),
    Case("hermes", '<tool_call>{"name": "search", "arguments": {"n": 12', [None], 1),
    Case("hermes", '<tool_call>{"name": "search", "arguments": {"q": "a"', [None], 1),
    Case("pythonic", "<|tool_call_start|>[search(q=a)]<|tool_call_end|>", [None], 1),
    Case("gemma", "<|tool_call>call:search{q:a}<tool_call|>", [None], 1),
    Case("hermes", "<tool_call>search for a</tool_call>", [None], 1),
    Case("hermes", "<tool_call></tool_call>", [None], 1),
    Case("hermes", '<tool_call>{"arguments": {"q": "a"}}</tool_call>', [None], 1),
    Case("hermes", '<tool_call>{"name": "search", "arguments": {"n": NaN}}</tool_call>', [None], 1),
    Case("hermes", f"<tool_call>{JSON_A}</tool_call><tool_call>oops", [A, None], 1),
    Case("hermes", "<tool_call>{'name': 'search', 'arguments': {'q': 'a", [None], 1),
    Case("hermes", "<tool_call>{'name': 'search', 'arguments': {'q': 'a'", [None], 1),
    Case("hermes", "The answer </tool_call>", [None], 1, "The answer"),
    Case("hermes", f"<tool_call>{'[' * 5000}", [None], 1),
    Case("hermes", "<function=search><parameter=q>a</parameter></function>", [None], 1),
    Case("qwen_xml", "<tool_call><function=search><parameter=q>a</parameter>", [None], 1),
    Case("qwen_xml", "<tool_call><function=search><parameter=q>a", [None], 1),
    Case("qwen_xml", f"<tool_call>{JSON_A}</tool_call>", [None], 1),
    Case("glm", "<tool_call>search<arg_key>q</arg_key><arg_value>a</arg_value>", [None], 1),
    Case("glm", f"<tool_call>{JSON_A}</tool_call>", [None], 1),
    Case("llama", '{"name": "search", "parameters": {"q": "a', [None], 1),
    Case("llama", '{"name": "sea', [None], 1),
    Case("llama", "<|python_tag|>print(1)", [None], 1),
    Case("harmony", f'{HARMONY}{{"q": "a', [None], 1),
    Case("harmony", "<|channel|>commentary to=functions.search", [None], 1),
    Case("harmony", HARMONY, [None], 1),
    Case("dsml", f'{DSML}function_calls>{DSML}invoke name="search">', [None], 1),
    Case("deepseek", f"<｜tool▁calls▁begin｜>{SEP}a, please", [None], 1),
    Case("mistral", "[TOOL_CALLS]search for a", [None], 1),
    Case("gemma", '<|tool_call>call:search{q:<|"|>a', [None], 1),
    Case("pythonic", "<|tool_call_start|>[search(q='a", [None], 1),
    Case("muse", " to=search<|message|>please", [None], 1),
    # A message that nothing begins is one all the same.
    Case("harmony", f'<|channel|>analysis<|message|>hm<|end|>{HARMONY}{{"q": "a"}}', [A], 1),
    Case("harmony", "<|channel|>analysis<|message|>hm<|end|>Size 42.", [], 0, "Size 42."),
    Case("muse", f" to=self<|message|>hm<|eom|> to=search<|message|>{ATEM}", [A], 1),
    Case("muse", " to=self<|message|>hm<|eom|>Size 42.", [], 0, "Size 42."),
    Case("muse", f" to=search<|message|>{ATEM}</think>", [A], 0),
    Case("muse", f"hm to=search<|message|>{ATEM}", [A], 1),
    # What was meant by the arguments stands there, by another name.
    Case("hermes", '<tool_call>{"name": "search", "argumens": {"q": "a"}}</tool_call>', [None], 1),
    Case("hermes", '{"name": "search", "args": {"q": "a"}}', [None], 1),
    Case("llama", '{"name": "search", "paramters": {"q": "a"}}', [None], 1),
    Case("mistral", '[TOOL_CALLS][{"name": "search", "input": {"q": "a"}}]', [None], 1),
    Case("harmony", HARMONY.replace("commentary", "comment") + '{"q": "a"}', [A], 1),
    Case("harmony", HARMONY.replace("functions.", "") + '{"q": "a"}', [A], 1),
    Case("harmony", HARMONY.replace("json", "jso") + '{"q": "a"}', [A], 1),
    Case("harmony", ' to=functions.search<|channel|>commentary json<|message|>{"q": "a"}', [A], 0),
    Case("harmony", ' to=functions.search<|channel|>analysis code<|message|>{"q": "a"}', [A], 0),
    Case("deepseek", DEEPSEEK.replace("function<", "fun<"), [A], 1),
    Case("deepseek", DEEPSEEK.replace("\n```<", "<"), [A], 1),
]  # fmt: skip


@pytest.mark.parametrize("case", [*WHOLE, *REPAIRED, *UNREADABLE])
def test_reply_as_models_write_it(case: Case) -> None:
    reading = read(case.family, case.text)
    wanted = [call or ("", None) for call in case.calls]
    assert [(n, a if n else None) for n, a in made(reading)] == wanted
    assert reading.malformed == case.malformed
    assert reading.content == case.content
    json.dumps([call.as_message() for call in reading.calls])


def test_repaired_call_says_so_in_the_message_and_a_whole_one_does_not() -> None:
    whole, mended = read("hermes", f"<tool_call>{JSON_A}</tool_call><tool_call>{JSON_B}").calls
    assert "repaired" not in whole.as_message()
    assert mended.as_message()["repaired"] is True


@pytest.mark.parametrize(
    ("family", "thought", "after"),
    [
        ("hermes", f"<think>I could <tool_call>{JSON_A}</tool_call>.</think>", "No."),
        ("hermes", f"I could <tool_call>{JSON_A}</tool_call>.</think>", "No."),
        ("gemma", '<|channel>thought\ncall:<|tool_call>call:search{}<tool_call|>\n<channel|>', "No."),
        ("mistral", "[THINK][TOOL_CALLS]search[ARGS]{}[/THINK]", "No."),
        ("harmony", "<|channel|>analysis<|message|><tool_call>{}<|end|><|start|>assistant<|channel|>final<|message|>", "No."),
        ("muse", " to=self<|message|><atem:function_calls><|eom|><|start|>assistant to=user<|message|>", "No."),
    ],
)  # fmt: skip
def test_call_in_the_reasoning_is_no_call(family: str, thought: str, after: str) -> None:
    reading = read(family, thought + after)
    assert (reading.content, reading.calls) == (after, ())
    assert reading.reasoning


def test_tag_in_reasoning_that_never_ends_is_malformed() -> None:
    reading = read("hermes", f"<think>so <tool_call>{JSON_A}</tool_call>")
    assert [c.name for c in reading.calls] == [""]


def test_reasoning_that_never_ends_is_reasoning() -> None:
    assert read("hermes", "<think>so\nmany shoes") == Reading("", "so\nmany shoes", ())


def test_reasoning_between_calls_is_taken_out() -> None:
    text = f"<think>one</think><tool_call>{JSON_A}</tool_call><think>two</think>Done."
    reading = read("hermes", text)
    assert (made(reading), reading.content, reading.reasoning) == ([A], "Done.", "one\ntwo")


@pytest.mark.parametrize("family", ["qwen_xml", "glm"])
@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("q", "75001", "75001"),
        ("q", "null", "null"),
        ("n", "3", 3),
        ("n", "many", "many"),
        ("price", "2.5", 2.5),
        ("exact", "true", True),
        ("exact", "False", False),
        ("filters", '{"a": [1, null]}', {"a": [1, None]}),
        ("tags", '["x"]', ["x"]),
        ("unknown", "3", 3),
        ("unknown", "three", "three"),
    ],
)
def test_schema_says_what_a_text_value_is(family: str, key: str, text: str, value: Any) -> None:
    if family == "glm":
        pair = f"<arg_key>{key}</arg_key>\n<arg_value>{text}</arg_value>\n"
        reply = f"<tool_call>search\n{pair}</tool_call>"
    else:
        pair = f"<parameter={key}>\n{text}\n</parameter>\n"
        reply = f"<tool_call>\n<function=search>\n{pair}</function>\n</tool_call>"
    reading = read(family, reply)
    assert made(reading) == [("search", {key: value})]
    assert reading.malformed == 0


def test_types_behind_references_and_alternatives_are_found() -> None:
    from agentgym.tokens.calls.values import typed

    schema = {
        "properties": {
            "size": {"$ref": "#/$defs/Size"},
            "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
            "color": {"enum": ["1", "2"]},
            "loop": {"$ref": "#/$defs/Loop"},
        },
        "$defs": {"Size": {"type": "integer"}, "Loop": {"$ref": "#/$defs/Loop"}},
    }
    given = {"size": "3", "note": "None", "color": "1", "loop": "4"}
    assert {k: typed(v, schema, k) for k, v in given.items()} == {
        "size": 3, "note": None, "color": "1", "loop": 4,
    }  # fmt: skip


def test_degenerate_replies_are_read() -> None:
    for calls in FORMATS:
        for text in (
            " " * 20_000,
            "<tool_call>" + " \n" * 10_000,
            "<function=a>" * 2_000,
            "<think></think>" * 5_000,
            "<|tool_call_start|>[f(a=" + "[" * 5_000,
            "<|tool_call_start|>[f(a='" * 5_000,
            "<|tool_call>call:f{a:" + "[" * 5_000,
            '{"name": "a", "parameters": ' * 2_000,
            "<tool_call>{'a': " * 2_000,
            "<tool_call>search<arg_key>q</arg_key><arg_value>" * 1_000,
            "<tool_call><function=f><parameter=q>" * 1_000,
        ):
            assert calls.read(text, TOOLS).malformed <= 5_000
