"""The price book: what it finds, whose rows win, and what it says of a model it doesn't know."""

from __future__ import annotations

import re
import tomllib

import pytest

from agentgym.client import Prices
from agentgym.errors import ConfigError
from agentgym.price_book import PriceBook, user_file
from agentgym.roles import Roles
from agentgym.types import Usage

DEEPINFRA = "https://api.deepinfra.com/v1/openai"


@pytest.fixture(autouse=True)
def config_home(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def row(**fields):
    fields = {"input": 1.0, "output": 2.0, "as_of": "2026-11", "source": "a contract", **fields}
    return ", ".join(
        f"{key} = {value!r}" if not isinstance(value, str) else f'{key} = "{value}"'
        for key, value in fields.items()
    )


@pytest.mark.parametrize(
    ("model", "prices"),
    [
        ("GLM-4.7-Flash", (0.06, 0.01, 0.40)),
        ("DeepSeek-V4-Flash-0731", (0.08, 0.016, 0.18)),
        ("Kimi-K3", (2.85, 0.285, 14.25)),
        ("Qwen3.6-35B-A3B", (0.10, None, 0.95)),
        ("Kimi-K2.6", (0.75, 0.15, 3.50)),
        ("GLM-5.1", (1.05, 0.205, 3.50)),
    ],
)
def test_shipped_prices(model, prices):
    found = PriceBook.load().find(model)
    assert (found.prices.input, found.prices.cached, found.prices.output) == prices
    assert (found.entry.as_of, found.entry.provider) == ("2026-08", "DeepInfra")
    assert found.prices.book == model


def test_every_shipped_row_says_when_and_where():
    for found in PriceBook.load():
        assert re.fullmatch(r"20\d\d-\d\d(-\d\d)?", found.entry.as_of)
        assert "://" in found.entry.source


@pytest.mark.parametrize("name", ["zai-org/GLM-4.7-Flash", "glm-4.7-flash", "GLM 4.7 Flash"])
def test_organisation_case_and_spaces_do_not_matter(name):
    assert PriceBook.load().find(name).name == "GLM-4.7-Flash"


def test_user_rows_win_over_shipped_ones_and_a_command_s_file_over_both(tmp_path):
    write(user_file(), f'"GLM-4.7-Flash" = {{{row(input=5.0)}}}\n"mine" = {{{row(input=6.0)}}}')
    assert PriceBook.load().find("zai-org/GLM-4.7-Flash").prices.input == 5.0
    once = write(tmp_path / "once.toml", f'["mine"]\n{row(input=7.0).replace(", ", chr(10))}')
    book = PriceBook.load(once)
    assert book.find("mine").prices.input == 7.0
    assert book.find("mine").file == str(once)
    assert book.find("GLM-4.7-Flash").prices.input == 5.0
    assert book.find("Kimi-K3").prices.input == 2.85


def test_full_name_comes_before_the_name_without_organisation(tmp_path):
    path = write(tmp_path / "p.toml", f'"own/GLM-4.7-Flash" = {{{row(input=9.0)}}}')
    book = PriceBook.load(path)
    assert book.find("own/GLM-4.7-Flash").prices.input == 9.0
    assert book.find("zai-org/GLM-4.7-Flash").prices.input == 0.06


def test_a_row_with_an_organisation_wins_for_the_bare_name(tmp_path):
    """The line that the docs and the error show has one; it isn't to be passed over in silence."""
    write(user_file(), f'"zai-org/GLM-4.7-Flash" = {{{row(input=5.0)}}}')
    book = PriceBook.load()
    assert book.find("GLM-4.7-Flash").prices.input == 5.0
    assert book.find("zai-org/GLM-4.7-Flash").prices.input == 5.0
    assert book.find("other/GLM-4.7-Flash").prices.input == 0.06
    both = write(tmp_path / "p.toml", f'"a/m" = {{{row()}}}\n"b/m" = {{{row()}}}')
    assert PriceBook.load(both).find("b/m").name == "b/m"
    with pytest.raises(ConfigError, match="'m' may be any of 'a/m', 'b/m'; say which"):
        PriceBook.load(both).find("m")


def test_a_second_provider_s_price_leaves_the_first_s(tmp_path):
    other = write(tmp_path / "p.toml", f'"GLM-5.1" = {{{row(host="Other.example")}}}')
    book = PriceBook.load(other)
    assert book.find("GLM-5.1", base_url="https://other.example/v1").prices.input == 1.0
    assert book.find("GLM-5.1", base_url=DEEPINFRA).prices.input == 1.05
    with pytest.raises(ConfigError, match=r"at Other\.example, and third\.example may ask"):
        book.find("GLM-5.1", base_url="https://third.example/v1")


def test_a_date_needs_no_quotes(tmp_path):
    text = '"m" = {input = 1, output = 1, as_of = 2026-11-30, source = "x"}'
    assert PriceBook.load(write(tmp_path / "p.toml", text)).find("m").entry.as_of == "2026-11-30"


def test_the_line_to_add_can_be_added_whatever_the_name():
    name = 'a"b\nc'
    with pytest.raises(ConfigError) as error:
        PriceBook.load().find(name)
    line = str(error.value).rpartition("tokens: ")[2].replace("…", "1.0", 3)
    assert list(tomllib.loads(line)) == [name]


def test_nobody_s_home_is_no_traceback(monkeypatch):
    monkeypatch.delenv("XDG_CONFIG_HOME")
    monkeypatch.delenv("HOME")
    monkeypatch.setattr("pwd.getpwuid", {}.__getitem__)  # a container's user without a name
    with pytest.raises(ConfigError, match=r"add a line to ~/\.config/agentgym/prices\.toml"):
        PriceBook.load().find("foo")


def test_unknown_model_is_never_free_i05():
    # Case I05: a look-up that missed counted $0.00, and no budget ever tripped.
    with pytest.raises(ConfigError) as error:
        PriceBook.load().find("foo/bar")
    text = str(error.value)
    assert "no price for the model 'foo/bar'" in text
    assert str(user_file()) in text
    assert "did you mean" not in text
    line = text[text.index('"foo/bar"') :].replace("…", "1.0", 3)
    added = tomllib.loads(line.replace("YYYY-MM-DD", "2026-11-30"))
    write(user_file(), line.replace("YYYY-MM-DD", "2026-11-30"))
    assert added["foo/bar"]["cached"] == 1.0
    assert PriceBook.load().find("foo/bar").prices.output == 1.0  # the line shown does it


def test_unknown_model_with_a_neighbour_names_it():
    with pytest.raises(ConfigError, match=r"did you mean 'GLM-4\.7-Flash'\? If not, add a line"):
        PriceBook.load().find("zai-org/GLM-4.7-Flush")


def test_home_is_not_spelled_out(monkeypatch, tmp_path):
    monkeypatch.delenv("XDG_CONFIG_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(ConfigError, match=r"add a line to ~/\.config/agentgym/prices\.toml"):
        PriceBook.load().find("foo")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('"m" = {input = 1.0}', r"p\.toml: 'm': output: .*required"),
        (f'"m" = {{{row(input=-1.0)}}}', "'m': input: .*greater than or equal to 0"),
        (f'"m" = {{{row(as_of="August")}}}', "'m': as_of: "),
        (f'"m" = {{{row(as_of="2026-13")}}}', "'m': as_of: month must be"),
        (f'"m" = {{{row(source=" ")}}}', "'m': source: "),
        (f'"m" = {{{row()}}}\nM = {{{row()}}}', "'m' and 'M' are one model; leave one out"),
        (f'"m" = {{{row(input="cheap")}}}', "'m': input: "),
        (f'"m" = {{{row()}, per = "token"}}', "'m': per: Extra inputs"),
        ('"m" = 3', "'m' must be a row"),
        (f"[glm-4.7]\n{row().replace(', ', chr(10))}", r'quote a name .*\["glm-4\.7"\]'),
        ("[m", "not valid TOML"),
    ],
)
def test_wrong_rows_are_named(tmp_path, text, message):
    path = write(tmp_path / "p.toml", text)
    with pytest.raises(ConfigError, match=message) as error:
        PriceBook.load(path)
    assert "\n" not in str(error.value).strip()


