"""One round's draft as a drawing: the root at the left, guesses to the right of what they follow."""

from collections.abc import Mapping

from decoding.engine.draft import ROOT, Draft
from decoding.engine.records.rounds import Round
from ui.views.words import html

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
