"""The passes of a step as a grid: columns are positions of the text, rows are passes of the model.

As it is written here, the grid is as wide as the text is long; `ui/page/passes.js` breaks it into lines that fit.
"""

from collections.abc import Iterator, Mapping, Sequence

from decoding.engine.records.rounds import Round
from ui.views.decoding.passes import Pass, passes
from ui.views.words import counted, html, shown_token

_BEYOND = 4  # columns after the text, for guesses that went on


def passes_html(rounds: Sequence[Round], spelling: Mapping[int, str]) -> str:
    """A row per pass: its guesses beside each other, those that stand and those struck out, and the model's own token."""
    text = [token for r in rounds for token in r.text_tokens]
    made = passes(rounds)
    longest = max(made, key=lambda each: len(each.guesses))
    cells = "".join(cell for each in made for cell in _row(each, text, spelling, explained=each is longest))
    return (
        '<div class="passes-box" tabindex="0" role="region" aria-label="passes by position"><div class="passes" '
        f'data-text="{len(text)}">{cells}</div></div>'
    )


def _row(each: Pass, text: Sequence[int], spelling: Mapping[int, str], explained: bool) -> Iterator[str]:
    """The cells of one pass; the grid's first column holds its number. `explained`: the bracket's words are always shown."""
    place = f"grid-row:{2 * each.number};grid-column:1"
    yield f'<span class="number" data-round="{each.number}" style="{place}">{each.number}</span>'
    if len(each.guesses) > 1:
        yield _bracket(each, len(text) + _BEYOND, explained)
    for guess in each.guesses:
        if guess.kept or (guess.position != each.own and guess.position < len(text) + _BEYOND):
            kind = "kept" if guess.kept else "wrong"
            yield _cell(each, guess.position, f"guess {kind}", html(shown_token(guess.token, spelling)), "")
    under_own = next((guess for guess in each.guesses if guess.position == each.own), None)
    if under_own is None or not under_own.kept:
        wrong = f'<s class="guess">{html(shown_token(under_own.token, spelling))}</s>' if under_own else ""
        yield _cell(each, each.own, "own", f"<b>{html(shown_token(text[each.own], spelling))}</b>", wrong)
    for position in each.forced:
        yield _cell(each, position, "forced", html(shown_token(text[position], spelling)), "")


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
