"""The latency savings as HTML: for each model step two bars on one scale, plain decoding's above ours. Computes nothing."""

from collections.abc import Iterable, Sequence
from typing import Any

from agent.conversation.savings import Savings, savings
from agent.observe.step_titles import step_title
from ui.session.conversation_view import TurnView
from ui.views.words import counted, html, mid_sentence, milliseconds, times

_COLUMNS = (
    ("step", ""),
    ("tokens", "new tokens"),
    ("forwards", "forwards of the model, and those that plain decoding takes for the same text"),
    ("cached", "prompt tokens taken from the cache, of all prompt tokens"),
)
_SOURCES = {
    "measured": "Each step was also decoded token by token, and timed.",
    "estimated": "Token by token is estimated from single steps of the model, timed on this machine.",
}


def savings_html(turn: TurnView | None, turns: Sequence[TurnView]) -> str:
    """One answer's steps, and the conversation's total below."""
    if turn is None or not turn.records:
        return '<p class="none"><b>Nothing saved yet.</b> What each step took, beside what it takes token by token.</p>'
    decoded = [step for step in turn.records if step["decoder"]]
    total = savings(turn.records)
    longest = max((max(step["wall_ms"], step["plain_ms"] or 0.0) for step in decoded), default=1.0) or 1.0
    bars = "".join(_step(step, longest) for step in decoded)
    whole = savings(record for each in turns for record in each.records)
    so_far = f'<p class="hint">All {len(turns)} questions so far: {_told(whole)}.</p>' if len(turns) > 1 else ""
    return (
        f'<div class="savings">{_headline(total)}{bars}{_others(turn)}{_source(total)}{so_far}{_table(decoded)}</div>'
    )


def _headline(total: Savings) -> str:
    if total.speedup is None or not total.source or total.source == "same":
        return f'<p class="headline">{milliseconds(total.wall_ms)}</p>'
    faster = total.speedup >= 1
    factor = total.speedup if faster else 1 / total.speedup
    verdict = f"{times(factor)} {'faster' if faster else 'slower'}"
    return (
        f'<p class="headline{"" if faster else " lost"}">{verdict} <small>than token by token: '
        f"{milliseconds(total.wall_ms)} instead of {milliseconds(total.plain_ms)}</small></p>"
    )


def _step(step: dict[str, Any], longest_ms: float) -> str:
    """A model step: its name and factor, then its two bars."""
    plain_ms, wall_ms = step["plain_ms"], step["wall_ms"]
    lost = plain_ms is not None and wall_ms > plain_ms
    factor = f"<b>{times(plain_ms / wall_ms)}</b>" if plain_ms is not None and wall_ms else ""
    ours = _bar("lost" if lost else "ours", wall_ms, longest_ms, "this answer")
    plain = _bar("plain", plain_ms, longest_ms, "token by token") if plain_ms is not None else ""
    return (
        f'<section class="step{" slower" if lost else ""}"><header>{step_title(step["name"])} '
        f"<small>{html(step['decoder'])}</small>{factor}</header>{plain}{ours}</section>"
    )


def _bar(kind: str, ms: float, longest_ms: float, what: str) -> str:
    told = f"{what}: {milliseconds(ms)}"
    return (
        f'<div class="pace" role="img" aria-label="{told}"><span class="{kind}" style="width:{100 * ms / longest_ms:.1f}%">'
        f"</span><small>{milliseconds(ms)} {what}</small></div>"
    )


def _others(turn: TurnView) -> str:
    """The steps without a model, in one line."""
    others = [step for step in turn.records if not step["decoder"]]
    if not others:
        return ""
    each = ", ".join(f"{mid_sentence(step_title(step['name']))} {milliseconds(step['wall_ms'])}" for step in others)
    together = milliseconds(sum(step["wall_ms"] for step in others))
    return f'<p class="hint">Everything else took {together} either way: {each}.</p>'


def _source(total: Savings) -> str:
    told = " ".join(text for source, text in _SOURCES.items() if source in total.source)
    return f'<p class="hint">{told}</p>' if told else ""


def _told(total: Savings) -> str:
    if total.speedup is None or not total.source:
        return milliseconds(total.wall_ms)
    return f"{milliseconds(total.wall_ms)} instead of {milliseconds(total.plain_ms)}, {times(total.speedup)}"


def _table(decoded: Sequence[dict[str, Any]]) -> str:
    """The counts behind the bars, folded."""
    if not decoded:
        return ""
    head = "".join(f'<th scope="col" title="{hint}">{name}</th>' for name, hint in _COLUMNS)
    rows = "".join(_row(step_title(step["name"]), savings([step])) for step in decoded)
    foot = _row("together", savings(decoded)) if len(decoded) > 1 else ""
    forwards = counted(sum(step["target_forwards"] for step in decoded), "forward")
    return (
        f'<details class="counts"><summary>Tokens and forwards ({forwards} of the model)</summary><table><thead><tr>{head}'
        f"</tr></thead><tbody>{rows}</tbody><tfoot>{foot}</tfoot></table></details>"
    )


def _row(name: str, total: Savings) -> str:
    fewer = f", {times(total.fewer_forwards)} fewer" if total.fewer_forwards else ""
    forwards = f"{total.target_forwards:,}<br><small>plain {total.plain_forwards:,}{fewer}</small>"
    cached = f"{total.cached_tokens:,}<br><small>of {total.prompt_tokens:,}</small>"
    return _line(name, [f"{total.new_tokens:,}", forwards, cached])


def _line(name: str, cells: Iterable[str]) -> str:
    return f'<tr><th scope="row">{name}</th>{"".join(f"<td>{cell}</td>" for cell in cells)}</tr>'
