"""Short texts and numbers as a person reads them, and the escapes for data that goes into Markdown or HTML."""

import re
from collections.abc import Mapping
from html import escape
from typing import Any

from agent.observe.step_record import Savings

_MARKDOWN = re.compile(r"([\\`*_{}\[\]()#+\-.!|~$:])")


def plain(text: Any) -> str:
    """Text for Markdown that shows as it is: no link, no image, no markup, no HTML."""
    return _MARKDOWN.sub(r"\\\1", " ".join(str(text).split())).replace("&", "&amp;").replace("<", "&lt;")


def fenced(text: str, language: str = "") -> str:
    """A code block that its content cannot end."""
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text}\n{fence}"


def html(text: Any) -> str:
    return escape(str(text), quote=True)


def inert(text: Any) -> str:
    """Text for HTML inside Markdown: on one line, and of no meaning in either.

    >>> inert("a*b <c>"), inert("x[1]")
    ('a&#42;b &lt;c&gt;', 'x&#91;1&#93;')
    """
    return re.sub(r"[\\`*_\[\]!~$|\n]", lambda found: f"&#{ord(found.group())};", html(text))


def trouble_html(text: str) -> str:
    """What went wrong, where it went wrong."""
    return f'<p class="trouble">⚠ {html(text)}</p>'


def milliseconds(value: float | None) -> str:
    """7.2 ms, 840 ms, 3.14 s; a question mark where it is not known."""
    if value is None:
        return "?"
    if abs(value) >= 1000:
        return f"{value / 1000:,.2f} s"
    return f"{value:,.0f} ms" if abs(value) >= 10 else f"{value:.1f} ms"


def counted(count: int, what: str, several: str = "") -> str:
    """1 pass, 2 passes: `several` is the plural where it is not `what` with an s.

    >>> counted(1, "pass", "passes"), counted(1200, "row")
    ('1 pass', '1,200 rows')
    """
    return f"{count:,} {what if count == 1 else several or what + 's'}"


def mid_sentence(title: str) -> str:
    """A title as it stands inside a sentence.

    >>> mid_sentence("Writing SQL")
    'writing SQL'
    """
    return title[:1].lower() + title[1:]


def shown_token(token: int, spelling: Mapping[int, str]) -> str:
    """A token as a reader sees it on one line; its number where its text is not known. A stop token has no text."""
    text = spelling.get(token, f"#{token}")
    if text == "<mask>":  # guesses from nothing
        return "▢"
    return text.replace("\n", "⏎").strip(" ") or ("␣" if text else "end")


def measured_words(total: Savings) -> str:
    """How the time compares with plain decoding's, where both were measured side by side; an empty text where they were not."""
    if total.source != "measured" or not total.speedup:
        return ""
    faster = total.speedup >= 1
    factor = total.speedup if faster else 1 / total.speedup
    return f"{times(factor)} {'faster' if faster else 'slower'} than token by token"


def times(factor: float) -> str:
    """A ratio as a person reads it: 2.41 ×.

    >>> times(2.412)
    '2.41 ×'
    """
    return f"{factor:,.2f} ×"
