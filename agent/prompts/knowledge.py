"""Knowledge about a database beyond its schema: a folder of Markdown that people write, review and keep under version
control.

`terms.md` and `metrics.md` hold one `- name: what it means` per line; `examples.md` holds `## question` and below it the
SQL in a ```sql block; `labels.md` says which columns name the rows of a table, `- people: first_name, last_name`;
`relations.md` which columns refer to others, `- orders.customer -> customers.id`; `columns.md` what columns mean,
`- orders.amt: amount in cents, without tax`.
Other lines are ignored. The items that a question is about go into its prompt. Only people add
examples: they write them by hand, or give an answer a thumbs-up.
"""

import math
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from agent.prompts.slots import example_text
from tools.databases.annotations import Annotations, Relation
from tools.linking.taught import is_said
from tools.linking.word_forms import STOP_WORDS, split, stem, word_set
from tools.schema import ColumnRef

FILES = ("terms.md", "metrics.md")
EXAMPLES, LABELS, RELATIONS, COLUMNS = "examples.md", "labels.md", "relations.md", "columns.md"
MOST_ITEMS = 4
MOST_EXAMPLES = 3  # in prompts that show examples by themselves
LONGEST_NAME = 4  # words of a description that are a name
SAID = 0.5  # least share of an item's words, weighted by rarity, that a question must contain
_ITEM = re.compile(r"[-*] (?P<name>[^:]+): *(?P<meaning>\S.*)")
_EXAMPLE = re.compile(r"^## +(?P<question>\S[^\n]*)\n+```sql\n(?P<sql>.*?)\n```", re.MULTILINE | re.DOTALL)


class KnowledgeError(ValueError):
    """A folder or file of knowledge that cannot be read; the message names the line and says what to do."""


@dataclass(frozen=True, slots=True)
class Item:
    """`name`: the words that a question must contain for the item to be relevant; `text`: what the prompt then says."""

    name: str
    text: str


@dataclass(frozen=True, slots=True)
class Knowledge:
    """The items for one database; there may be none. examples: questions and their SQL. names: what people say, and
    what they mean by it. labels: by table, in lower case, the
    columns that name its rows. annotations: of the database's columns."""

    items: tuple[Item, ...] = ()
    examples: tuple[tuple[str, str], ...] = ()
    names: tuple[tuple[str, str], ...] = ()
    labels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    annotations: Annotations = field(default_factory=Annotations)

    def example(self, question: str) -> tuple[str, str] | None:
        """The stored question and SQL of an example that asks the same: in the same words, but for case, punctuation, plurals
        and words of courtesy.
        """
        wanted = _asked(question)
        return next((pair for pair in self.examples if _asked(pair[0]) == wanted), None) if wanted else None

    def about(self, question: str) -> tuple[str, ...]:
        """The texts of at most `MOST_ITEMS` items whose names the question contains, best first."""
        scores = _said([item.name for item in self.items], question)
        return tuple(self.items[place].text for place in _best(scores, MOST_ITEMS) if scores[place] >= SAID)

    def meant(self, question: str) -> tuple[tuple[str, str], ...]:
        """The names that the question says, and what they mean in the words of who taught them."""
        return tuple((name, meaning) for name, meaning in self.names if is_said(name, question))

    def similar(self, question: str) -> tuple[tuple[str, str], ...]:
        """At most `MOST_EXAMPLES` examples whose questions share words with this one, the most similar first."""
        scores = _said([asked for asked, _ in self.examples], question)
        return tuple(self.examples[place] for place in _best(scores, MOST_EXAMPLES) if scores[place] > 0)


_SAID_SO = re.compile(r"\s*(?P<name>[^=:;]+?)\s*(?:=|:|\bmeans\b)\s*(?P<meaning>[^=].*)", re.DOTALL)


def names_in(evidence: str) -> Iterator[tuple[str, str]]:
    """What the asker says that words mean: "revenue = price * amount; lost means state is gone".

    >>> list(names_in("revenue = price * amount; lost means state is 'gone'; be careful"))
    [('revenue', 'price * amount'), ('lost', "state is 'gone'")]
    """
    for part in evidence.split(";"):
        if found := _SAID_SO.fullmatch(part):
            yield found["name"].strip(" `\"'"), found["meaning"].strip()


def without_names(evidence: str, names: Collection[str]) -> str:
    """The evidence without what it says of these names."""
    parts = evidence.split(";")
    kept = [part for part in parts if not any(name in names for name, _ in names_in(part))]
    return evidence if len(kept) == len(parts) else ";".join(kept).strip()


def _said(names: Sequence[str], question: str) -> list[float]:
    """For each name the share of its words, weighted by rarity among the names, that the question contains."""
    said, known = _words(question), [_words(name) for name in names]
    holders = Counter(word for words in known for word in words)
    weight = {word: math.log(1 + len(known) / count) for word, count in holders.items()}
    return [sum(weight[word] for word in words & said) / sum(weight[word] for word in words) for words in known]


