"""How a step's tokens came about, pass by pass, as a table and as HTML.

One round's draft as a drawing: the root at the left, guesses to the right of what they follow.

A step's rounds as a table for people: columns are the text's positions, rows the model's passes over guesses.

The passes of a step as a grid: columns are positions of the text, rows are passes of the model.

As it is written here, the grid is as wide as the text is long; `ui/page/passes.js` breaks it into lines that fit.

The decoding view as HTML: how a step's tokens came about, pass by pass, compared with decoding one token at a time.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from decoding.engine.draft import ROOT, Draft
from decoding.engine.rounds import Metrics, Placed, Round, measure, origins
from ui.session.conversation_view import StepView
from ui.views.words import counted, html, milliseconds, shown_token, times

_COLUMN, _ROW, _MARGIN = 92, 26, 14
_CHARACTERS = 11
MOST_NODES = 128


def tree_svg(r: Round, spelling: Mapping[int, str]) -> str:
    """Accepted nodes are filled; empty where nothing was drafted."""
    if not r.draft_tokens or len(r.draft_tokens) > MOST_NODES:
        return ""
    draft = Draft(r.draft_tokens, r.draft_parents)
    places = _places(draft)
    edges = "".join(_edge(places[parent], places[node]) for node, parent in enumerate(draft.parents))
    accepted = set(r.accepted)
    nodes = "".join(_node(places[i], spelling.get(t, "?"), i in accepted) for i, t in enumerate(draft.tokens))
    width = _MARGIN * 2 + _COLUMN * (max(draft.depths) + 1)
    height = _MARGIN * 2 + _ROW * (max(y for _, y in places.values()) + 1)
    label = f"draft of {len(draft)} tokens, {len(accepted)} accepted"
    return (
        f'<div class="tree" tabindex="0"><svg role="img" aria-label="{label}" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}">{edges}{_root(places[ROOT])}{nodes}</svg></div>'
    )


def _places(draft: Draft) -> dict[int, tuple[int, int]]:
    """Column and row of each node: a node's first child stands in its row, each further one below all that came before."""
    places, used = {ROOT: (0, 0)}, {ROOT: False}
    order = sorted(range(len(draft)), key=lambda node: draft.path(node))
    lowest = 0
    for node in order:
        parent = draft.parents[node]
        if used[parent]:
            lowest += 1
            row = lowest
        else:
            row = places[parent][1]
        used[parent], used[node] = True, False
        places[node] = (draft.depths[node], row)
    return places


def _middle(place: tuple[int, int]) -> tuple[float, float]:
    return _MARGIN + _COLUMN * place[0], _MARGIN + _ROW * (place[1] + 0.5)


def _edge(parent: tuple[int, int], node: tuple[int, int]) -> str:
    (x, y), (to_x, to_y) = _middle(parent), _middle(node)
    from_x = x + (8 if parent == (0, 0) else _COLUMN - 12)
    bend = (from_x + to_x) / 2
    return f'<path d="M{from_x:.0f} {y:.0f} C{bend:.0f} {y:.0f} {bend:.0f} {to_y:.0f} {to_x:.0f} {to_y:.0f}"/>'


def _root(place: tuple[int, int]) -> str:
    x, y = _middle(place)
    return f'<circle cx="{x:.0f}" cy="{y:.0f}" r="6"/>'


def _node(place: tuple[int, int], text: str, accepted: bool) -> str:
    x, y = _middle(place)
    short = text if len(text) <= _CHARACTERS else text[: _CHARACTERS - 1] + "…"
    shown = html(short.replace("\n", "⏎").strip() or "␣")
    kind = "accepted" if accepted else "rejected"
    return (
        f'<g class="{kind}"><title>{html(text)} ({kind})</title><rect x="{x:.0f}" y="{y - 10:.0f}" '
        f'width="{_COLUMN - 12}" height="20" rx="5"/><text x="{x + 6:.0f}" y="{y + 4:.0f}">{shown}</text></g>'
    )


@dataclass(frozen=True, slots=True)
class Guess:
    """A token that was guessed for a position. `kept`: the model agreed with it, and with every guess before it."""

    position: int
    token: int
    kept: bool


