"""The decoding view as HTML: a step's tokens coloured by how they came, its rounds one by one, and their draft trees."""

from collections.abc import Mapping, Sequence

from agent.conversation.race import Lane
from decoding.engine.records.metrics import measure
from decoding.engine.records.origins import Placed, origins
from decoding.engine.records.rounds import Round
from ui.session.conversation_view import StepView
from ui.views.tree_svg import tree_svg
from ui.views.words import counted, html, milliseconds

ORIGINS = {
    "accepted": "a draft's guess that the model agreed with",
    "recycled": "a guess that an earlier round had made and seen rejected",
    "bonus": "the model's own token, one per forward",
    "forced": "the only token that the grammar left: no forward was spent on it",
}
MOST_ROUNDS = 200
_SLOWER = 8  # the replay shows each round for so many times as long as it took
_LEGEND = "".join(f'<span class="tok {name}" title="{told}">{name}</span> ' for name, told in ORIGINS.items())


def decoding_html(step: StepView | None) -> str:
    """The whole view of one step."""
    if step is None or not step.rounds:
        return '<p class="hint">Choose a step that was decoded here. Where candidates vote, see how the elected one was.</p>'
    metrics = measure(step.rounds)
    told = (
        f"{counted(metrics.tokens, 'token')} in {counted(metrics.target_forwards, 'forward')}: "
        f"{metrics.tokens_per_forward:.2f} a forward; {counted(metrics.forced_tokens, 'forced token')}; "
        f"{metrics.accepted_tokens:,} of {metrics.drafted_tokens:,} drafted tokens accepted"
    )
    return (
        f'<div class="decoding" data-replay><p class="legend">{_LEGEND}</p>{tokens_html(step.rounds, step.spelling)}'
        '<p class="controls"><button type="button" data-play aria-label="replay the rounds">▶ Replay</button> '
        f'<input type="range" data-seek min="0" max="{len(step.rounds)}" value="{len(step.rounds)}" '
        f'aria-label="rounds shown"> <output>{len(step.rounds)}</output> of {counted(len(step.rounds), "round")}'
        f'</p><p class="hint">{told}</p>{_rounds_html(step)}</div>'
    )


def tokens_html(rounds: Sequence[Round], spelling: Mapping[int, str]) -> str:
    """The text, a span per token; `data-round` counts from 1."""
    position = {r.index: i for i, r in enumerate(rounds, 1)}
    spans = "".join(_token(each, spelling, position[each.round_index]) for each in origins(rounds))
    return f'<p class="tokens">{spans}</p>'


def _token(placed: Placed, spelling: Mapping[int, str], position: int) -> str:
    text = html(spelling.get(placed.token, f"#{placed.token}")).replace("\n", "⏎\n")
    told = f"{placed.origin}, round {position}"
    return f'<span class="tok {placed.origin}" data-round="{position}" title="{told}">{text}</span>'


def _rounds_html(step: StepView) -> str:
    items = "".join(_round(r, step.spelling, i) for i, r in enumerate(step.rounds[:MOST_ROUNDS], 1))
    cut = len(step.rounds) - MOST_ROUNDS
    more = f'<p class="hint">and {counted(cut, "more round")}</p>' if cut > 0 else ""
    return f'<ol class="rounds" tabindex="0" aria-label="rounds">{items}</ol>{more}'


def _round(r: Round, spelling: Mapping[int, str], position: int) -> str:
    took = r.draft_ms + r.target_ms / r.batch + r.verify_ms
    committed = html("".join(spelling.get(token, "") for token in r.text_tokens)).replace("\n", "⏎")
    drafted = f"{len(r.accepted)} of {len(r.draft_tokens)} drafted" if r.draft_tokens else "no draft"
    times = f"draft {r.draft_ms:.1f}, model {r.target_ms / r.batch:.1f}, verify {r.verify_ms:.1f} ms"
    return (
        f'<li data-round="{position}" data-show-ms="{_SLOWER * took:.0f}"><details><summary><code>{committed}</code> '
        f"<small>{drafted} · {milliseconds(took)}</small></summary><p><small>{times}; {counted(r.pending, 'token')} fed"
        f"</small></p>{tree_svg(r, spelling)}</details></li>"
    )


def race_html(lanes: Sequence[Lane]) -> str:
    """The runners side by side."""
    if not lanes:
        return ""
    slowest = max(lane.clock_ms for lane in lanes) or 1.0
    return f'<div class="race">{"".join(_lane(lane, slowest) for lane in lanes)}</div>{_disturbed(lanes)}'


def _disturbed(lanes: Sequence[Lane]) -> str:
    shared = sum(lane.shared_rounds for lane in lanes)
    if not shared:
        return ""
    every = counted(sum(len(lane.rounds) for lane in lanes), "round")
    told = f"{shared:,} of {every} shared their forward with other people's questions"
    return f'<p class="hint">{told}: these are not the times of a race alone.</p>'


def _lane(lane: Lane, slowest_ms: float) -> str:
    metrics = lane.metrics
    state = lane.trouble or ("finished" if lane.done else "running")
    return (
        f'<section aria-label="{html(lane.method)}"><h4>{html(lane.method)} <small>{html(state)}</small></h4>'
        f'<div class="bar"><i class="used" style="width:{100 * lane.clock_ms / slowest_ms:.1f}%"></i></div>'
        f"<p><b>{milliseconds(lane.clock_ms)}</b> · {counted(metrics.target_forwards, 'forward')} · "
        f"{metrics.tokens_per_forward:.2f} tokens a forward</p>{tokens_html(lane.rounds, lane.spelling)}</section>"
    )
