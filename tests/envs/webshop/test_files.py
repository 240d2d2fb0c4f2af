import json
import shutil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentgym.envs.webshop import files
from agentgym.envs.webshop.files import iterate_json_list, read_folder
from agentgym.envs.webshop.products import build_catalogue
from agentgym.errors import DataError

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=8,
)


@given(st.lists(JSON, max_size=6), st.sampled_from([None, 1]), st.integers(1, 40))
def test_any_list_is_read_back_whatever_the_piece_size(tmp_path_factory, entries, indent, piece):
    path = tmp_path_factory.mktemp("list") / "list.json"
    path.write_text(json.dumps(entries, indent=indent), encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "_CHUNK", piece)
        assert list(iterate_json_list(path)) == entries


@pytest.mark.parametrize("text", ["", "{}", "[1, 2", '[{"a": }]', "[1", "[1,"])
def test_file_that_is_not_a_list_is_an_error_naming_it(tmp_path, text):
    path = tmp_path / "list.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match="list.json"):
        list(iterate_json_list(path))


def test_file_of_another_encoding_is_an_error_naming_it(tmp_path):
    path = tmp_path / "list.json"
    path.write_bytes('["é"]'.encode("latin-1"))
    with pytest.raises(DataError, match=r"list\.json: not UTF-8"):
        list(iterate_json_list(path))


@pytest.mark.parametrize("text", ["[" * 100_000, '[{"a": ' + "9" * 5000 + "}]"])
def test_what_python_cant_read_is_an_error_naming_file_and_product(tmp_path, text):
    path = tmp_path / "list.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match=r"list\.json: product number 1: "):
        list(iterate_json_list(path))


def test_byte_order_mark_is_skipped(tmp_path):
    path = tmp_path / "list.json"
    path.write_text("[1]", encoding="utf-8-sig")
    assert list(iterate_json_list(path)) == [1]


@pytest.fixture
def copied(synth, tmp_path):
    folder = tmp_path / "shop"
    shutil.copytree(synth, folder)
    return folder


def test_full_and_thousand_product_names_are_both_found(copied, catalogue):
    (copied / "items_shuffle.json").rename(copied / "items_shuffle_1000.json")
    (copied / "items_ins.json").rename(copied / "items_ins_v2_1000.json")
    assert build_catalogue(read_folder(copied)).digest == catalogue.digest


def test_missing_folder_and_file_are_named_with_a_remedy(copied):
    with pytest.raises(DataError, match="'nowhere' does not exist; give a folder"):
        read_folder(copied.__class__("nowhere"))
    (copied / "items_human_ins.json").unlink()
    with pytest.raises(DataError, match="has no items_human_ins.json"):
        read_folder(copied)


def test_data_that_is_no_folder_is_told_from_one_that_is_missing(copied):
    with pytest.raises(DataError, match=r"items_ins\.json' is not a folder; give a folder"):
        read_folder(copied / "items_ins.json")
    for name in ("~nobody-of-this-name/x", "a\0b"):
        with pytest.raises(DataError, match="does not exist; give a folder"):
            read_folder(copied.__class__(name))


@pytest.mark.parametrize("text", ['{"a": ' * 100_000, '{"a": ' + "9" * 5000 + "}"])
def test_object_that_python_cant_read_is_named(copied, text):
    (copied / "items_ins.json").write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match=r"items_ins\.json: broken JSON"):
        read_folder(copied)


def test_file_that_cant_be_read_is_named(copied):
    (copied / "items_human_ins.json").unlink()
    (copied / "items_human_ins.json").symlink_to("/proc/self/mem")
    with pytest.raises(DataError, match=r"items_human_ins\.json"):
        read_folder(copied)


def test_broken_file_is_named(copied):
    (copied / "items_ins.json").write_text("{", encoding="utf-8")
    with pytest.raises(DataError, match=r"items_ins\.json: broken JSON"):
        read_folder(copied)
    (copied / "items_ins.json").write_text("[]", encoding="utf-8")
    with pytest.raises(DataError, match=r"items_ins\.json: is a list; an object"):
        read_folder(copied)


def test_broken_product_is_named_by_file_product_and_field(copied):
    path = copied / "items_shuffle.json"
    products = json.loads(path.read_text(encoding="utf-8"))
    products[3]["pricing"] = "ask us"
    path.write_text(json.dumps(products), encoding="utf-8")
    with pytest.raises(DataError) as caught:
        build_catalogue(read_folder(copied))
    for part in ("items_shuffle.json", products[3]["asin"], "'pricing'", "'ask us'"):
        assert part in str(caught.value)