@dataclass(frozen=True, slots=True)
class Pass:
    """One forward. `guesses`: those that were kept, then the first branch that was not; `others`: further guesses, in other
    branches. `own`: the position of the model's own token, or of the guess that ended the text. `forced`: the positions
    that the grammar filled after it.
    """

    number: int  # from 1
    start: int
    guesses: tuple[Guess, ...]
    others: int
    own: int
    forced: range


def passes(rounds: Iterable[Round]) -> list[Pass]:
    """The passes of one sequence; positions count its text's tokens from 0."""
    made: list[Pass] = []
    start = 0
    for number, r in enumerate(rounds, 1):
        own = start + len(r.committed) - 1
        guesses = _guesses(r, start)
        others = len(r.draft_tokens) - len(guesses)
        forced = range(own + 1, own + 1 + len(r.forced))
        made.append(Pass(number, start, guesses, others, own, forced))
        start = forced.stop
    return made


def _guesses(r: Round, start: int) -> tuple[Guess, ...]:
    kept = r.accepted[: len(r.committed) - 1]
    nodes = [*kept, *_first_branch(r, kept)]
    right = [i < len(kept) for i in range(len(nodes))]
    if len(nodes) > len(kept) and r.draft_tokens[nodes[len(kept)]] == r.committed[-1]:
        right[len(kept)] = True  # the text ended here, with what was guessed
    return tuple(Guess(start + i, r.draft_tokens[node], right[i]) for i, node in enumerate(nodes))


def _first_branch(r: Round, kept: Sequence[int]) -> list[int]:
    """The nodes that follow the kept ones, each the first child of the one before."""
    first_child: dict[int, int] = {}
    for node, parent in enumerate(r.draft_parents):
        first_child.setdefault(parent, node)
    branch: list[int] = []
    node = kept[-1] if kept else ROOT
    while node in first_child:
        node = first_child[node]
        branch.append(node)
    return branch


def history(all_passes: Iterable[Pass]) -> dict[int, list[tuple[int, Guess]]]:
    """By position, every guess for it with the number of its pass, in order."""
    found: dict[int, list[tuple[int, Guess]]] = {}
    for each in all_passes:
        for guess in each.guesses:
            found.setdefault(guess.position, []).append((each.number, guess))
    return found


_BEYOND = 4  # columns after the text, for guesses that went on


def passes_html(rounds: Sequence[Round], spelling: Mapping[int, str]) -> str:
    """A row per pass: its guesses next to each other, those that stand and those struck out, and the model's own token."""
    text = [token for r in rounds for token in r.text_tokens]
    made, origin = passes(rounds), [each.origin for each in origins(rounds)]
    longest = max(made, key=lambda each: len(each.guesses))
    cells = "".join(cell for each in made for cell in _row(each, text, origin, spelling, explained=each is longest))
    return (
        '<div class="passes-box" tabindex="0" role="region" aria-label="passes by position"><div class="passes" '
        f'data-text="{len(text)}">{cells}</div></div>'
    )


def _row(
    each: Pass, text: Sequence[int], origin: Sequence[str], spelling: Mapping[int, str], explained: bool
) -> Iterator[str]:
    """The cells of one pass, one for a position; the grid's first column holds its number. `origin`: of each token of the text.
    `explained`: the bracket's words are always shown."""
    place = f"grid-row:{2 * each.number};grid-column:1"
    yield f'<span class="number" data-round="{each.number}" style="{place}">{each.number}</span>'
    if len(each.guesses) > 1:
        yield _bracket(each, len(text) + _BEYOND, explained)
    for guess in each.guesses:
        filled = guess.position == each.own or guess.position in each.forced
        if guess.kept or (not filled and guess.position < len(text) + _BEYOND):
            kind = f"kept {origin[guess.position]}" if guess.kept else "wrong"
            yield _cell(each, guess.position, f"guess {kind}", html(shown_token(guess.token, spelling)), "")
    under = {guess.position: guess for guess in each.guesses}
    if each.own not in under or not under[each.own].kept:
        yield _cell(each, each.own, "own", *_over_guess(text[each.own], under.get(each.own), spelling))
    for position in each.forced:
        yield _cell(each, position, "forced", *_over_guess(text[position], under.get(position), spelling))


