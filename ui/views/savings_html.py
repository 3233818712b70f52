"""The latency savings and a race of decoding methods as HTML.

What fast decoding saved, as HTML: for each model step two bars on one scale, plain decoding's above ours. Computes nothing.

Passes of the model lead, which are exact on any machine; times are compared only if both were measured.

A race of decoding methods as HTML: one lane each, moved by the tokens that are written.
"""

from collections.abc import Sequence
from typing import Any

from agent.observe.step_record import Savings, savings, step_title
from agent.race import Lane
from ui.session.conversation_view import TurnView
from ui.views.passes import tokens_html
from ui.views.words import counted, html, measured_words, mid_sentence, milliseconds, times

_COLUMNS = (
    ("step", ""),
    ("tokens", "new tokens"),
    ("passes", "passes of the model, and those that plain decoding takes for the same text"),
    ("cached", "prompt tokens taken from the cache, of all prompt tokens"),
)


def savings_html(turn: TurnView | None, turns: Sequence[TurnView]) -> str:
    """One answer's steps, and the conversation's total below."""
    if turn is None or not turn.records:
        return '<p class="none"><b>Nothing saved yet.</b> Passes of the model in each step, against one token at a time.</p>'
    if turn.failure is not None:
        return '<p class="none">This answer did not come to its end, so there is nothing to compare.</p>'
    decoded = [step for step in turn.records if step["decoder"]]
    total = savings(turn.records)
    timed = total.source == "measured"
    longest = max((max(_pair(step, timed)) for step in decoded), default=1.0) or 1.0
    bars = "".join(_step(step, longest, timed) for step in decoded)
    whole = savings(record for each in turns if each.failure is None for record in each.records)
    so_far = f'<p class="hint">All {len(turns)} questions so far: {_passes(whole)}.</p>' if len(turns) > 1 else ""
    return (
        f'<div class="savings">{_headline(total)}{bars}{_others(turn)}{_source(total)}{so_far}{_table(decoded)}</div>'
    )


def _headline(total: Savings) -> str:
    """Passes, and the time; the times of both where they were measured."""
    if not total.target_forwards:
        return f'<p class="headline">No model was needed <small>{milliseconds(total.wall_ms)}</small></p>'
    measured = measured_words(total)
    beside = f"{measured}: {milliseconds(total.wall_ms)} instead of {milliseconds(total.plain_ms)}" if measured else ""
    return (
        f'<p class="headline">{counted(total.target_forwards, "pass", "passes")} '
        f"<small>of the model instead of {total.plain_forwards:,}</small></p>"
        f'<p class="hint">{beside or milliseconds(total.wall_ms)}</p>'
    )


def _passes(total: Savings) -> str:
    return f"{counted(total.target_forwards, 'pass', 'passes')} instead of {total.plain_forwards:,}"


def _pair(step: dict[str, Any], timed: bool) -> tuple[float, float]:
    """What a step took, and what it takes with plain decoding: milliseconds where both were measured, else passes."""
    return (step["wall_ms"], step["plain_ms"] or 0.0) if timed else (step["target_forwards"], step["plain_forwards"])


def _step(step: dict[str, Any], longest: float, timed: bool) -> str:
    """A model step: its name and factor, then its two bars."""
    ours, plain = _pair(step, timed)
    lost = timed and ours > plain
    factor = f"<b>{times(plain / ours)}</b>" if ours else ""
    bars = _bar("plain", plain, longest, f"{_amount(plain, timed)} token by token")
    bars += _bar("lost" if lost else "ours", ours, longest, f"{_amount(ours, timed)} this answer")
    return (
        f'<section class="step{" slower" if lost else ""}"><header>{step_title(step["name"])} '
        f"<small>{html(step['decoder'])}</small>{factor}</header>{bars}</section>"
    )


def _amount(length: float, timed: bool) -> str:
    return milliseconds(length) if timed else counted(int(length), "pass", "passes")


def _bar(kind: str, length: float, longest: float, told: str) -> str:
    return (
        f'<div class="pace" role="img" aria-label="{told}"><span class="{kind}" style="width:{100 * length / longest:.1f}%">'
        f"</span><small>{told}</small></div>"
    )


def _others(turn: TurnView) -> str:
    """The steps without a model, in one line."""
    others = [step for step in turn.records if not step["decoder"]]
    if not others:
        return ""
    each = ", ".join(f"{mid_sentence(step_title(step['name']))} {milliseconds(step['wall_ms'])}" for step in others)
    together = milliseconds(sum(step["wall_ms"] for step in others))
    told = f"Everything else took {together} either way: {each}." if len(others) < len(turn.records) else f"{each}."
    return f'<p class="hint">{told[:1].upper()}{told[1:]}</p>'


def _source(total: Savings) -> str:
    if total.source == "measured":
        return '<p class="hint">Each step was also decoded token by token, and timed.</p>'
    return (
        '<p class="hint">The text is the same. A pass is one look of the model at the text.</p>' if total.source else ""
    )


