"""Prompts and the prefix cache."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from agentgym.testing.fleet.prefix import PrefixCache, Prompt, tokens_of

SYSTEM = {"role": "system", "content": "s" * 40}  # 4 + 10 tokens
USER = {"role": "user", "content": "u" * 8}  # 4 + 2
CALL = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
ASKS = {"role": "assistant", "content": None, "tool_calls": [CALL]}  # 4 + 1, of 3 characters
TELLS = {"role": "tool", "content": "t" * 5, "tool_call_id": "a"}  # 4 + 2


def test_tokens_are_a_quarter_of_the_characters_and_four_per_message():
    assert [tokens_of(m) for m in (SYSTEM, USER, ASKS, TELLS)] == [14, 6, 5, 6]
    assert tokens_of({"role": "user", "content": [{"type": "text", "text": "x"}]}) > 4


def test_a_longer_conversation_finds_all_of_the_shorter_one():
    cache = PrefixCache()
    first = Prompt([SYSTEM, USER])
    cache.keep(first, ready_at=0.0)
    cache.add(*first.answered(ASKS), ready_at=0.0)
    longer = Prompt([SYSTEM, USER, ASKS, TELLS])
    assert cache.cached_tokens(longer, now=0.0) == 14 + 6 + 5
    assert longer.tokens == 14 + 6 + 5 + 6


def test_the_id_of_a_call_is_not_part_of_what_is_computed():
    renamed = {**ASKS, "tool_calls": [{**CALL, "id": "b"}]}
    other = {**ASKS, "tool_calls": [{**CALL, "function": {"name": "g", "arguments": "{}"}}]}
    assert Prompt([USER, ASKS]).keys == Prompt([USER, renamed]).keys
    assert Prompt([USER, ASKS]).keys != Prompt([USER, other]).keys


def test_one_different_message_or_tool_ends_the_common_prefix():
    cache = PrefixCache()
    cache.keep(Prompt([SYSTEM, USER, ASKS]), ready_at=0.0)
    changed = Prompt([SYSTEM, {**USER, "content": "other"}, ASKS])
    assert cache.cached_tokens(changed, now=0.0) == 14
    assert cache.cached_tokens(Prompt([SYSTEM, USER], [{"type": "function"}]), now=0.0) == 0


def test_what_is_not_computed_yet_is_no_hit():
    cache = PrefixCache()
    prompt = Prompt([SYSTEM, USER])
    cache.keep(prompt, ready_at=2.0)
    assert cache.cached_tokens(prompt, now=1.9) == 0
    assert cache.cached_tokens(prompt, now=2.0) == 20


def test_the_least_recently_used_goes_first_and_from_the_end():
    cache = PrefixCache(capacity_tokens=40)
    old, new = Prompt([SYSTEM, USER]), Prompt([{**SYSTEM, "content": "n" * 40}, USER])
    cache.keep(old, ready_at=0.0)
    cache.keep(new, ready_at=0.0)
    cache.keep(old, ready_at=0.0)  # used again: now `new` is the older one
    cache.add(*old.answered(ASKS), ready_at=0.0)
    assert cache.tokens <= 40
    assert cache.cached_tokens(old, now=0.0) == 20
    assert cache.cached_tokens(new, now=0.0) == 14  # its end went, its beginning is still there


messages = st.lists(
    st.builds(lambda text: {"role": "user", "content": text}, st.text("ab", max_size=9)), max_size=6
)


@given(st.lists(messages, max_size=20), st.integers(1, 60))
def test_a_cache_never_holds_more_than_it_has_room_for(conversations, capacity):
    cache = PrefixCache(capacity_tokens=capacity)
    for conversation in conversations:
        prompt = Prompt(conversation)
        assert 0 <= cache.cached_tokens(prompt, now=0.0) <= prompt.tokens
        cache.keep(prompt, ready_at=0.0)
        assert 0 <= cache.tokens <= capacity


@given(st.lists(messages, max_size=10))
def test_dropping_what_was_kept_leaves_nothing(conversations):
    cache = PrefixCache()
    fresh = [cache.keep(Prompt(conversation), ready_at=0.0) for conversation in conversations]
    for keys in fresh:
        cache.drop(keys)
    assert cache.tokens == 0
