"""Decides whether a question depends on the conversation, and rewrites one that does where a rule is sure.

The rules use words and the schema; there is no model. A self-contained question gets the prompt of a first question: a history
that it does not need makes a small model write the former SQL again. The rules know the marks of context-dependent questions
that the literature lists (Bertomeu et al. 2006; Liu et al., "How Far are We from Effective Context Modeling?", 2020):
reference, ellipsis, and operations on a result.

A follow-up is rewritten as a self-contained question if a rule is sure of what its words refer to. Examples: "How many albums
does that artist have?" after an answer that names one artist, and "and stores?" after "How many artists are there?". The model
is trained on complete questions, and the values of a complete question can be looked up. The field calls this contextual query
rewriting (Elgohary et al., "Can You Unpack That?", 2019). What follows a question that was asked back is always written out,
for there is no SQL yet that could be changed.
"""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

from sqlglot import exp

from agent.state import OpenQuestion, Reading, Turn
from tools.linking.link_schema import Mentions
from tools.linking.word_forms import STOP_WORDS, name_stems, name_words, split, stem, word_set
from tools.sql.scope import parse_or_nothing


def _words(*alternatives: str) -> re.Pattern[str]:
    """A case-insensitive pattern of the alternatives."""
    return re.compile("|".join(alternatives), re.IGNORECASE)


_LED = r"(?:(?:ok(?:ay)?|so|please|now|let's|let us|can we|i want to|i'd like to)[,\s]+)*"
_ALL_OF_IT = r"(?:that|this|it|all(?: (?:of )?that)?|everything|(?:the|those|these) \w+)"
RESET = _words(
    rf"\s*(?:{_LED}"
    r"(?:start(?:ing)? (?:over|again|afresh|anew)|begin again|(?:new|another|different) (?:question|topic|subject)"
    rf"|(?:never ?mind|forget)(?: (?:about )?{_ALL_OF_IT})?"
    r"|change of (?:topic|subject)|clear the (?:chat|conversation|context)|reset)\b[\s.,:;!-]*)+"
)
POLITE = _words(
    r"\s*(?:(?:please|thanks|thank you|great|good|nice|hmm+|ok|okay|well|no|yes|can you|could you|would you|will you"
    r"|sorry|i meant?|i want to know|i'd like to know|tell me|do you know|let me know)\b[\s,.:!]*)+"
)
CONNECTIVE = _words(r"[\s.…]*(?:and|but|or|so|then|now|next|also|plus|what about|how about|what if|again)\b[\s,]*")
ABOUT = _words(r"[\s.…]*(?:(?:and|but|so|ok|now)[\s,]+)?(?:what|how) about\b")
GOING_BACK = _words(r"\b(?:go(?:ing)? |return(?:ing)? |coming )?back (?:to|at)\b", r"\breturn(?:ing)? to\b")
PREPOSITION = _words(
    r"(?:in|for|from|by|per|with|without|of|at|on|under|over|above|below|since|before|after|between)\b"
)

# Words with which a complete question begins, and which a fragment lacks.
QUESTION_WORDS = word_set("how what which who whose whom where when why")
ASKING_WORDS = QUESTION_WORDS | word_set(
    "is are was were do does did has have can list show find give return count tell display get compute calculate name report "
    "select retrieve state identify determine provide describe print fetch see"
)
# Verbs that arrange what is named after them, or else the former result; and verbs that change a result.
ARRANGING = _words(r"(?:re-?)?(?:sort|order|rank|arrange|group)(?:ed|ing)?\b")
CHANGING = _words(
    r"(?:split|break|limit|restrict|narrow|filter|exclude|include|add|remove|drop|keep|leave|skip|ignore|take|use|cut|reverse"
    r"|repeat|make)(?:ed|ing)?\b"
)
_COUNT = r"(?:\d+|one|two|three|four|five|six|seven|eight|nine|ten)"
OF_A_RESULT = _words(
    r"(?:just|only|merely)\b|(?:the )?same\b|(?:the )?(?:others?|rest)\b|(?:also|too)\b|instead\b",
    rf"(?:the )?(?:top|first|last|next) {_COUNT}\b[\s?.!]*$",
)
ENDING = _words(r"\b(?:instead|too|as well|again|also)[\s?.!]*$")
ORDER = _words(r"^(?:[\w-]+ ){1,3}first(?:,? please)?[\s?.!]*$")

