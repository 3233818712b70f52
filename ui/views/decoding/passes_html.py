"""The passes of a step as a grid: columns are positions of the text, rows are passes of the model."""

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
        f'<div class="passes-box" tabindex="0" role="region" aria-label="passes by position"><div class="passes">{cells}</div>'
        "</div>"
    )


def _row(each: Pass, text: Sequence[int], spelling: Mapping[int, str], explained: bool) -> Iterator[str]:
    """The cells of one pass; the grid's first column holds its number. `explained`: the bracket's words are always shown."""
    yield _cell(each, -1, "number", str(each.number), "")
    own_stands = {guess.position: guess for guess in each.guesses}
    if len(each.guesses) > 1:
        yield _bracket(each, "bracket explained" if explained else "bracket")
    for guess in each.guesses:
        if guess.position != each.own and guess.position < len(text) + _BEYOND:
            kind = "kept" if guess.kept else "wrong"
            yield _cell(each, guess.position, f"guess {kind}", html(shown_token(guess.token, spelling)), "")
    struck = own_stands.get(each.own)
    wrong = f'<s class="guess">{html(shown_token(struck.token, spelling))}</s>' if struck else ""
    yield _cell(each, each.own, "own", f"<b>{html(shown_token(text[each.own], spelling))}</b>", wrong)
    for position in each.forced:
        yield _cell(each, position, "forced", html(shown_token(text[position], spelling)), "")


def _cell(each: Pass, position: int, kind: str, content: str, above: str) -> str:
    place = f"grid-row:{2 * each.number};grid-column:{position + 2}"
    return f'<span class="{kind}" data-round="{each.number}" style="{place}">{above}{content}</span>'


def _bracket(each: Pass, kind: str) -> str:
    """A line above the guesses of one pass."""
    others = f", and {counted(each.others, 'guess', 'guesses')} in other branches" if each.others else ""
    told = f"{counted(len(each.guesses), 'token')} guessed together, checked in one pass{others}"
    place = f"grid-row:{2 * each.number - 1};grid-column:{each.start + 2} / span {len(each.guesses)}"
    return f'<i class="{kind}" data-round="{each.number}" style="{place}" title="{told}"><small>{told}</small></i>'
