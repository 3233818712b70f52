"""Maps demonyms and short names to places: French is France, Brazilian is Brazil, US is United States."""

_ENDINGS = (
    ("n", ""),
    ("an", ""),
    ("ian", ""),
    ("ian", "y"),
    ("ian", "a"),
    ("ean", "a"),
    ("ese", "a"),
    ("ese", ""),
    ("ish", "and"),
)
SHORTEST_PLACE = 4

_PLACES = {
    "american": ("united states", "usa", "us", "united states of america", "america"),
    "belgian": ("belgium",),
    "british": ("united kingdom", "uk", "great britain", "england"),
    "danish": ("denmark",),
    "dutch": ("netherlands", "the netherlands", "holland"),
    "english": ("england", "united kingdom", "uk"),
    "finnish": ("finland",),
    "french": ("france",),
    "german": ("germany",),
    "greek": ("greece",),
    "irish": ("ireland",),
    "norwegian": ("norway",),
    "polish": ("poland",),
    "portuguese": ("portugal",),
    "scottish": ("scotland",),
    "spanish": ("spain",),
    "swedish": ("sweden",),
    "swiss": ("switzerland",),
    "turkish": ("turkey",),
    "welsh": ("wales",),
}
_SAME_PLACE = (
    ("united states", "usa", "us", "united states of america"),
    ("united kingdom", "uk", "great britain"),
    ("netherlands", "holland"),
    ("united arab emirates", "uae"),
)


def places(phrase: str) -> list[str]:
    """Folded names of places that a folded phrase may mean, likeliest first; they are guesses that the data must confirm."""
    found = list(_PLACES.get(phrase.removesuffix("s"), ())) + list(_PLACES.get(phrase, ()))
    for group in _SAME_PLACE:
        if phrase in group:
            found += [name for name in group if name != phrase]
    for ending, instead in _ENDINGS:
        place = phrase.removesuffix(ending) + instead
        if phrase.endswith(ending) and len(place) >= SHORTEST_PLACE:
            found.append(place)
    return list(dict.fromkeys(found))
