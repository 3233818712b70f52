"""An answer's rows, its chart and its SQL as one card in the chat, with a tab each. HTML on one line, so that nothing in it is
read as Markdown; its tabs are radio buttons, which need no script."""

from typing import Any

from agent.presentation.shown import bar_lengths, in_column
from ui.session.conversation_view import TurnView
from ui.views.line_svg import line_html
from ui.views.words import counted, inert

CARD_ROWS, CARD_COLUMNS, CARD_CHARACTERS = 10, 8, 40
UNCUT_ROWS = 12  # so few are all shown
CHART_ROWS = 20


def card_html(turn: TurnView, index: int) -> str:
    """The card of the answer at that place of the conversation; empty where there is nothing to show."""
    answer = turn.answer or {}
    seen = _seen(answer)
    parts = {
        "Table": _table(seen, turn.row_count, bool(answer.get("truncated"))),
        "Chart": _chart(turn, seen),
        "SQL": _sql(turn),
    }
    if turn.row_count == 1 and len(seen["headings"]) <= 2:
        parts["Table"] = ""  # the sentence says it all
    there = {name: content for name, content in parts.items() if content}
    if not there:
        return ""
    first = "Chart" if line_html(answer, turn.row_count) else "Table"  # SQL alone opens by a click
    tabs = "".join(_tab(name, index, name == first) for name in there)
    panes = "".join(f'<div class="pane {name.lower()}">{content}</div>' for name, content in there.items())
    return f'<div class="card">{tabs}{_actions(turn, index, bool(parts["Table"]))}{panes}</div>'


def rows_html(turn: TurnView) -> str:
    """The rows of a question whose answer is not yet written."""
    early = turn.early or {"columns": [], "rows": [], "count": 0}
    seen = {"headings": early["columns"], "rows": early["rows"], "kinds": ["other"] * len(early["columns"])}
    table = _table(seen, early["count"], truncated=False)
    return f'<div class="card early"><div class="pane table">{table}</div></div>' if table else ""


def big_number(turn: TurnView) -> str:
    """The one value of an answer that is no more than that."""
    seen = _seen(turn.answer or {})
    if (
        turn.row_count != 1
        or len(seen["headings"]) != 1
        or not seen["rows"]
        or seen["kinds"][0] not in ("amount", "digits")
    ):
        return ""
    (cell,) = in_column([seen["rows"][0][0]], seen["kinds"][0])
    return f'<div class="big">{inert(cell)}</div>'


def _seen(answer: dict[str, Any]) -> dict[str, Any]:
    """Headings, rows and kinds, as people see them."""
    seen = answer.get("shown") or {"headings": answer.get("columns", []), "rows": answer.get("rows", []), "kinds": []}
    return {**seen, "kinds": seen["kinds"] or ["other"] * len(seen["headings"])}


def _tab(name: str, index: int, chosen: bool) -> str:
    own = f"card-{index}-{name.lower()}"
    checked = " checked" if chosen else ""
    radio = f'<input type="radio" class="of-{name.lower()}" name="card-{index}" id="{own}" value="{name}"{checked}>'
    return f'{radio}<label for="{own}">{name}</label>'


def _actions(turn: TurnView, index: int, has_rows: bool) -> str:
    export = '<button type="button" class="export-card" title="export all rows">Export</button>' if has_rows else ""
    copy = '<button type="button" class="copy-card" title="copy what stands here">Copy</button>'
    link = f'<button type="button" class="link-card" id="link-{index}" title="copy the address of this answer">Link</button>'
    kept = "★ Kept" if turn.liked else "☆ Keep"
    hint = "keep no longer" if turn.liked else "keep this answer: right, and worth finding again"
    star = f'<button type="button" class="star" id="star-{index}" title="{hint}">{kept}</button>'
    again = f'<button type="button" class="again" id="again-{index}" title="answer it in another way">Again</button>'
    return f'<span class="actions">{copy}{export}{link}{again}{star}</span>'


