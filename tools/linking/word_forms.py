"""Makes words of questions, names and cell values comparable: folds case and accents, and removes plural endings."""

import re
import unicodedata
from dataclasses import dataclass
from functools import lru_cache

_WORD = re.compile(r"\w+(?:['’]\w+)*")
_APOSTROPHE = re.compile(r"(?<=\w)['’]s?(?!\w|['’]\w)|(?<=\w)['’](?=\w)")
_LETTERS = re.compile(r"[^\W_]+")
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|(?<=[A-Za-z])(?=[0-9])")
_NOT_DECOMPOSED = str.maketrans(
    {"ø": "o", "Ø": "O", "ł": "l", "Ł": "L", "đ": "d", "Đ": "D", "ı": "i", "æ": "ae", "œ": "oe"}
)


def word_set(text: str) -> frozenset[str]:
    """The words of a text, for lists that read better as one.

    >>> sorted(word_set("how what which"))
    ['how', 'what', 'which']
    """
    return frozenset(text.split())


STOP_WORDS = word_set("""
    a about above after against all also although am an and another any are as ask at available average back be
    because been before being below besides between biggest both but by can corresponding could did different
    distinct do does doing done down during each either ever every except excluding fewer fewest find first followed
    for from further get give given greater greatest had has have having he her here hers high higher highest him
    his how i if in include including into is it its itself just know large larger largest last latest least less
    list listed live lives living located long longer longest low lower lowest made make many maximum may me mean
    minimum more most much must my name named names need neither no nor not now number numbers of off old older
    oldest on once one only or order ordered other our out over own people per person please result results return
    same share she short shorter shortest should show shown small smaller smallest so some sort such sum tell than
    that the their them then there these they this those through to together too total two under until up us used
    using value values very want was we were what when where whether which while who whom whose why will with
    without would yet you young younger youngest your
""")


NUMBER_WORDS = (
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
)
"""The word at each index is that number."""


@dataclass(frozen=True, slots=True)
class Word:
    """A word of a text: as written, its comparable key, and its characters from `start` to `end`."""

    text: str
    key: str
    start: int
    end: int


def fold(text: str) -> str:
    """Lower case without accents: `São` is `sao`.

    >>> fold("São Paulo"), fold("Łódź")
    ('sao paulo', 'lodz')
    """
    if text.isascii():
        return text.casefold()
    decomposed = unicodedata.normalize("NFKD", text.translate(_NOT_DECOMPOSED))
    return "".join(letter for letter in decomposed if not unicodedata.combining(letter)).casefold()


def split(text: str) -> list[Word]:
    """The words of a text; their keys lack possessive endings and apostrophes.

    >>> [(word.text, word.key, word.start) for word in split("The singer's AGE")]
    [('The', 'the', 0), ("singer's", 'singer', 4), ('AGE', 'age', 13)]
    """
    words = []
    for match in _WORD.finditer(text):
        for start, end in _parts(match):
            raw = text[start:end]
            key = fold(re.sub(r"['’]s?$|['’]", "", raw) if "'" in raw or "’" in raw else raw)
            if key:
                words.append(Word(raw, key, start, end))
    return words


def _parts(match: re.Match[str]) -> list[tuple[int, int]]:
    """The parts of a match between underscores, which join words in names."""
    if "_" not in match.group():
        return [match.span()]
    return [(match.start() + part.start(), match.start() + part.end()) for part in re.finditer(r"[^_]+", match.group())]


def keys(text: str) -> tuple[str, ...]:
    """The keys of `split(text)` alone, several times as fast: an index needs a hundred thousand of them.

    >>> keys("The singer's first_name")
    ('the', 'singer', 'first', 'name')
    """
    folded = fold(text)
    if "'" in folded or "’" in folded:
        folded = _APOSTROPHE.sub("", folded)
    return tuple(_LETTERS.findall(folded))


@lru_cache(maxsize=65_536)
def name_words(name: str) -> tuple[str, ...]:
    """The words of a table's or column's name, `StuID` and `stu_id` alike: ("stu", "id").

    >>> name_words("StuID"), name_words("stu_id")
    (('stu', 'id'), ('stu', 'id'))
    """
    return keys(" ".join(_CAMEL.split(name)))


@lru_cache(maxsize=65_536)
def stem(word: str) -> str:
    """The word without its plural ending: cities and city become equal, matches and match, songs and song.

    >>> [stem(word) for word in ("cities", "matches", "songs", "people", "status")]
    ['city', 'match', 'song', 'person', 'status']
    """
    if len(word) > 4 and word.endswith(("ies", "ie")):  # movies and movie, like cities and city
        return word.removesuffix("s").removesuffix("ie") + "y"
    if len(word) > 4 and word.endswith(("ches", "shes", "sses", "xes", "zes")):
        return word[:-2]
    if len(word) > 3 and word.endswith("s") and not word.endswith(("ss", "us", "is")):
        word = word[:-1]
    return _IRREGULAR.get(word, word)


def name_stems(name: str) -> frozenset[str]:
    """The stems of the words of a table's or column's name."""
    return frozenset(map(stem, name_words(name)))


_IRREGULAR = {"people": "person", "children": "child", "men": "man", "women": "woman", "feet": "foot", "mice": "mouse"}