def _over_guess(token: int, guess: Guess | None, spelling: Mapping[int, str]) -> tuple[str, str]:
    """A token that no guess gave, and the wrong guess that it takes the place of."""
    is_wrong = guess is not None and guess.token != token
    wrong = f'<s class="guess">{html(shown_token(guess.token, spelling))}</s>' if guess and is_wrong else ""
    return f"<b>{html(shown_token(token, spelling))}</b>", wrong


def _cell(each: Pass, position: int, kind: str, content: str, above: str) -> str:
    place = f"grid-row:{2 * each.number};grid-column:{position + 2}"
    return (
        f'<span class="{kind}" data-round="{each.number}" data-at="{position}" style="{place}">{above}{content}</span>'
    )


def _bracket(each: Pass, columns: int, explained: bool) -> str:
    """A line above the guesses of one pass, as far as there are columns for them."""
    others = f", {each.others:,} of them in other branches" if each.others else ""
    told = f"{counted(len(each.guesses) + each.others, 'token')} guessed together, checked in one pass{others}"
    span = min(len(each.guesses), columns - each.start)
    place = f"grid-row:{2 * each.number - 1};grid-column:{each.start + 2} / span {span}"
    words = f"<small>{told}</small>" if explained else ""
    return (
        f'<i class="bracket" data-round="{each.number}" data-at="{each.start}" data-span="{span}" style="{place}" '
        f'title="{told}">{words}</i>'
    )


MOST_ROUNDS = 200
_PLAIN_PASS_MS, _REPLAY_MS = 300.0, 12_000.0  # that a replay shows a pass of plain decoding, and all of them at most
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
        '<p class="hint">This is the text as the model wrote it, before it was checked and repaired.</p>'
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
    """Two counters with a track each, ours and plain decoding's; the replay moves them. They are as long as times where both
    were measured, otherwise as the passes."""
    plain_ms = _measured_plain_ms(step)
    timed = plain_ms is not None
    lengths = (metrics.wall_ms, plain_ms or 0.0) if timed else (metrics.target_forwards, metrics.plain_forwards)
    shares = [100 * length / (max(lengths) or 1) for length in lengths]
    ours = _counter("ours", "guessing ahead", metrics.target_forwards, metrics.wall_ms if timed else None, shares[0])
    plain = _counter("plain", "token by token", metrics.plain_forwards, plain_ms if timed else None, shares[1])
    return (
        f'<div class="tracks" data-plain="{metrics.plain_forwards}" data-plain-ms="{_shown_ms(metrics):.1f}">{ours}{plain}'
        "</div>"
    )


def _measured_plain_ms(step: StepView) -> float | None:
    """The time of plain decoding, where it was measured side by side."""
    record = step.record or {}
    return record.get("plain_ms") if record.get("plain_ms_source") == "measured" else None


def _shown_ms(metrics: Metrics) -> float:
    """How long a replay shows a pass of plain decoding."""
    return min(_PLAIN_PASS_MS, _REPLAY_MS / max(metrics.plain_forwards, 1))


def _slower(step: StepView, metrics: Metrics) -> float:
    """How many times as long as it took a replay shows what happened. Where plain decoding was not measured, a pass of it is
    taken for as long as one of ours is on average, for both are one look of the model; an estimate would be of an idle machine.
    """
    plain_ms = _measured_plain_ms(step)
    each = plain_ms / max(metrics.plain_forwards, 1) if plain_ms else metrics.wall_ms / max(metrics.target_forwards, 1)
    return _shown_ms(metrics) / (each or 1.0)


def _counter(kind: str, name: str, forwards: int, ms: float | None, share: float) -> str:
    """`ms`: None where the times of both were not measured."""
    noun = "pass" if forwards == 1 else "passes"
    took = "" if ms is None else f"<span data-time>, {milliseconds(ms)}</span>"
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
    slower = _slower(step, measure(step.rounds))
    ends = (slower * end for end in accumulate(map(_took_ms, shown)))
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
        f'<li data-round="{number}" data-end-ms="{end_ms:.0f}" data-guessing="{guessing}" '
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
