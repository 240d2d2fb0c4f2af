from __future__ import annotations

import pytest

from agentgym.train.tiny.demonstrations import Demonstrator, closed_vocabulary, make_shop
from agentgym.train.tiny.tokenizer import END, make_tokenizer


@pytest.fixture(scope="module")
def tokenizer():
    return make_tokenizer(closed_vocabulary())


def _ids(tokenizer, text):
    return tokenizer.encode(text, add_special_tokens=False)


def test_actions_come_back_from_their_tokens_letter_by_letter(tokenizer):
    asin = make_shop().world.shop.catalogue.products[0].asin
    for action in (
        "search[mild glossy soap]", "click[buy now]", "click[< prev]", "click[next >]",
        "click[back to search]", f"click[{asin}]", "click[mint]", "click[description]",
    ):  # fmt: skip
        assert tokenizer.decode(_ids(tokenizer, action), skip_special_tokens=True) == action


def test_a_product_id_is_one_token(tokenizer):
    for product in make_shop().world.shop.catalogue.products:
        assert len(_ids(tokenizer, product.asin)) == 1


@pytest.mark.parametrize("split", ["train", "validation", "test"])
def test_no_page_of_a_visit_has_an_unknown_word(tokenizer, split):
    env = make_shop(split)
    for task in env.task_ids()[::5]:
        messages, info = env.reset(options={"task_id": task})
        texts = [messages[-1]["content"]]
        for action in ("search[soap]", "click[next >]", "click[< prev]", None, "click[features]"):
            if action is None:
                action = f"click[{info['available_actions']['clickables'][2]}]"
            messages, _, ended, _, info = env.step(action)
            texts.append(messages[-1]["content"])
            assert not ended
        for text in texts:
            assert tokenizer.unk_token_id not in _ids(tokenizer, text), text


def test_a_longer_conversation_extends_a_shorter_one(tokenizer):
    messages = [
        {"role": "user", "content": "Instruction: [SEP] find me a mild soap [SEP] Search"},
        {"role": "assistant", "content": "search[mild soap]"},
        {"role": "user", "content": "Buy Now"},
    ]
    first = tokenizer.apply_chat_template(
        messages[:1], add_generation_prompt=True, return_dict=False
    )
    both = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    assert both[: len(first)] == first
    assert both.count(tokenizer.convert_tokens_to_ids(END)) == 3


def test_demonstrations_render_as_the_chat_template_does(tokenizer):
    from agentgym.train.tiny.shopper import Shopper, Slips

    demonstration = Demonstrator(tokenizer, seed=3).draw()
    written = [i for i, m in zip(demonstration.ids, demonstration.mask, strict=True) if m]
    assert written.count(tokenizer.eos_token_id) == sum(
        a < b for a, b in zip([0, *demonstration.mask], demonstration.mask, strict=False)
    )
    # The same episode again, message by message, through the template.
    import random

    env, rng = make_shop("train"), random.Random(3)
    shopper = Shopper(rng, Slips())
    task = rng.choice(env.task_ids())
    conversation, _ = env.reset(options={"task_id": task})
    conversation, ended = list(conversation), False
    while not ended:
        action = shopper(conversation[-1]["content"])
        conversation.append({"role": "assistant", "content": action})
        replies, _, terminated, truncated, _ = env.step(action)
        ended = terminated or truncated
        if not ended:
            conversation.extend({"role": "user", "content": m["content"]} for m in replies)
    assert demonstration.ids == tokenizer.apply_chat_template(conversation, return_dict=False)