def test_missing_file_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"can't read the prices in .*none\.toml: No such file"):
        PriceBook.load(tmp_path / "none.toml")


def test_cached_and_reasoning_tokens_are_billed_once_i02():
    # Case I02: prompt_tokens holds the cached ones, completion_tokens the reasoning ones.
    usage = Usage(prompt_tokens=2006, cached_tokens=1920, completion_tokens=300)
    usage = usage.model_copy(update={"reasoning_tokens": 200})
    prices = Prices(input=2.5, cached=1.25, output=10)
    assert prices.cost_usd(usage) == pytest.approx((86 * 2.5 + 1920 * 1.25 + 300 * 10) / 1e6)
    more = Usage(prompt_tokens=10, cached_tokens=20)  # a server that counts its blocks
    assert prices.cost_usd(more) == pytest.approx(10 * 1.25 / 1e6)


# --- in roles files ---------------------------------------------------------------------------


def judge(prices, url=DEEPINFRA, model="deepseek-ai/DeepSeek-V4-Flash-0731"):
    tables = {"judge": {"base_url": url, "model": model, "prices": prices}}
    return Roles.from_tables(tables, where="roles.toml").judge


def test_a_role_takes_its_prices_from_the_book():
    found = judge("book").prices
    assert (found.input, found.cached, found.output) == (0.08, 0.016, 0.18)
    assert found.book == "DeepSeek-V4-Flash-0731"


