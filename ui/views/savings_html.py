"""The latency savings as HTML: a row and a bar per step, totals for the answer and the conversation. Computes nothing."""

from collections.abc import Iterable, Sequence
from typing import Any

from agent.conversation.savings import Savings, savings
from agent.observe.step_titles import step_title
from ui.session.conversation_view import TurnView
from ui.views.words import html, milliseconds

_HEAD = (
    ("step", ""),
    ("tokens", "new tokens"),
    ("forwards", "forwards of the model"),
    ("per forward", "tokens per forward; plain decoding: 1.00"),
    ("cached", "prompt tokens taken from the cache, of all prompt tokens"),
    ("time", "wall time, and below it plain decoding's"),
)


def savings_html(turn: TurnView | None, turns: Sequence[TurnView]) -> str:
    """The table for one answer, with the conversation's totals below."""
    if turn is None or not turn.records:
        return (
            '<p class="hint">Ask a question: here you will see what each step took, and what fast decoding saved.</p>'
        )
    longest = max(max(step["wall_ms"], step["plain_ms"] or 0) for step in turn.records) or 1.0
    rows = "".join(_row(step, longest) for step in turn.records)
    total = savings(turn.records)
    whole = savings(record for each in turns for record in each.records)
    foot = _total("this answer", total) + (_total(f"all {len(turns)} questions", whole) if len(turns) > 1 else "")
    head = "".join(f'<th scope="col" title="{hint}">{name}</th>' for name, hint in _HEAD)
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody><tfoot>{foot}</tfoot></table>"
    region = f'<div class="savings" tabindex="0" role="region" aria-label="time per step">{table}</div>'
    return _headline(total) + region + _LEGEND


_LEGEND = (
    '<p class="hint"><span class="key used"></span> time taken <span class="key saved"></span> time saved '
    "against plain decoding. <b>measured</b>: the step was decoded plainly as well (settings: measure). "
    "<b>estimated</b>: from plain steps timed on this machine. <b>same</b>: no model, or plain itself.</p>"
)


def _headline(total: Savings) -> str:
    saved, speedup = total.saved_ms, total.speedup
    if saved is None or speedup is None or not total.source:
        return f'<p class="headline">{milliseconds(total.wall_ms)}</p>'
    verdict = f"{milliseconds(abs(saved))} {'saved' if saved >= 0 else 'lost'}"
    return (
        f'<p class="headline">{verdict} <small>{milliseconds(total.wall_ms)} instead of {milliseconds(total.plain_ms)} '
        f"with plain decoding ({total.source}): {speedup:.2f} ×</small></p>"
    )


def _row(step: dict[str, Any], longest_ms: float) -> str:
    decoder = f" <small>{html(step['decoder'])}</small>" if step["decoder"] else ""
    name = step_title(step["name"]) + decoder + _bar(step, longest_ms)
    if not step["decoder"]:
        return _line(name, ["", "", "", "", milliseconds(step["wall_ms"])])
    rate = f"{step['tokens_per_forward']:.2f}" if step["tokens_per_forward"] else ""
    cached = _of(step["cached_tokens"], step["prompt_tokens"])
    time = _times(step["wall_ms"], step["plain_ms"], step["plain_ms_source"] or "")
    return _line(name, [f"{step['new_tokens']:,}", f"{step['target_forwards']:,}", rate, cached, time])


def _times(wall_ms: float, plain_ms: float | None, source: str) -> str:
    plain = f"<br><small>plain {milliseconds(plain_ms)}<br>{html(source)}</small>" if source else ""
    return milliseconds(wall_ms) + plain


def _of(part: int, whole: int) -> str:
    return f"{part:,}<br><small>of {whole:,}</small>"


def _bar(step: dict[str, Any], longest_ms: float) -> str:
    plain_ms = step["plain_ms"] if step["plain_ms"] is not None else step["wall_ms"]
    used, saved = step["wall_ms"], max(plain_ms - step["wall_ms"], 0.0)
    label = f"{milliseconds(used)} taken, {milliseconds(saved)} saved"
    return (
        f'<div class="bar" role="img" aria-label="{label}" title="{label}"><i class="used" style="width:'
        f'{100 * used / longest_ms:.1f}%"></i><i class="saved" style="width:{100 * saved / longest_ms:.1f}%"></i></div>'
    )


def _total(name: str, total: Savings) -> str:
    rate = f"{total.tokens_per_forward:.2f}" if total.tokens_per_forward else ""
    cached = _of(total.cached_tokens, total.prompt_tokens) if total.prompt_tokens else ""
    counts = [f"{total.new_tokens:,}", f"{total.target_forwards:,}"] if total.target_forwards else ["", ""]
    return _line(name, [*counts, rate, cached, _times(total.wall_ms, total.plain_ms, total.source)])


def _line(name: str, cells: Iterable[str]) -> str:
    return f'<tr><th scope="row">{name}</th>{"".join(f"<td>{cell}</td>" for cell in cells)}</tr>'
