"""Markdown as a tree of a few kinds of elements, from which the page makes nodes without HTML.

A node is a text, or a list `[tag, attributes, children]`. Tags are those of `TAGS`; the attributes
are `href` of a link, `start` of a list, `align` of a cell and `language` of a code block; their
values are checked here and again by the page. Raw HTML is text. Images become links.
"""

from urllib.parse import urlsplit

import msgspec
from markdown_it import MarkdownIt
from markdown_it.token import Token

Node = str | list["str | dict[str, str] | list[Node]"]
"""A text, or a tag, attributes and children."""

TAGS = frozenset(
    {
        *("p", "h1", "h2", "h3", "h4", "h5", "h6", "ul", "ol", "li", "blockquote", "pre", "hr"),
        *("table", "thead", "tbody", "tr", "th", "td", "em", "strong", "s", "code", "a", "br"),
    }
)
SCHEMES = frozenset({"http", "https", "mailto"})
"""Schemes of links; other links become text."""
ALIGN = "text-align:"


class RenderedMarkdown(msgspec.Struct, frozen=True):
    """A text's blocks. However the text goes on, the first `num_final` blocks are final, and the
    rest can be rendered from the text's line `line` on.
    """

    blocks: list[Node]
    num_final: int
    line: int


def parser() -> MarkdownIt:
    """A parser of CommonMark with tables, struck-out text, bare addresses and kept line breaks."""
    made = MarkdownIt(
        "commonmark", {"html": False, "linkify": True, "breaks": True, "maxNesting": 100}
    )
    made.enable(["table", "strikethrough", "linkify"])
    assert made.linkify is not None
    # `readme.md` and `a.b@c` are no addresses: only what has a scheme is.
    made.linkify.set({"fuzzy_link": False, "fuzzy_email": False, "fuzzy_ip": False})
    return made


def render(text: str, markdown: MarkdownIt) -> RenderedMarkdown:
    """The blocks of a text, whose lines end with line feeds."""
    top = _Tree()
    lines: list[int] = []
    for token in markdown.parse(text):
        if token.level == 0 and token.nesting >= 0:
            assert token.map is not None, token.type
            lines.append(token.map[0])
        top.take(token)
    # A block's first line and the next one decide that it begins, as with tables. So the block
    # before it is final once both are complete.
    num_whole = text.count("\n")
    num_final = max((i for i, line in enumerate(lines) if i and line + 2 <= num_whole), default=0)
    return RenderedMarkdown(top.nodes, num_final, lines[num_final] if num_final else 0)


class _Tree:
    """A builder of nodes from the parser's tokens."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self._open: list[list[Node]] = [self.nodes]  # children of what is open, outermost first

    def take(self, token: Token) -> None:
        """Add the next token."""
        if token.type == "inline":
            for child in token.children or []:
                self.take(child)
        elif token.hidden:  # a tight list's paragraphs
            pass
        elif token.nesting > 0:
            self._begin(token)
        elif token.nesting < 0:
            self._open.pop()
        else:
            self._add(_leaf(token))

    def _begin(self, token: Token) -> None:
        attributes = _attributes(token)
        children: list[Node] = []
        if token.tag in TAGS and not (token.tag == "a" and "href" not in attributes):
            self._add([token.tag, attributes, children])
        else:
            children = self._open[-1]  # the element is left out, its children stay
        self._open.append(children)

    def _add(self, node: Node) -> None:
        siblings = self._open[-1]
        if isinstance(node, str) and siblings and isinstance(siblings[-1], str):
            siblings[-1] += node
        elif node:
            siblings.append(node)


def _leaf(token: Token) -> Node:
    match token.type:
        case "fence" | "code_block":
            language = token.info.strip().split(maxsplit=1)[:1]
            return ["pre", {"language": language[0]} if language else {}, [token.content]]
        case "code_inline":
            return ["code", {}, [token.content]]
        case "softbreak" | "hardbreak":
            return ["br", {}, []]
        case "hr":
            return ["hr", {}, []]
        case "image":  # nothing is loaded from other servers, unless the user follows the link
            name, address = token.content or "image", _address(token.attrs.get("src"))
            return ["a", {"href": address}, [name]] if address else name
        case _:
            return token.content


def _attributes(token: Token) -> dict[str, str]:
    made = {}
    if token.tag == "a" and (address := _address(token.attrs.get("href"))):
        made["href"] = address
    if token.tag == "ol" and "start" in token.attrs:
        made["start"] = str(token.attrs["start"])
    style = str(token.attrs.get("style", ""))
    if style.startswith(ALIGN):
        made["align"] = style.removeprefix(ALIGN)
    return made


def _address(given: str | float | None) -> str:
    """A link's address, if it is allowed, else empty."""
    address = str(given or "")
    try:
        scheme = urlsplit(address).scheme
    except ValueError:
        return ""
    return address if scheme in SCHEMES else ""
