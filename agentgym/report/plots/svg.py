"""Matplotlib's SVG made fit for a page.

Its inline styles become plain attributes, so that a page's policy may forbid styles that aren't its
own; colours become CSS variables, so that dark mode is the page's matter; points get hover texts;
and ids become the figure's own, because several figures stand in one page.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from xml.etree import ElementTree

from agentgym.report.plots.palette import themed
from agentgym.types import printable

_SVG = "http://www.w3.org/2000/svg"
_NUMBER = re.compile(r"-?\d+\.\d{3,}")
_REFERENCE = re.compile(r"#([A-Za-z][\w.-]*)")
_LEFT_TO_THE_PAGE = frozenset({"font-family", "stroke-linejoin"})
STYLE = "text{font-family:system-ui,sans-serif}*{stroke-linejoin:round}.points use{stroke:#0000;stroke-width:9;pointer-events:all}"  # noqa: E501
"""What the figure wants of the page's style sheet, so that points are easily met by a mouse."""


def fit_for_page(
    drawn: str,
    *,
    key: str,
    title: str,
    description: str,
    hover: Mapping[str, Sequence[str]],
    style: str | None = None,
) -> str:
    """Rewrite a figure.

    Args:
        drawn: SVG as matplotlib writes it.
        key: Begins all ids.
        title: For screen readers.
        description: For screen readers, longer.
        hover: By `gid` of a line of markers, the text of each marker in order.
        style: A style sheet for a figure that stands alone.

    Returns:
        An `<svg>` element without an XML declaration.
    """
    # Matplotlib's own output, not a stranger's file.
    root = ElementTree.fromstring(drawn)
    _drop(root, {"metadata", "style"})
    for element in root.iter():
        element.tag = element.tag.removeprefix(f"{{{_SVG}}}")
        _plain_attributes(element)
    for gid, texts in hover.items():
        _add_titles(root, gid, texts)
    _own_ids(root, key)
    for group in root.iter("g"):
        _share_attributes(group)
    viewbox = root.get("viewBox", "")
    root.attrib.clear()
    root.attrib.update(xmlns=_SVG, viewBox=viewbox, role="img")
    root.set("aria-labelledby", f"{key}-title {key}-about")
    for name, text in (("desc", description), ("title", title)):
        head = ElementTree.Element(name, id=f"{key}-{'title' if name == 'title' else 'about'}")
        head.text = printable(text)
        root.insert(0, head)
    if style is not None:
        sheet = ElementTree.Element("style")
        sheet.text = style
        root.insert(2, sheet)
    return ElementTree.tostring(root, encoding="unicode", short_empty_elements=True)


def _drop(root: ElementTree.Element, names: set[str]) -> None:
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag.removeprefix(f"{{{_SVG}}}") in names:
                parent.remove(child)


def _plain_attributes(element: ElementTree.Element) -> None:
    """Styles as attributes, links without their old namespace, fewer digits."""
    style = element.attrib.pop("style", "")
    found = {name.rpartition("}")[2]: value for name, value in element.attrib.items()}
    for part in filter(None, (part.strip() for part in style.split(";"))):
        name, _, value = part.partition(":")
        if name.strip() not in _LEFT_TO_THE_PAGE:
            found[name.strip()] = themed(value.strip())
    element.attrib.clear()
    for name, value in found.items():
        short = _NUMBER.sub(lambda match: f"{float(match[0]):.2f}", value)
        element.set(name, " ".join(short.split()))
    if not (element.text or "").strip():
        element.text = None
    element.tail = None


def _add_titles(root: ElementTree.Element, gid: str, texts: Sequence[str]) -> None:
    group = next(each for each in root.iter("g") if each.get("id") == gid)
    group.set("class", "points")
    markers = list(group.iter("use"))
    if len(markers) != len(texts):
        raise AssertionError(f"{gid}: {len(markers)} markers were drawn for {len(texts)} points")
    for marker, text in zip(markers, texts, strict=True):
        ElementTree.SubElement(marker, "title").text = printable(text)
    for shape in group.iter("path"):  # what the marker looks like is said where it is used
        for name in [name for name in shape.attrib if name.startswith("stroke")]:
            del shape.attrib[name]


def _own_ids(root: ElementTree.Element, key: str) -> None:
    """Drop ids that nothing refers to, and begin the others with the figure's name."""
    used = {
        name
        for element in root.iter()
        for value in element.attrib.values()
        if value.startswith(("#", "url("))
        for name in _REFERENCE.findall(value)
    }
    for element in root.iter():
        for name, value in list(element.attrib.items()):
            if name == "id":
                if value in used:
                    element.set("id", f"{key}-{value}")
                else:
                    del element.attrib["id"]
            elif value.startswith(("#", "url(")) and _REFERENCE.findall(value)[:1]:
                inner = _REFERENCE.findall(value)[0]
                if inner in used and not re.fullmatch(r"#[0-9a-f]{6}", value):
                    element.set(name, value.replace(f"#{inner}", f"#{key}-{inner}"))


def _share_attributes(group: ElementTree.Element) -> None:
    """Say once what all markers of a group have in common."""
    markers = [child for child in group if child.tag == "use"]
    if len(markers) < 2:
        return
    for name, value in _common(markers):
        for marker in markers:
            del marker.attrib[name]
        group.set(name, value)


def _common(elements: Sequence[ElementTree.Element]) -> Iterator[tuple[str, str]]:
    own = {"x", "y", "href"}
    for name, value in list(elements[0].attrib.items()):
        if name not in own and all(each.get(name) == value for each in elements):
            yield name, value
