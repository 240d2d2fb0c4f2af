import json
import sys

import pytest

from agentgym.envs.webshop.nouns import noun_finder, rule_nouns
from agentgym.errors import ConfigError, DataError, MissingExtraError


def test_rule_keeps_words_with_letters_and_repeats():
    assert rule_nouns("The 2 Red Shoes, 12.5 oz for Men: shoes") == (
        "red",
        "shoes",
        "oz",
        "men",
        "shoes",
    )


def test_recorded_nouns_come_from_the_file_and_fall_back_to_the_rule(tmp_path):
    path = tmp_path / "nouns.json"
    path.write_text(json.dumps({"Red Shoe": ["shoe"]}), encoding="utf-8")
    find = noun_finder(str(path))
    assert find("Red Shoe") == ("shoe",)
    assert find("Red Hat") == ("red", "hat")


def test_unknown_value_names_what_is_allowed():
    with pytest.raises(ConfigError, match="use 'rule', 'spacy' or the path of a JSON file"):
        noun_finder("verbs")


@pytest.mark.parametrize("text", ["[", "[]", '{"a": 1}', '{"a": [1]}'])
def test_file_of_another_form_is_an_error_naming_it(tmp_path, text):
    path = tmp_path / "nouns.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match="nouns.json"):
        noun_finder(str(path))


def test_missing_spacy_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "spacy", None)
    with pytest.raises(MissingExtraError, match="pip install"):
        noun_finder("spacy")