# Pronouns and demonstratives. In "how many albums do they have", the noun before the pronoun is not its antecedent.
PRONOUNS = word_set("they them their theirs it its he she his her hers him these those themselves")
POSSESSIVE = word_set("their theirs its his her hers themselves")
POINTING_SUBJECT = _words(
    r"(?:how many|how much|which|what|where|when|why|who|whose|in which|on which|for which)\b(?:\s+[\w'-]+){0,5}?\s+"
    r"(?:do|does|did|is|are|was|were|has|have|had|can|could|will|would)\s+(?:they|it|he|she|these|those|that|this)\b"
)
ONES = _words(r"\b(?:which|the|that|this|another|other|last|first|these|those) ones?\b")
THAT = _words(
    r"\b(?:of|by|from|in|for|with|to|at|on|than|does|did|do|is|are|was|split|break|order|sort|group|show|about)\s+(?:that|this)"
    r"(?!\s+(?:of|year|month|week|quarter|moment|time)\b)(?:\s+(?P<noun>[\w'-]+)|[\s?.!]*$)",
    r"^[\s.…]*(?:that|this)\b",
)
THERE = _words(
    r"\b(?:(?:from|in|at|to|of) there|that (?:much|many))\b|(?<!is)(?<!are)(?<!was)(?<!were) there(?=[?.!]|\s*$)"
)
CLAUSE_VERBS = word_set("is are was were has have had do does did can will the a an there")
# "Those who have ...": the clause after the pronoun says what is meant, if it is long enough.
CATAPHORIC = _words(r"\s+(?:who|whose|which|that|with|without|having|in|of|from)\b(?=.{36})")

# In a question of one clause, the noun before the pronoun is what is asked for: "how many are in each of those?"
QUESTION = _words(
    r"(?:(?:show|list|tell|give)(?: me)? )?(?:how many|how much|which|what|who|where|when|on which|in which)\b"
)
CLAUSE_END = _words(r"[,;.:?]|\b(?:and|who|whose|which|that|with|where|when|while|if|but|than|as)\b")
SUPERLATIVE = _words(
    r"(?:the |is |has |have )*(?:\w+est|most|least|best|worst|more|fewer|less|\w+er)(?: ones?)?[\s?.!]*$"
)
OBJECT_END = _words(r"\b(?:by|in|to|on|from|according|with|where|without)\b")
LEADING = word_set("top bottom first last next")
GROUPS = _words(r"\b(?:by|per)\b")
DEFINITE = _words(r"\b(?:those|these|that|the)\b")


Leaning = Literal["stands", "leans", "unsure"]


@dataclass(frozen=True, slots=True)
class Relation:
    """How a question relates to the turns before it.

    `turn`: index of the turn that it would continue, by default the newest. `prefer`: the likelier reading if `leaning` is
    "unsure".
    """

    leaning: Leaning
    prefer: Reading
    turn: int

    @property
    def readings(self) -> tuple[Reading, ...]:
        """The readings to decode, the likelier first."""
        if self.leaning == "unsure":
            return ("standalone", "follow_up") if self.prefer == "standalone" else ("follow_up", "standalone")
        return ("standalone",) if self.leaning == "stands" else ("follow_up",)


def without_reset(question: str) -> str | None:
    """What is asked after "start over", perhaps nothing; None if the question does not begin with such words.

    A reset with a question, a reset without one, and no reset:

    >>> without_reset("Forget that. How many singers are there?")
    'How many singers are there?'
    >>> without_reset("Start over."), without_reset("How many singers are there?")
    ('', None)
    """
    found = RESET.match(question)
    return question[found.end() :].strip() if found else None


