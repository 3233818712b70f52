"""The decoding view as HTML: how a step's tokens came about, pass by pass, beside decoding one token at a time."""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import accumulate

from decoding.engine.records.metrics import Metrics, measure
from decoding.engine.records.origins import Placed, origins
from decoding.engine.records.rounds import Round
from ui.session.conversation_view import StepView
from ui.views.decoding.passes import Guess, history, passes
from ui.views.decoding.passes_html import passes_html
from ui.views.decoding.tree_svg import tree_svg
from ui.views.words import counted, html, milliseconds, shown_token, times

MOST_ROUNDS = 200
_SLOWER = 20  # the replay shows each pass for so many times as long as it took
_LEGEND = {
    "accepted": ("was guessed ahead, and the model agreed", "were guessed ahead, and the model agreed"),
    "recycled": (
        "was guessed too early at first, rejected, and right when it was tried again",
        "were guessed too early at first, rejected, and right when they were tried again",
    ),
    "bonus": ("is the model's own, one for each pass", "are the model's own, one for each pass"),
    "forced": (
        "is the only one that the grammar left: it costs no pass, here or token by token",
        "are the only ones that the grammar left: they cost no pass, here or token by token",
    ),
}


def decoding_html(step: StepView | None) -> str:
    """The whole view of one step."""
    if step is None or not step.rounds:
        return '<p class="hint">Choose a step that was decoded here. Where candidates vote, see how the elected one was.</p>'
    metrics, last = measure(step.rounds), len(step.rounds)
    return (
        f'<div class="decoding" data-replay data-phase="checked">{_headline(metrics)}'
        f"{tokens_html(step.rounds, step.spelling)}{_counters(step, metrics)}"
        '<p class="controls"><button type="button" data-play aria-label="replay the passes">▶ Replay</button> '
        f'<input type="range" data-seek min="0" max="{last}" value="{last}" aria-label="passes shown"> '
        f"<span><output data-count>{last}</output> of {last}</span> "
        '<button type="button" data-expand aria-label="fill the window">⤢</button></p>'
        '<p class="history hint" data-history aria-live="polite">Click a token to read how it came about.</p>'
        f"{passes_html(step.rounds[:MOST_ROUNDS], step.spelling)}"
        f"{_legend(step.rounds, metrics)}{_rounds_html(step)}</div>"
    )


def _headline(metrics: Metrics) -> str:
    passed = counted(metrics.target_forwards, "pass", "passes")
    if metrics.plain_forwards <= metrics.target_forwards:
        return f'<p class="headline">{passed} of the model <small>for {counted(metrics.tokens, "token")}</small></p>'
    return (
        f'<p class="headline">{passed} instead of {metrics.plain_forwards:,} '
        f"<small>{times(metrics.fewer_forwards)} fewer than token by token</small></p>"
    )


def _counters(step: StepView, metrics: Metrics) -> str:
    """Two counters with a track each, ours and plain decoding's, on one scale of time; the replay moves them."""
    plain_ms = step.record["plain_ms"] if step.record else None
    scale_ms = max(metrics.wall_ms, plain_ms or 0.0) or 1.0
    each_ms = (plain_ms or metrics.wall_ms) / max(metrics.plain_forwards, 1)
    ours = _counter("ours", "guessing ahead", metrics.target_forwards, metrics.wall_ms, scale_ms)
    plain = _counter("plain", "token by token", metrics.plain_forwards, plain_ms, scale_ms)
    return (
        f'<div class="tracks" data-plain="{metrics.plain_forwards}" data-plain-ms="{_SLOWER * each_ms:.1f}">{ours}{plain}'
        "</div>"
    )


def _counter(kind: str, name: str, forwards: int, ms: float | None, scale_ms: float) -> str:
    """`ms`: None where plain decoding's time is not known; its track is full then."""
    share = 100 * (scale_ms if ms is None else ms) / scale_ms
    noun, took = "pass" if forwards == 1 else "passes", f"<span data-time>, {milliseconds(ms)}</span>"
    return (
        f'<div><span>{name}</span><p><b data-count-of="{kind}">{forwards:,}</b> <small>{noun}{took}</small></p>'
        f'<span class="track"><i class="{kind}" data-track="{kind}" style="width:{share:.1f}%"></i></span></div>'
    )


def tokens_html(rounds: Sequence[Round], spelling: Mapping[int, str]) -> str:
    """The text, a span per token; `data-round` counts from 1, `data-told` is the token's history."""
    number = {r.index: i for i, r in enumerate(rounds, 1)}
    before = history(passes(rounds))
    spans = (
        _token(each, place, spelling, number[each.round_index], before.get(place, []))
        for place, each in enumerate(origins(rounds))
    )
    return f'<p class="tokens">{"".join(spans)}</p>'


