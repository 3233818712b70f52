"""A race of decoding methods as HTML: one lane each, moved by the tokens that are written."""

from collections.abc import Sequence

from agent.conversation.race import Lane
from ui.views.decoding.decoding_html import tokens_html
from ui.views.words import counted, html, milliseconds, times

_PLACES = ("1st", "2nd", "3rd")


def race_html(lanes: Sequence[Lane], tokens: int = 0) -> str:
    """The lanes in the order of their methods, with the order in which they finished.

    `tokens`: those of the text that is raced for, where it is known; a lane is as full as it has come towards them.
    """
    if not lanes:
        return ""
    finished = sorted((lane for lane in lanes if lane.done and not lane.trouble), key=lambda lane: lane.clock_ms)
    longest = max(tokens, *(_written(lane) for lane in lanes))
    items = "".join(_lane(lane, lanes, finished, longest) for lane in lanes)
    return f'<div class="race">{items}</div>{_verdict(lanes)}{_disturbed(lanes)}'


def _written(lane: Lane) -> int:
    return sum(len(r.text_tokens) for r in lane.rounds)


def _lane(lane: Lane, lanes: Sequence[Lane], finished: Sequence[Lane], longest: int) -> str:
    metrics = lane.metrics
    place = f'<b class="place">{_PLACES[finished.index(lane)]}</b>' if lane in finished else ""
    state = f"<small>{html(lane.trouble)}</small>" if lane.trouble else place
    width = 100.0 if lane in finished else 100 * _written(lane) / max(longest, 1)
    return (
        f'<section aria-label="{html(lane.method)}"><header><span>{html(lane.method)}</span>{state}'
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
