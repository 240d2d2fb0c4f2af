"""An HTML page taken apart, for tests of what it says."""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser

_VOID = {"meta", "link", "br", "hr", "img", "input"}


@dataclass
class Element:
    """One element with its text and what is in it."""

    tag: str
    attributes: dict[str, str]
    children: list[Element] = field(default_factory=list)
    own_text: str = ""

    @property
    def text(self) -> str:
        return self.own_text + " ".join(child.text for child in self.children)

    def all(self, tag: str, **attributes: str) -> list[Element]:
        """The elements inside with a tag and attributes, in order."""
        found = []
        for child in self.children:
            fits = all(child.attributes.get(k) == v for k, v in attributes.items())
            if child.tag == tag and fits:
                found.append(child)
            found += child.all(tag, **attributes)
        return found

    def every(self) -> list[Element]:
        """All elements inside."""
        return [each for child in self.children for each in (child, *child.every())]


class _Parser(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.root = Element("root", {})
        self.open = [self.root]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        element = Element(tag, {name: value or "" for name, value in attrs})
        self.open[-1].children.append(element)
        if tag not in _VOID:
            self.open.append(element)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open[-1].children.append(Element(tag, {n: v or "" for n, v in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self.open[-1].tag == tag, f"</{tag}> ends <{self.open[-1].tag}>"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        self.open[-1].own_text += data


def parse(html: str) -> Element:
    """The page; what is not well nested fails the test."""
    parser = _Parser()
    parser.feed(html)
    parser.close()
    assert parser.open == [parser.root]
    return parser.root


def assert_inert(page: Element) -> None:
    """Nothing in the page runs, loads or styles by itself; ids are unique."""
    ids = []
    for element in page.every():
        assert element.tag not in {"script", "iframe", "object", "embed", "img", "form", "base"}
        assert not element.attributes.keys() & {"style", "src", "srcset", "action", "formaction"}
        assert not [name for name in element.attributes if name.startswith("on")]
        link = element.attributes.get("href", "#")
        assert link.startswith("#") or link == "data:,"
        ids += [element.attributes["id"]] if "id" in element.attributes else []
    assert len(ids) == len(set(ids))
    for element in page.every():  # what is referred to is there
        if element.tag == "use":
            assert element.attributes["href"][1:] in ids
        for name in element.attributes.get("aria-labelledby", "").split():
            assert name in ids