def _table(seen: dict[str, Any], count: int, truncated: bool) -> str:
    """The first rows, with a bar next to each where that says more than its number."""
    if not seen["headings"] or not seen["rows"]:
        return ""
    lengths = bar_lengths(seen["rows"], seen["kinds"])
    kinds = seen["kinds"][:CARD_COLUMNS]
    rows = seen["rows"][: UNCUT_ROWS if count <= UNCUT_ROWS else CARD_ROWS]
    columns = [in_column([row[place] for row in rows], kind) for place, kind in enumerate(kinds)]
    sides = [' class="number"' if kind in ("amount", "digits") else "" for kind in kinds]
    head = "".join(
        f'<th scope="col"{side}>{_cell(name)}</th>' for name, side in zip(seen["headings"], sides, strict=False)
    )
    body = "".join(
        f"<tr>{''.join(f'<td{side}>{_cell(cell)}</td>' for cell, side in zip(cells, sides, strict=True))}"
        f"{f'<td>{_bar(lengths[place])}</td>' if lengths else ''}</tr>"
        for place, cells in enumerate(zip(*columns, strict=True))
    )
    over = "<th></th>" if lengths else ""
    table = f"<table><thead><tr>{head}{over}</tr></thead><tbody>{body}</tbody></table>"
    return f"{table}{_more(count - len(rows), len(seen['headings']), truncated)}"


def _chart(turn: TurnView, seen: dict[str, Any]) -> str:
    """A line over time, or bars; empty where neither fits."""
    if line := line_html(turn.answer or {}, turn.row_count):
        return line
    lengths = bar_lengths(seen["rows"], seen["kinds"])
    if not lengths:
        return ""
    amount = seen["kinds"].index("amount")
    others = [place for place in range(len(seen["kinds"])) if place != amount]
    who = next((place for place in others if seen["kinds"][place] == "text"), others[0])
    names, numbers = (in_column([row[place] for row in seen["rows"]], seen["kinds"][place]) for place in (who, amount))
    longest_first = sorted(zip(lengths, names, numbers, strict=True), key=lambda bar: -bar[0])[:CHART_ROWS]
    bars = "".join(
        f'<tr><th scope="row">{_cell(name)}</th><td>{_bar(length)}</td><td class="number">{_cell(number)}</td></tr>'
        for length, name, number in longest_first
    )
    told = f"{inert(seen['headings'][amount])} by {inert(seen['headings'][who])}"
    drawn = len(longest_first)
    left = f"{counted(turn.row_count - drawn, 'more row')} not drawn" if turn.row_count > drawn else ""
    note = f'<p class="more">{left}</p>' if left else ""
    return f'<table class="bars"><caption>{told}</caption><tbody>{bars}</tbody></table>{note}'


def _sql(turn: TurnView) -> str:
    """The statement that gives these rows; the model's own folded where it is another."""
    if not turn.sql:
        return ""
    own = f"<details><summary>as the model wrote it</summary>{_code(turn.laid_out)}</details>"
    return f"{_code(turn.statement)}{own if turn.laid_out != turn.statement else ''}"


def _code(sql: str) -> str:
    return f"<pre><code>{inert(sql)}</code></pre>"


def _more(left: int, columns: int, truncated: bool) -> str:
    """What the card leaves out of the result, and the result of the database."""
    more = [counted(left, "more row")] if left > 0 else []
    if columns > CARD_COLUMNS:
        more.append(counted(columns - CARD_COLUMNS, "more column"))
    told = [f"{' and '.join(more)} in the result"] if more else []
    if truncated:
        told.append("cut off by the row limit")
    return f'<p class="more">{"; ".join(told)}</p>' if told else ""


def _bar(length: float) -> str:
    return f'<i class="bar" style="width:{100 * length:.0f}%"></i>'


def _cell(cell: Any) -> str:
    text = " ".join(str(cell).split())
    return inert(text if len(text) <= CARD_CHARACTERS else f"{text[: CARD_CHARACTERS - 1]}…")


def strip_html(ours: int, plain: int) -> str:
    """The passes that an answer took, drawn into those that plain decoding takes."""
    if not ours or not plain:
        return ""
    share = 100 * min(1.0, ours / plain)
    return f'<span class="strip"><i style="width:{share:.0f}%"></i></span>'
