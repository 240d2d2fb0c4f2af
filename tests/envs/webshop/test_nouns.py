import json
import os
import sys
from types import SimpleNamespace

import pytest

from agentgym.envs.webshop import nouns
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


def test_file_that_python_cant_read_is_named(tmp_path):
    path = tmp_path / "nouns.json"
    path.write_text('{"a": ' * 100_000, encoding="utf-8")
    with pytest.raises(DataError, match="nouns.json: broken JSON"):
        noun_finder(str(path))


def test_spacy_gives_lower_cased_nouns_and_proper_nouns(monkeypatch):
    tags = {"Red": "ADJ", "Shoe": "NOUN", "Acme": "PROPN"}

    def model(name):
        return [SimpleNamespace(text=word, pos_=tags[word]) for word in name.split()]

    monkeypatch.setitem(sys.modules, "spacy", SimpleNamespace(load=lambda name: model))
    nouns._spacy_nouns.cache_clear()
    assert noun_finder("spacy")("Acme Red Shoe") == ("acme", "shoe")
    nouns._spacy_nouns.cache_clear()


def test_changed_file_is_read_again(tmp_path):
    path = tmp_path / "nouns.json"
    for stamp, found in ((1, "shoe"), (2, "boot")):
        path.write_text(json.dumps({"Red Shoe": [found]}), encoding="utf-8")
        os.utime(path, ns=(stamp, stamp))
        assert noun_finder(str(path))("Red Shoe") == (found,)


def test_missing_spacy_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "spacy", None)
    with pytest.raises(MissingExtraError, match="pip install"):
        noun_finder("spacy")