def relation_of(question: str, named: Mentions, turns: Sequence[Turn], dialect: str) -> Relation:
    """How the question relates to the conversation. `named`: what of the schema it names.

    A fragment, a whole question, and one that may be either:

    >>> from tools.linking.link_schema import mentions
    >>> from tools.schema import Column, Schema, Table
    >>> schema = Schema((Table("singer", (Column("name", "TEXT"), Column("age", "INTEGER"))),), "sqlite")
    >>> turns = [Turn(question="Which singers are there?", sql="SELECT name FROM singer")]
    >>> for question in ("And the oldest?", "How many singers are there?", "What is the highest age?"):
    ...     print(relation_of(question, mentions(schema, question), turns, "sqlite"))
    Relation(leaning='leans', prefer='follow_up', turn=0)
    Relation(leaning='stands', prefer='standalone', turn=0)
    Relation(leaning='unsure', prefer='standalone', turn=0)
    """
    if not turns:
        return Relation("stands", "standalone", 0)
    leaning, prefer = _leaning(question, named)
    return Relation(leaning, prefer, _continued(question, named, turns, dialect))


def new_words(question: str, former: str) -> frozenset[str]:
    """The question's content words that the former question lacks.

    >>> sorted(new_words("How many young singers are from France?", "How many singers are from Spain?"))
    ['france']
    """
    return content_words(question) - content_words(former)


def content_words(text: str) -> frozenset[str]:
    """The stems of the words that carry meaning, including numbers.

    >>> sorted(content_words("What are the names of the singers from France?"))
    ['france', 'singer']
    """
    return frozenset(stem(word.key) for word in split(text) if word.key not in STOP_WORDS | _EMPTY)


WHOLE = 3  # content words that make a question complete although it names no table
_EMPTY = word_set("instead too well also again please what how thanks same ones those sum count")


def _leaning(question: str, named: Mentions) -> tuple[Leaning, Reading]:
    bare = _without(POLITE, question)
    core = _without(POLITE, _without(CONNECTIVE, bare))
    connected = core != bare
    if _is_marked(bare, core, named):
        return "leans", "follow_up"
    if not _asks(core) and not ARRANGING.match(core):
        return _of_fragment(core, named, connected)
    if OF_A_RESULT.match(core):
        return "unsure", "follow_up"
    return _of_clause(core, named, connected)


def _is_marked(bare: str, core: str, named: Mentions) -> bool:
    """Whether the wording refers to something earlier in the conversation."""
    one_clause = not any(mark in core.rstrip(" .?!") for mark in ";,.")
    return bool(
        _refers(core, named)
        or GOING_BACK.match(core)
        or ABOUT.match(bare)
        or (ENDING.search(core) and one_clause)
        or CHANGING.match(core)
        or ORDER.match(core)
        or (ARRANGING.match(core) and not _names_its_object(core, named))
    )


def _of_fragment(core: str, named: Mentions, connected: bool) -> tuple[Leaning, Reading]:
    """For fragments such as "In France?", "by year", "the oldest": an earlier question says what is asked of them."""
    alone = not connected and not OF_A_RESULT.match(core) and not PREPOSITION.match(core)
    if alone and (named.tables or _measures_groups(core)):
        return "unsure", "standalone"  # "albums of 2020" may be a question in telegram style
    return "leans", "follow_up"


def _measures_groups(core: str) -> bool:
    """Whether a fragment says itself what is measured and of what: "revenue by month", but not "the cheapest by month"."""
    measure, *groups = GROUPS.split(core, maxsplit=1)
    said = {word for word in content_words(measure) - LEADING if not word.isdigit() and not SUPERLATIVE.match(word)}
    return bool(said) and any(map(content_words, groups))


def _of_clause(core: str, named: Mentions, connected: bool) -> tuple[Leaning, Reading]:
    words = content_words(core)
    if named.tables:
        return ("unsure" if connected else "stands"), "standalone"
    conditional = connected and core.lower().startswith(("where", "whose"))  # "and where the rating is 5?"
    if not words or conditional or _only_compares(core, words):
        return "leans", "follow_up"
    if len(words) >= WHOLE and not connected:
        return "stands", "standalone"
    likely = not connected and (named.columns or len(words) > 1)
    return "unsure", "standalone" if likely else "follow_up"