def _token(
    placed: Placed, place: int, spelling: Mapping[int, str], number: int, guesses: Sequence[tuple[int, Guess]]
) -> str:
    text = html(spelling.get(placed.token, f"#{placed.token}")).replace("\n", "⏎\n")
    told = html(_history(placed, spelling, number, guesses))
    return (
        f'<span class="tok {placed.origin}" role="button" tabindex="0" data-round="{number}" data-at="{place}" '
        f'data-told="{told}" title="{told}">{text}</span>'
    )


def _history(placed: Placed, spelling: Mapping[int, str], number: int, guesses: Sequence[tuple[int, Guess]]) -> str:
    """How a token came about, in sentences."""
    told = [
        f"Pass {pass_number} guessed “{shown_token(guess.token, spelling)}” here, which did not stand."
        for pass_number, guess in guesses
        if not guess.kept
    ]
    ends = {
        "accepted": f"Pass {number} guessed it ahead and confirmed it at once.",
        "recycled": f"Pass {number} tried it again and confirmed it.",
        "bonus": f"It is the model's own token of pass {number}.",
        "forced": f"After pass {number} the grammar left no other token.",
    }
    return " ".join([f"“{shown_token(placed.token, spelling)}”:", *told, ends[placed.origin]])


def _legend(rounds: Sequence[Round], metrics: Metrics) -> str:
    """Each origin as a sentence with its count."""
    counts = Counter[str](placed.origin for placed in origins(rounds))
    items = [
        f'<li><span class="tok {name}">{counted(counts[name], "token")}</span> {words[counts[name] > 1]}</li>'
        for name, words in _LEGEND.items()
        if counts[name]
    ]
    wrong = metrics.drafted_tokens - metrics.accepted_tokens
    if wrong:
        verb = "was" if wrong == 1 else "were"
        items.append(f'<li><span class="tok wrong">{counted(wrong, "guess", "guesses")}</span> {verb} wrong</li>')
    return f'<ul class="legend">{"".join(items)}</ul>'


def _rounds_html(step: StepView) -> str:
    shown = step.rounds[:MOST_ROUNDS]
    ends = accumulate(map(_took_ms, shown))
    items = "".join(_round(r, step.spelling, i, end) for i, (r, end) in enumerate(zip(shown, ends, strict=True), 1))
    cut = len(step.rounds) - MOST_ROUNDS
    more = f'<p class="hint">and {counted(cut, "more pass", "more passes")}</p>' if cut > 0 else ""
    return (
        '<details class="rounds"><summary>Each pass, with all of its guesses</summary>'
        f'<ol tabindex="0" aria-label="passes">{items}</ol>{more}</details>'
    )


def _took_ms(r: Round) -> float:
    return r.draft_ms + r.share_ms + r.verify_ms


def _round(r: Round, spelling: Mapping[int, str], number: int, end_ms: float) -> str:
    took = _took_ms(r)
    committed = html("".join(spelling.get(token, "") for token in r.text_tokens)).replace("\n", "⏎")
    drafted = (
        f"{len(r.accepted)} of {counted(len(r.draft_tokens), 'guess', 'guesses')} right"
        if r.draft_tokens
        else "no guess"
    )
    guessing, checked = _story(r, number)
    parts = f"guessing {r.draft_ms:.1f}, model {r.share_ms:.1f}, checking {r.verify_ms:.1f} ms"
    return (
        f'<li data-round="{number}" data-end-ms="{_SLOWER * end_ms:.0f}" data-guessing="{guessing}" '
        f'data-checked="{checked}"><details><summary>'
        f"<code>{committed}</code> <small>{drafted} · {milliseconds(took)}</small></summary><p><small>{parts}; "
        f"{counted(r.pending, 'token')} fed</small></p>{tree_svg(r, spelling)}</details></li>"
    )


def _story(r: Round, number: int) -> tuple[str, str]:
    """What the replay says while a pass guesses, and once the model has checked its guesses."""
    drafted, kept = len(r.draft_tokens), len(r.accepted)
    if not drafted:
        told = f"Pass {number} guesses nothing: it writes one token."
        return told, told
    if drafted == 1:
        guessed, stand = f"Pass {number}: one token guessed", "it stands" if kept else "it is wrong"
    else:
        guessed = f"Pass {number}: {drafted:,} tokens guessed together"
        stand = f"{'all' if kept == drafted else kept or 'none'} of {drafted:,} stand"
    return f"{guessed}.", f"{guessed}, checked in one pass; {stand}."