def test_a_role_names_a_row():
    assert judge("GLM-5.1", url="http://gateway:8000/v1", model="big").prices.input == 1.05


def test_the_row_of_another_provider_is_not_taken_unasked():
    with pytest.raises(
        ConfigError, match=r"\[judge\]: prices: .*at api\.deepinfra\.com, and gateway may ask"
    ):
        judge("book", url="http://gateway:8000/v1")


def test_unknown_model_with_prices_from_the_book_is_an_error():
    with pytest.raises(ConfigError, match=r"roles\.toml: \[judge\]: prices: no price .*'foo/bar'"):
        judge("book", model="foo/bar")


def test_a_budget_goes_with_prices_from_the_book():
    tables = {"judge": {"base_url": DEEPINFRA, "model": "GLM-5.1", "budget_usd": 3}}
    with pytest.raises(ConfigError, match="budget_usd needs prices"):
        Roles.from_tables(tables)
    tables["judge"]["prices"] = "book"
    assert Roles.from_tables(tables).judge.prices.output == 3.5


def test_every_server_of_a_policy_has_them():
    tables = {
        "policy": {
            "base_url": [DEEPINFRA, DEEPINFRA + "/b"],
            "model": "GLM-5.1",
            "prices": "book",
        }
    }
    assert [s.prices.input for s in Roles.from_tables(tables).policy_servers] == [1.05, 1.05]


def test_what_a_trace_keeps_reads_back_without_the_book():
    from agentgym.client import Endpoint

    endpoint = judge("book")
    assert Endpoint.model_validate(endpoint.public()).prices == endpoint.prices


@pytest.mark.parametrize(
    ("url", "model", "message"),
    [
        ("http://[x", "GLM-5.1", r"\[judge\]: .*this base_url may ask"),
        ("api.deepinfra.com/v1", "GLM-5.1", r"\[judge\]: .*this base_url may ask"),
        (DEEPINFRA, None, r"\[judge\]: prices: 'book' is the row of the endpoint's model; set"),
    ],
)
def test_endpoints_that_are_wrong_besides(url, model, message):
    with pytest.raises(ConfigError, match=message):
        judge("book", url=url, model=model)


def test_roles_take_prices_from_a_book_of_their_own(tmp_path):
    book = PriceBook.load(write(tmp_path / "p.toml", f'"GLM-5.1" = {{{row(input=8.0)}}}'))
    servers = {"base_url": ["http://a/v1", "http://b/v1"], "model": "m", "prices": "GLM-5.1"}
    tables = {"policy": servers, "judge": {**servers, "base_url": "http://c/v1"}}
    roles = Roles.from_tables(tables, book=book)
    assert [one.prices.input for one in (*roles.policy_servers, roles.judge)] == [8.0] * 3