def _best(scores: Sequence[float], most: int) -> list[int]:
    return sorted(range(len(scores)), key=lambda place: -scores[place])[:most]


def _words(text: str) -> frozenset[str]:
    stems = [stem(word.key) for word in split(text)]
    return frozenset(word for word in stems if word not in STOP_WORDS) or frozenset(stems) or frozenset({text})


_COURTESY = word_set("a an the please can could you tell show give me us list find")


def _asked(question: str) -> list[str]:
    return [stem(word.key) for word in split(question) if word.key not in _COURTESY]


def read_knowledge(folder: Path) -> Knowledge:
    """Read a knowledge folder. Raises KnowledgeError."""
    if not folder.is_dir():
        raise KnowledgeError(f"{folder} is no folder; make it, with {', '.join(FILES)} or {EXAMPLES} in it")
    names = [pair for name in FILES for pair in _named(folder / name)]
    items = [Item(name, f"{name}: {meaning}") for name, meaning in names]
    pairs = examples(folder)
    items += [Item(question, example_text(question, sql)) for question, sql in pairs]
    annotations = Annotations(tuple(_relations(folder / RELATIONS)), dict(_descriptions(folder / COLUMNS)))
    names += [
        (name, f"{table}.{column}")
        for (table, column), text in annotations.descriptions.items()
        for name in _short(text)
    ]
    return Knowledge(tuple(items), tuple(pairs), tuple(names), _labels(folder / LABELS), annotations)


def _relations(path: Path) -> Iterator[Relation]:
    """The relations of lines such as `- orders.customer -> customers.id`."""
    for number, line in enumerate(_text(path).splitlines(), 1):
        ends = [end.strip(" `").rpartition(".") for end in line.strip().lstrip("-* ").split("->")]
        if len(ends) == 2 and all(table and column for table, _, column in ends):
            yield Relation((ends[0][0], ends[0][2]), (ends[1][0], ends[1][2]))
        elif line.startswith(("- ", "* ")):
            raise KnowledgeError(f"{path}, line {number}: write `- table.column -> table.column`")


def _descriptions(path: Path) -> Iterator[tuple[ColumnRef, str]]:
    """What columns mean, from lines such as `- orders.amt: amount in cents`."""
    for number, line in enumerate(_text(path).splitlines(), 1):
        item = _ITEM.fullmatch(line.strip())
        table, _, column = item["name"].strip("*_` ").rpartition(".") if item else ("", "", "")
        if item and table and column:
            yield (table, column), item["meaning"]
        elif line.startswith(("- ", "* ")):
            raise KnowledgeError(f"{path}, line {number}: write `- table.column: what it means`")


def _short(description: str) -> Iterator[str]:
    """What people may call the column by its description: "distance in kilometres" and "distance"."""
    first = re.split(r"[,.;:(]", description)[0].strip()
    for name in dict.fromkeys((first, re.split(r" (?:in|with|without|per|as|at) ", first)[0])):
        if 0 < len(split(name)) <= LONGEST_NAME and not STOP_WORDS.issuperset(word.key for word in split(name)):
            yield name


def _labels(path: Path) -> dict[str, tuple[str, ...]]:
    """The columns that name the rows of tables, from lines such as `- people: first_name, last_name`."""
    lines = [(number, line.strip()) for number, line in enumerate(_text(path).splitlines(), 1)]
    found: dict[str, tuple[str, ...]] = {}
    for number, line in lines:
        item = _ITEM.fullmatch(line)
        if item:
            found[item["name"].strip("*_` ").casefold()] = tuple(
                part.strip(" `") for part in item["meaning"].split(",")
            )
        elif line.startswith(("- ", "* ")):
            raise KnowledgeError(f"{path}, line {number}: write `- table: column`, or several columns with commas")
    return found


def _named(path: Path) -> Iterator[tuple[str, str]]:
    for number, line in enumerate(_text(path).splitlines(), 1):
        found = _ITEM.fullmatch(line.strip())
        if found:
            yield found["name"].strip("*_` "), found["meaning"]
        elif line.startswith(("- ", "* ")):
            raise KnowledgeError(f"{path}, line {number}: write `- name: what it means`")


def examples(folder: Path) -> list[tuple[str, str]]:
    """The question-SQL pairs, in the file's order. Raises KnowledgeError."""
    text = _text(folder / EXAMPLES)
    found = [(match["question"].strip(), " ".join(match["sql"].split())) for match in _EXAMPLE.finditer(text)]
    headings = len(re.findall(r"^## ", text, re.MULTILINE))
    if headings != len(found):
        raise KnowledgeError(f"{folder / EXAMPLES}: {headings - len(found)} question(s) without a ```sql block below")
    return found


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        raise KnowledgeError(f"cannot read {path}: {error}") from error
