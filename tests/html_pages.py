"""Reads a report as a browser would: elements, their attributes and text."""

from html.parser import HTMLParser
from typing import NamedTuple

VOID = {"meta", "br", "hr", "img", "link", "input"}


class Element(NamedTuple):
    tag: str
    attributes: dict
    children: list

    def all(self, *tags):
        """Elements below this one, in the order of the page."""
        for child in self.children:
            if isinstance(child, Element):
                if not tags or child.tag in tags:
                    yield child
                yield from child.all(*tags)

    def having(self, word):
        """Elements below this one that have a class."""
        return [e for e in self.all() if word in (e.attributes.get("class") or "").split()]

    @property
    def text(self):
        words = (c.text if isinstance(c, Element) else c for c in self.children)
        return " ".join(" ".join(words).split())


class _Parser(HTMLParser):
    def __init__(self):
        super().__init__()
        self.open = [Element("page", {}, [])]

    def handle_starttag(self, tag, attrs):
        element = Element(tag, dict(attrs), [])
        self.open[-1].children.append(element)
        if tag not in VOID:
            self.open.append(element)

    def handle_startendtag(self, tag, attrs):
        self.open[-1].children.append(Element(tag, dict(attrs), []))

    def handle_endtag(self, tag):
        assert self.open[-1].tag == tag, f"<{self.open[-1].tag}> is closed by </{tag}>"
        self.open.pop()

    def handle_data(self, data):
        self.open[-1].children.append(data)


def parse(text):
    """The page; fails if an element is not closed."""
    parser = _Parser()
    parser.feed(text)
    parser.close()
    assert len(parser.open) == 1, f"<{parser.open[-1].tag}> is open"
    return parser.open[0]