def _table(decoded: Sequence[dict[str, Any]]) -> str:
    """The counts behind the bars, folded."""
    if not decoded:
        return ""
    head = "".join(f'<th scope="col" title="{hint}">{name}</th>' for name, hint in _COLUMNS)
    rows = "".join(_row(step_title(step["name"]), savings([step])) for step in decoded)
    foot = _row("together", savings(decoded)) if len(decoded) > 1 else ""
    passes = counted(sum(step["target_forwards"] for step in decoded), "pass", "passes")
    return (
        f'<details class="counts"><summary>Tokens and passes ({passes} of the model)</summary><table><thead><tr>{head}'
        f"</tr></thead><tbody>{rows}</tbody><tfoot>{foot}</tfoot></table></details>"
    )


def _row(name: str, total: Savings) -> str:
    fewer = f", {times(total.fewer_forwards)} fewer" if total.fewer_forwards else ""
    forwards = f"{total.target_forwards:,}<br><small>plain {total.plain_forwards:,}{fewer}</small>"
    cached = f"{total.cached_tokens:,}<br><small>of {total.prompt_tokens:,}</small>"
    cells = "".join(f"<td>{cell}</td>" for cell in (f"{total.new_tokens:,}", forwards, cached))
    return f'<tr><th scope="row">{name}</th>{cells}</tr>'


_NAMES = {"plain": "one token at a time", "prompt_lookup": "copies from the prompt", "adaptive": "ours (adaptive)"}
_PLACES = ("1st", "2nd", "3rd")


def race_html(lanes: Sequence[Lane], tokens: int = 0) -> str:
    """The lanes in the order of their methods, with the order in which they finished. Once all have, their bars are times.

    `tokens`: those of the text that is raced for, where it is known; a lane is as full as it has come towards them.
    """
    if not lanes:
        return ""
    finished = sorted((lane for lane in lanes if lane.done and not lane.trouble), key=lambda lane: lane.clock_ms)
    longest = max(tokens, *(_written(lane) for lane in lanes))
    items = "".join(_lane(lane, lanes, finished, longest) for lane in lanes)
    return f'<div class="race">{items}</div>{_verdict(lanes)}{_disturbed(lanes)}'


def method_name(method: str) -> str:
    """A method by what it does, where a person has not to know its name."""
    return _NAMES.get(method, method)


def _written(lane: Lane) -> int:
    return sum(len(r.text_tokens) for r in lane.rounds)


def _lane(lane: Lane, lanes: Sequence[Lane], finished: Sequence[Lane], longest: int) -> str:
    metrics = lane.metrics
    place = f'<b class="place">{_PLACES[finished.index(lane)]}</b>' if lane in finished else ""
    state = f"<small>{html(lane.trouble)}</small>" if lane.trouble else place
    slowest = max((each.clock_ms for each in finished), default=0.0) or 1.0
    over = len(finished) == sum(1 for each in lanes if not each.trouble)
    width = (
        100 * lane.clock_ms / slowest
        if over and lane in finished
        else 100.0
        if lane in finished
        else 100 * _written(lane) / max(longest, 1)
    )
    return (
        f'<section aria-label="{html(lane.method)}"><header><span>{html(method_name(lane.method))}</span>{state}'
        f"<span>{_factor(lane, lanes)}</span></header>"
        f'<div class="track"><i class="{"plain" if lane.method == "plain" else "ours"}" style="width:{width:.1f}%"></i></div>'
        f"<p><b>{milliseconds(lane.clock_ms)}</b> · {counted(metrics.target_forwards, 'pass', 'passes')} for "
        f"{counted(_written(lane), 'token')}</p>"
        f"<details><summary>text</summary>{tokens_html(lane.rounds, lane.spelling)}</details></section>"
    )


def _factor(lane: Lane, lanes: Sequence[Lane]) -> str:
    """How much faster than plain decoding, once both are there."""
    plain = next((each for each in lanes if each.method == "plain"), None)
    if plain is None or lane is plain or not (lane.done and plain.done) or lane.trouble or not lane.clock_ms:
        return ""
    factor = plain.clock_ms / lane.clock_ms
    kind = ' class="lost"' if factor < 1 else ""
    return f"<b{kind}>{times(factor)}</b>"


def _verdict(lanes: Sequence[Lane]) -> str:
    """Whether all wrote the same text, once all are there."""
    done = [lane for lane in lanes if lane.done and not lane.trouble]
    if len(done) < len(lanes) or len(done) < 2:
        return ""
    if len({lane.text for lane in done}) == 1:
        return '<p class="verdict">✓ identical text in every lane</p>'
    return '<p class="verdict lost">The texts differ: open them to compare.</p>'


def _disturbed(lanes: Sequence[Lane]) -> str:
    shared = sum(lane.shared_rounds for lane in lanes)
    if not shared:
        return ""
    every = counted(sum(len(lane.rounds) for lane in lanes), "pass", "passes")
    told = f"{shared:,} of {every} shared their forward with other people's questions"
    return f'<p class="hint">{told}: these are not the times of a race alone.</p>'
