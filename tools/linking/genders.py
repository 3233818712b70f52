"""Maps words for a gender to the codes by which columns write it: female students have sex 'F'."""

_WORDS = {
    "female": ("female", "females", "woman", "women", "girl", "girls"),
    "male": ("male", "males", "man", "men", "boy", "boys"),
}
_CODES = {"female": ("f", "female", "w", "woman", "women"), "male": ("m", "male", "man", "men")}


def gender_codes(word: str) -> tuple[str, ...]:
    """Folded codes that a folded word may stand for; none if it names no gender. They are guesses that the data must confirm.

    >>> gender_codes("women")
    ('f', 'female', 'w', 'woman', 'women')
    """
    return next((_CODES[gender] for gender, words in _WORDS.items() if word in words), ())


def other_codes(word: str) -> tuple[str, ...]:
    """The codes of the other gender: a column that has one of these, too, is about genders.

    >>> other_codes("women")
    ('m', 'male', 'man', 'men')
    """
    return next((_CODES[gender] for gender, words in _WORDS.items() if gender_codes(word) and word not in words), ())