def _without(pattern: re.Pattern[str], text: str) -> str:
    found = pattern.match(text)
    return text[found.end() :] if found else text


def _asks(text: str) -> bool:
    """Whether the text begins like a question or a request, or has such a clause after a comma."""
    first, *others = [part.lower().split(maxsplit=5) for part in re.split(r"[,.;:?!]", text) if part.strip()] or [[]]
    asking = ASKING_WORDS.intersection(first[:2]) or QUESTION_WORDS.intersection(first[:5])
    return bool(asking) or any(ASKING_WORDS.intersection(part[:1]) - {"name"} for part in others)


def _refers(core: str, named: Mentions) -> bool:
    """Whether a pronoun or demonstrative refers to something that the question itself has not mentioned before it."""
    if POINTING_SUBJECT.match(core) or (OF_A_RESULT.match(core) and not _asks(core)):
        return True
    words = [word for word in split(core) if word.key in PRONOUNS and not CATAPHORIC.match(core, word.end)]
    pointing = [found.start() for pattern in (ONES, THERE) for found in pattern.finditer(core)]
    pointing += [found.start() for found in THAT.finditer(core) if not _is_clause(found)]
    pointing += [word.start for word in words if word.key not in POSSESSIVE]
    asked = QUESTION.match(core)
    if asked and not all(CLAUSE_END.search(core, asked.end(), place) for place in pointing):
        return True
    return any(not _has_antecedent(core[:place], named) for place in [*pointing, *(word.start for word in words)])


def _is_clause(found: re.Match[str]) -> bool:
    """Whether "that" begins a relative clause with a word left out ("with that have") and is no demonstrative."""
    return (found["noun"] or "").lower() in CLAUSE_VERBS


def _has_antecedent(before: str, named: Mentions) -> bool:
    """Whether a noun before the pronoun may be its antecedent: any content word that is not just a column's name."""
    every = {stem(word.key) for word in split(before)}
    return bool(every & named.table_words or content_words(before) - ASKING_WORDS - named.column_words)


def _names_its_object(core: str, named: Mentions) -> bool:
    """Whether the request names what is sorted: "sort employee names by age" does, "sort by age" does not."""
    words = content_words(OBJECT_END.split(_without(ARRANGING, core), maxsplit=1)[0])
    return bool(words - named.column_words or words & named.table_words)


def _only_compares(core: str, words: Collection[str]) -> bool:
    """Whether nothing that is compared is named: "who has more?", "which is the cheapest?"."""
    _, _, tail = core.partition(" ")
    return len(words) <= 1 and SUPERLATIVE.match(tail) is not None and len(core.split()) <= 6


def _continued(question: str, named: Mentions, turns: Sequence[Turn], dialect: str) -> int:
    """Index of the newest turn about a table that the question names; of the newest turn if there is none."""
    said = {stem(word.key) for word in split(question)}
    wanted = {name.casefold() for name in named.tables if said.issuperset(map(stem, name_words(name)))}
    newest = len(turns) - 1
    about = (place for place in range(newest, -1, -1) if wanted & tables_of(turns[place]["sql"], dialect))
    return next(about, newest) if wanted and DEFINITE.search(question) else newest


def tables_of(sql: str, dialect: str) -> frozenset[str]:
    """The tables that a statement reads, in lower case; none if it cannot be parsed.

    >>> sorted(tables_of("SELECT T1.name FROM singer AS T1 JOIN Song AS T2 ON T1.id = T2.singer_id", "sqlite"))
    ['singer', 'song']
    """
    trees = parse_or_nothing(sql, dialect)
    return frozenset(table.name.casefold() for tree in trees for table in tree.find_all(exp.Table))


