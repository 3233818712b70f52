"""Makes words of questions, names and cell values comparable: folded case and accents, stems, synonyms, places, genders.

French is France and US the United States; female students have sex 'F'. Each line of `thesaurus.txt` is a group of phrases;
each of them may mean any other phrase of its line, and nothing else.
"""

import re
import unicodedata
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

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


_UNSPACED = ("CJK", "HIRAGANA", "KATAKANA", "HANGUL", "THAI", "LAO", "KHMER", "MYANMAR")


def stands_in(name: str, text: str) -> bool:
    """Whether a text has a name as it is written but for case and accents: as a word, or anywhere where the name begins or ends
    in a script that puts no spaces between words, or joins endings to them.

    >>> stands_in("销售额", "哪个店铺的销售额最高"), stands_in("Größe", "the grösse of each"), stands_in("été", "étés")
    (True, True, False)
    """
    folded = fold(name.strip())
    if not folded:
        return False
    before, after = (
        "" if unicodedata.name(end, "").startswith(_UNSPACED) else r"\b" for end in (folded[0], folded[-1])
    )
    return re.search(before + re.escape(folded) + after, fold(text)) is not None


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


@lru_cache(maxsize=65_536)
def name_stems(name: str) -> frozenset[str]:
    """The stems of the words of a table's or column's name."""
    return frozenset(map(stem, name_words(name)))


_IRREGULAR = {"people": "person", "children": "child", "men": "man", "women": "woman", "feet": "foot", "mice": "mouse"}


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


Phrase = tuple[str, ...]
LONGEST = 3  # words of a phrase


def other_words(said: Sequence[str], known: Collection[str]) -> list[Phrase]:
    """Synonyms of the phrases in `said`; a phrase whose words are all `known` means only itself.

    said: a question's stems, in order. known: the stems of the names that could be meant.
    """
    phrases = (phrase for phrase in _phrases_of(said) if not all(word in known for word in phrase))
    return list(dict.fromkeys(other for phrase in phrases for other in _groups()[phrase]))


def _phrases_of(said: Sequence[str]) -> Iterator[Phrase]:
    """The known phrases of a text, from left to right; where several begin, the longest is taken."""
    at = 0
    while at < len(said):
        ends = range(min(len(said), at + LONGEST), at, -1)
        length = next((end - at for end in ends if tuple(said[at:end]) in _groups()), 0)
        if length:
            yield tuple(said[at : at + length])
        at += length or 1


@lru_cache(maxsize=1)
def _groups() -> Mapping[Phrase, Sequence[Phrase]]:
    """The other phrases of its lines, by phrase."""
    others: dict[Phrase, dict[Phrase, None]] = defaultdict(dict)
    for line in Path(__file__).with_name("thesaurus.txt").read_text(encoding="utf-8").splitlines():
        group = [] if line.startswith("#") else [tuple(map(stem, keys(phrase))) for phrase in line.split(",")]
        for phrase in group:
            others[phrase] |= dict.fromkeys(other for other in group if other != phrase)
    return {phrase: tuple(own) for phrase, own in others.items()}


# What a superlative or a comparative ranks by: words of columns, for schema linking. Not synonyms: "the latest" names no date.
_RANKED_BY = {
    "oldest youngest older younger": "age birth birthday birthdate dob",
    "tallest taller": "height",
    "shortest shorter": "height length duration",
    "longest longer": "length duration",
    "heaviest lightest heavier lighter": "weight",
    "largest biggest smallest larger bigger smaller": "size area population capacity",
    "fastest slowest faster slower": "speed",
    "cheapest cheaper expensive costly": "price cost",
    "latest newest recent recently earliest": "date year time",
    "best worst": "rank rating score",
}
JUDGING_WORDS = frozenset(" ".join(_RANKED_BY).split()) | word_set(
    "top good better great bad new popular common main major important favourite favorite famous rare active big little"
)
"""Adjectives that say what people want to see, and are no part of a name unless it is written as one."""
_MEASURES = {word: measures.split() for words, measures in _RANKED_BY.items() for word in words.split()}
_YEAR = re.compile(r"1[89]\d\d|20\d\d")


def implied_words(said: Sequence[str]) -> list[str]:
    """Words of columns by which a question ranks or selects: `age` for the oldest, `year` for 1999.

    said: the question's words in lower case.

    >>> implied_words(["the", "heaviest", "dog", "of", "1999"])
    ['weight', 'year']
    """
    return [each for word in said for each in (["year"] if _YEAR.fullmatch(word) else _MEASURES.get(word, []))]
