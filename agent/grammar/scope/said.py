"""What the asker said: the question, the values found in it, and what stands around it."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tools.linking.match_values import ValueMatch
from tools.linking.word_forms import NUMBER_WORDS, STOP_WORDS, Word, split
from tools.schema import ColumnRef

LONGEST_PHRASE = 6  # words; runs of capitalised words and texts in quotes may be longer
SURE = 0.97
NUMBER = re.compile(r"\d+(?:,\d{3})+|\d+(?:\.\d+)?")
_QUOTED = re.compile(r"\"([^\"]+)\"|'((?:[^']|'')+)'|“([^”]+)”|‘([^’]+)’")
_VALUE_OF = {word: str(number) for number, word in enumerate(NUMBER_WORDS)} | {
    "once": "1", "twice": "2", "both": "2", "pair": "2", "second": "2", "third": "3", "fourth": "4", "fifth": "5"
}  # fmt: skip
# Questions that ask for a part of a value. There, a phrase that matches a whole value may be meant for another column.
_ABOUT_PARTS = re.compile(r"\b(?:contain|substring|start|begin|letter|ends? with|includ|prefix|like)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Said:
    """What the asker said, and the values found in it. `around`: evidence, knowledge, earlier questions and their SQL.

    `like_columns`: IN takes sub-queries over columns that hold the same values only, if there is one.
    `no_amounts`: identifiers are not added up, nor, unless the question names them, measured by `<` or tested at all where
    the `plan` has no sub-query.
    `dated`: a date column takes texts only if the question has digits.
    `named`: the plan names the columns whose names the question says in full, and none that they shadow.
    `phrased`: it names the columns of one word in phrases about columns. `counted`: it has the tables of the columns of which
    "how many" asks the sum.
    `roles`: joins follow the keys whose roles are said, and the plan has their tables. `ordered`: columns of words are not
    measured by `<`. `implied`: the plan has the columns by which the question compares. `absent`: it has those that are said to
    be empty. `tables`: it has the tables that are counted for each of something. `worded`: it has a column for each value of
    several words. `gaps`: of the tables on the way from one to another it leaves out none. `negated`: it negates only where the
    question may. `having`: it counts the rows of groups where the question does.
    `typed`: dates and times are compared with numbers only if they were said, flags with 0 and 1 only.
    """

    question: str
    values: tuple[ValueMatch, ...] = ()
    around: tuple[str, ...] = ()
    like_columns: bool = False
    no_amounts: bool = False
    dated: bool = False
    named: bool = False
    phrased: bool = False
    counted: bool = False
    roles: bool = False
    ordered: bool = False
    implied: bool = False
    absent: bool = False
    tables: bool = False
    worded: bool = False
    gaps: bool = False
    negated: bool = False
    having: bool = False
    typed: bool = False
    plan: str = ""

    def of_plans(self) -> "Said":
        """What the grammar of plans reads beside the demands that follow from all of it."""
        return Said("", gaps=self.gaps)

    def of_sql(self) -> "Said":
        """What the grammar of SQL reads beside those demands."""
        return Said(
            self.question,
            self.values,
            self.around,
            like_columns=self.like_columns,
            no_amounts=self.no_amounts,
            dated=self.dated,
            ordered=self.ordered,
            typed=self.typed,
            plan=self.plan,
        )

    def numbers(self) -> frozenset[str]:
        """The numbers that were said, as SQL writes them: 1,000 is 1000, two is 2."""
        whole = " ".join((self.question, *self.around))
        written = {number.replace(",", "") for number in NUMBER.findall(whole)} | set(re.findall(r"\d+", whole))
        words = {_VALUE_OF[word.key] for word in split(self.question) if word.key in _VALUE_OF}
        return frozenset(written | words)

    def phrases(self) -> frozenset[str]:
        """Runs of words, texts in quotes, and literals of earlier SQL, as written."""
        texts = (self.question, *self.around)
        quoted = (next(filter(None, found)) for text in texts for found in _QUOTED.findall(text))
        return frozenset(run for text in texts for run in _runs(text)).union(quoted)

    def marked(self, phrase: str) -> bool:
        """Whether the question writes the phrase as a name: in quotes, or with a capital inside a sentence."""
        text, start = self.question, self.question.find(phrase)
        quotes = text[start - 1 : start] + text[start + len(phrase) : start + len(phrase) + 1]
        capital = any(word.text[:1].isupper() for word in split(phrase) if word.key not in STOP_WORDS)
        return start > 0 and (quotes in ("''", '""', "‘’", "“”") or (capital and not text.isupper()))

    def sure(self) -> tuple[frozenset[ColumnRef], ...]:
        """For each phrase that is surely a value: the columns that hold it, in lower case. The plan must name one of them."""
        if _ABOUT_PARTS.search(self.question):
            return ()
        places: dict[str, set[ColumnRef]] = {}
        for match in self.values:
            if (
                match.score >= SURE
                and len(match.phrase) > 1
                and (self.marked(match.phrase) or self._worded(match.phrase))
            ):
                places.setdefault(match.phrase, set()).add(place_of(match))
        return tuple(dict.fromkeys(map(frozenset, places.values())))

    def _worded(self, phrase: str) -> bool:
        """Whether the phrase has several words that are said together by no accident: "the mountains" may be anything."""
        words = split(phrase)
        return self.worded and len(words) > 1 and words[0].key not in STOP_WORDS


def _runs(text: str) -> Iterator[str]:
    words = split(text)
    for first, word in enumerate(words):
        for last in range(first, _furthest(words, first)):
            yield text[word.start : words[last].end]


def _furthest(words: Sequence[Word], first: int) -> int:
    last = first
    while last < len(words) and words[last].text[:1].isupper():
        last += 1
    return max(last, min(first + LONGEST_PHRASE, len(words)))


def place_of(match: ValueMatch) -> ColumnRef:
    """The column, in lower case, in which a value was found."""
    return match.table.lower(), match.column.lower()