_LABELS = word_set("name title label")
_PEOPLE = word_set("person one man woman guy place thing")
_LEAD = re.compile(r"[\s.…]*(?:(?:and|but|so|now|then|also|ok|okay|what about|how about)\b[\s,]*)+", re.IGNORECASE)
_POINTING = re.compile(
    r"\b(?:that|this) (?P<noun>\w+)(?P<of>['’]s)?|\b(?P<possessive>his|her|its|their)\b(?= \w)"
    r"|\b(?P<pronoun>it|he|she|him|they|them)\b"
    r"|(?<!\bis )(?<!\bare )(?<!\bwas )(?<!\bwere )\b(?P<place>there)\b(?=[?.!]|\s*$)",
    re.IGNORECASE,
)
_OF_THE_RESULT = re.compile(  # "make it the top five": the list of the former answer, not the thing that it names
    r"\W*(?:(?:please|now|and|then|ok|can you|could you)\W+)*"
    r"(?:make|keep|sort|order|rank|group|split|break|limit|restrict|narrow|reverse|repeat)\s+(?:it|them)\b",
    re.IGNORECASE,
)
_PREPOSITION = re.compile(r"\b(?:from|in|at|to)\s*$", re.IGNORECASE)


def resolve(question: str, turn: Turn, named: Mentions, former: Mentions, dialect: str) -> str | None:
    """The complete question that is meant; None if no rule is sure. `named`, `former`: what the two questions name.

    First the former answer named Ada, then the former question is asked about songs:

    >>> turn = Turn(question="How many singers are from Spain?", sql="SELECT COUNT(*) FROM singer", entity="Ada")
    >>> singer = Mentions(("singer",), (), frozenset(["singer", "song"]), frozenset(["age"]))
    >>> resolve("How old is that singer?", turn, singer, singer, "sqlite")
    'How old is Ada?'
    >>> song = Mentions(("song",), (), singer.table_words, singer.column_words)
    >>> resolve("And songs?", turn, song, singer, "sqlite")
    'How many songs are from Spain?'
    """
    return _with_entity(question, turn, named, dialect) or _with_subject(question, turn["question"], named, former)


def _with_entity(question: str, turn: Turn, named: Mentions, dialect: str) -> str | None:
    """The question with a reference replaced by the one thing that the former answer names or its SQL asks about."""
    found = next((each for each in _POINTING.finditer(question) if _points(each, named)), None)
    if found is None or _OF_THE_RESULT.match(question):
        return None
    plural = found[0].lower() in ("they", "them", "their")
    entity = turn.get("entity") or (None if plural else _asked_about(turn["sql"], dialect))
    if entity is None:
        return None
    before, after = question[: found.start()], question[found.end() :]
    possessive = "'s" if found["possessive"] or found["of"] else ""
    preposition = "in " if found["place"] and not _PREPOSITION.search(before) else ""
    return f"{before}{preposition}{entity}{possessive}{after}"


def _points(found: re.Match[str], named: Mentions) -> bool:
    """Whether "that" is followed by a noun, not by a clause."""
    noun = found["noun"]
    return noun is None or stem(noun.lower()) in named.table_words | named.column_words | _PEOPLE


def _asked_about(sql: str, dialect: str) -> str | None:
    """The only string that the SQL compares a column with, if the column is a name or title."""
    texts = [
        each for tree in parse_or_nothing(sql, dialect) for each in tree.find_all(exp.EQ) if each.expression.is_string
    ]
    if len(texts) != 1 or not _LABELS.intersection(name_words(texts[0].this.name)):
        return None
    return str(texts[0].expression.this)


def _with_subject(question: str, former: str, named: Mentions, formerly: Mentions) -> str | None:
    """The former question with the table that it names replaced by the one that this question consists of."""
    led = _LEAD.match(question)
    core = question[led.end() :].strip(" ?.!") if led else ""
    words = content_words(core)
    new = [name for name in named.tables if words <= name_stems(name)]
    known = {word for name in formerly.tables for word in name_stems(name)}
    old = [word for word in split(former) if stem(word.key) in known]
    if not words or len(new) != 1 or len({word.key for word in old}) != 1:
        return None
    return f"{former[: old[0].start]}{core}{former[old[0].end :]}"


_AT_A_PLACE = re.compile(r"(?P<preposition>in|from|of|at|on|for|by)\s+", re.IGNORECASE)
_DETERMINER = re.compile(r"(?:the|a|an|all|every|each|only|just|same)\b", re.IGNORECASE)
_CHOOSING = word_set("mean meant choose take option")


def gone_on(
    question: str, evidence: str, opened: OpenQuestion, named: Mentions, formerly: Mentions, dialect: str
) -> tuple[str, str] | None:
    """The complete question and the evidence that are meant where a question settles one that was asked back, or goes on from
    it; None if it stands by itself. `named`, `formerly`: what the two questions name.

    First what was unclear is chosen in words, then another value takes its place, then something is added:

    >>> options = {f"the {each}'s country": f"France refers to {each}.country" for each in ("singer", "fan")}
    >>> home = "Which songs are from France?"
    >>> opened = OpenQuestion(said=home, question=home, number=1, phrase="France", options=options)
    >>> song = Mentions(("song",), (), frozenset(["song", "singer", "fan"]), frozenset(["country"]))
    >>> nothing = Mentions((), (), song.table_words, song.column_words)
    >>> gone_on("the fan's", "", opened, nothing, song, "sqlite")
    ('Which songs are from France?', 'France refers to fan.country')
    >>> gone_on("And from Spain?", "", opened, nothing, song, "sqlite")
    ('Which songs are from Spain?', '')
    >>> gone_on("Only the three longest", "", opened, nothing, song, "sqlite")
    ('Which songs are from France, only the three longest?', '')
    >>> gone_on("How many songs are there?", "", opened, song, song, "sqlite")
    """
    former = opened["question"]
    if question in (opened["said"], former):
        return former, evidence
    if chosen := _choice(question, opened):
        return former, chosen
    before = Turn(question=former, sql="")
    if relation_of(question, named, [before], dialect).readings[0] == "standalone":
        return None
    return _with_subject(question, former, named, formerly) or _with_value(question, opened, named) or _added(
        question, former
    ), evidence


def _choice(question: str, opened: OpenQuestion) -> str:
    """The evidence of the one option that has all the words of the question; empty where there is none."""
    core = _without(POLITE, question)
    if CONNECTIVE.match(core) or _asks(core):
        return ""
    words = content_words(core) - _CHOOSING
    fit = [said for label, said in opened["options"].items() if words <= content_words(f"{label} {opened['phrase']}")]
    return fit[0] if words and len(fit) == 1 else ""


def _with_value(question: str, opened: OpenQuestion, named: Mentions) -> str | None:
    """The question that was asked back, with what was unclear replaced by what stands in its place now: "and from Spain?"."""
    former, phrase = opened["question"], opened["phrase"]
    bare = _without(POLITE, question)
    core = _without(CONNECTIVE, bare).rstrip(" ?.!")
    start = former.find(phrase)
    led = _AT_A_PLACE.match(core)
    new = core[led.end() :] if led else core
    if start < 0 or not new or _DETERMINER.match(new) or named.tables or len(new.split()) > MOST_WORDS_OF_A_VALUE:
        return None
    before = former[:start].split()[-1:]
    alike = [led["preposition"].lower()] == before if led else ABOUT.match(bare) is not None
    names_columns = {stem(word.key) for word in split(phrase)} <= named.column_words
    if bool(named.columns) != names_columns or not (alike or (new[0].isupper() and phrase[0].isupper())):
        return None
    return f"{former[:start]}{new}{former[start + len(phrase) :]}"


MOST_WORDS_OF_A_VALUE = 4


def _added(question: str, former: str) -> str:
    """The former question and what is added to it, as one; a clause of its own stays one."""
    core = _without(CONNECTIVE, _without(POLITE, question))
    if _asks(core):
        return f"{former} {question}"
    return f"{former.rstrip(' ?.!')}, {core[:1].lower()}{core[1:].rstrip(' ?.!')}?"
