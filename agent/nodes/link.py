"""The nodes that look up what a question is about, and the answers to messages that are no questions. They need no model.

A request to change data is told that only reading is done, and gets no answer to something else. Greetings, thanks, "what can I
ask" and questions about something that the data are not about get an answer in words.
"""

import re
import unicodedata
from collections.abc import Collection, Sequence
from dataclasses import asdict
from typing import Any, Literal

from langgraph.types import Command
from sqlglot import exp

from agent.candidates import Tools, asked, begin, recorded, since, values_of
from agent.context import AgentContext
from agent.observe.events import Unclear
from agent.observe.step_record import tool_step
from agent.presentation.sentence import asked_back, meanings_in_words
from agent.state import OpenQuestion, State, proposed
from tools.linking.link_schema import Link, link
from tools.linking.match_values import ValueMatch, match_values, relation
from tools.linking.mentions import QuestionContext
from tools.linking.questions import as_told, find_unclear, first_questions
from tools.linking.taught import definition
from tools.linking.word_forms import STOP_WORDS, keys, name_stems, name_words, split, stem, word_set
from tools.repair.rules import applied, rules_of
from tools.schema import Schema
from tools.sql.scope import parse_or_nothing

_COURTESY = r"(?:please|can you|could you|would you|now|just|then|and|,|\s)*"
_DONE = {
    "delete": "deleted", "erase": "deleted", "wipe": "deleted", "destroy": "deleted", "truncate": "deleted", "drop": "deleted",
    "insert": "inserted", "update": "updated", "rename": "renamed", "alter": "altered", "overwrite": "overwritten",
}  # fmt: skip
_REQUEST = re.compile(
    rf"{_COURTESY}(?P<verb>delete|erase|wipe|destroy|truncate|insert|overwrite|rename|alter|update(?! (?:me|us)\b)|"
    r"drop(?= (?:all|every|the tables?|the database|table|database|index|view)\b))\b",
    re.IGNORECASE,
)


def write_request(question: str) -> str | None:
    """What is told to someone who asks to change data; None for a question.

    >>> write_request("Please delete all albums")
    'Nothing was deleted, and nothing will be: data are only read here.'
    >>> write_request("Which albums were deleted?"), write_request("Update me on sales"), write_request("drop the city")
    (None, None, None)
    """
    found = _REQUEST.match(question.strip())
    if found is None:
        return None
    return f"Nothing was {_DONE[found['verb'].lower()]}, and nothing will be: data are only read here."


MOST_TABLES = 8
MOST_EXAMPLES = 3
MOST_WORDS = 3
FEWEST_WORDS = 3  # of a question that is told what the data are not about: a shorter one says too little
WELCOME = "You are welcome."
GOODBYE = "Goodbye."

_OK = r"(?:(?:ok|okay|great|perfect|cool|nice|good|fine|super|wow)\s+)*"
_TO_WHOM = r"(?:\s+(?:there|all|everyone|everybody|again|sqlagent))*"
_GREETING = rf"(?:hi|hello|hey|hiya|howdy|greetings|good (?:morning|afternoon|evening|day)){_TO_WHOM}"
_FOR_WHAT = r"(?:\s+(?:a lot|so much|very much|again|for (?:your|the|that|all) ?\w*))*"
_THANKS = rf"{_OK}(?:(?:many )?thanks|thank you|thx|cheers){_FOR_WHAT}"
_GOODBYE = rf"{_OK}(?:bye|bye bye|goodbye|good bye|see you|see you later|good night)"
_DATA = r"(?:this|the|that) (?:database|db|data|dataset|file)"
_OVERVIEW = (
    r"help|help me|(?:please )?help me please|what can (?:i|you|one) (?:ask|do)(?: (?:you|here|for me|with (?:this|it|you)))?|"
    r"what (?:questions )?can i ask(?: (?:you|here|about(?: (?:it|this))?))?|what do you know|who are you|what are you|"
    rf"how does (?:this|it) work|what is this|what(?: is|'s|s) (?:in )?{_DATA}(?: about)?|"
    r"what(?: kind of)? data (?:do you have|is there|is here|are there|have you got)|"
    rf"tell me about {_DATA}|describe {_DATA}"
)
_TABLES = (
    rf"(?:what|which) tables (?:are there|do you have|does it have|exist|can i ask about|are in {_DATA})|"
    r"(?:please )?(?:show|list)(?: me)?(?: all)?(?: the)? tables"
)


_COLUMNS = re.compile(
    r"(?:what|which) (?:columns|fields) (?:are there|are in (?P<in>.+)|do you have|does (?P<does>.+) have|has (?P<has>.+))|"
    r"(?:please )?(?:show|list)(?: me)?(?: all)?(?: the)? (?:columns|fields)(?: (?:of|in) (?P<of>.+))?"
)
_NAMED = re.compile(r"\d|[\"“‘]|(?<!\w)'|(?<!^)(?<![.?!] )\b(?!I\b)[A-ZÀ-Þ]")
_ANYBODY = word_set(
    "anyone anybody anything everyone everybody everything someone somebody something nobody nothing thing"
)
_ROWS = word_set("row rows record records entry entries data column columns table tables")
_PERIODS = word_set("day week month quarter year daily weekly monthly quarterly yearly")
_POINTING = word_set("it its they them their these those")
_WHOLE = word_set("row rows record records entry entries data dataset everything contents")
_COUNTING = word_set("how many count number total")
_AROUND = word_set(
    "please can could you we i would like want to see show list give display print get view let me us all every of the a an "
    "in from for there are is does do have has it this that here entire whole full complete exist contain hold what which"
)


def small_talk(text: str, schema: Schema, name: str = "") -> str | None:
    """The reply to what is no question about the data; None for a question. `name`: the database's.

    >>> from tools.schema import Column, Table
    >>> shop = Schema((Table("albums", (Column("title", "TEXT"),)), Table("artists", (Column("name", "TEXT"),))), "sqlite")
    >>> small_talk("Thanks a lot!", shop)
    'You are welcome.'
    >>> small_talk("Hello", shop)
    'Hello. There are 2 tables: albums, artists. Ask, for example: How many albums are there? How many artists are there?'
    >>> small_talk("Hello, how many albums are there?", shop)
    >>> small_talk("What columns are there?", shop), small_talk("Which columns does albums have?", shop)
    ('albums has title; artists has name.', 'albums has title.')
    """
    said = re.sub(r"[\s.,;:!?\"()-]+", " ", text.casefold().replace("’", "'")).strip()
    if re.fullmatch(_THANKS, said):
        return WELCOME
    if re.fullmatch(_GOODBYE, said):
        return GOODBYE
    if re.fullmatch(_GREETING, said):
        return f"Hello. {overview(schema, name)}"
    if (columns := _COLUMNS.fullmatch(said)) and (told := _columns(schema, next(filter(None, columns.groups()), ""))):
        return told
    asks = re.fullmatch(_OVERVIEW, said) or (re.fullmatch(_TABLES, said) and not _speaks_of_tables(schema))
    return overview(schema, name) if asks else None


def of_all_rows(question: str, schema: Schema) -> str | None:
    """The SQL of a question for the rows of a table and nothing about them: all, or their number. The table is named, or the
    only one; where it is neither, the SQL is empty. None for any other question.

    >>> from tools.schema import Column, Table
    >>> albums, artists = Table("albums", (Column("title", "TEXT"),)), Table("artists", (Column("name", "TEXT"),))
    >>> of_all_rows("How many rows are there?", Schema((albums,), "sqlite"))
    'SELECT COUNT(*) FROM "albums"'
    >>> both = Schema((albums, artists), "sqlite")
    >>> of_all_rows("Show me all records of the artists table", both), of_all_rows("Show me the data", both)
    ('SELECT * FROM "artists"', '')
    >>> of_all_rows("How many rows have no title?", both), of_all_rows("How many albums are there?", both)
    (None, None)
    """
    said = {word.key for word in split(question)}
    counts = bool(said & _COUNTING)
    whole = (_WHOLE if counts else _WHOLE | {"table"}) & said
    names = (name for each in schema.tables for name in (each.name, *(column.name for column in each.columns)))
    if not whole or any(whole & {*keys(name)} for name in names):
        return None
    left = {stem(key) for key in said - _WHOLE - _COUNTING - _AROUND - {"table"}}
    named = [table for table in schema.tables if left == {stem(key) for key in name_words(table.name)}]
    if left and len(named) != 1:
        return None
    tables = named or schema.tables
    read = exp.select("COUNT(*)" if counts else "*").from_(relation(tables[0].name)) if len(tables) == 1 else None
    return read.sql(schema.dialect) if read else ""


def nothing_about(
    question: str, schema: Schema, links: Sequence[Link], values: Sequence[ValueMatch], name: str = ""
) -> str | None:
    """What to say where no word of the question leads to a name, a comment or a value of the data; None where one does, where
    the question has no word that could, where it points to something ("they"), and where it names something, in capitals,
    quotes or digits: that may be a value which is not there. `name`: the database's, which may say what its tables leave out.

    >>> from tools.schema import Column, Table
    >>> shop = Schema((Table("albums", (Column("title", "TEXT"),)),), "sqlite")
    >>> nothing_about("What is the weather?", shop, (), ())
    'Nothing here is about “weather”. There is one table: albums. Ask, for example: How many albums are there?'
    >>> str(nothing_about("Revenue per month", shop, (), ())).partition(".")[0]
    'Nothing here is about “Revenue”'
    >>> nothing_about("How many are there?", shop, (), ())
    >>> nothing_about("How many rows are there?", shop, (), ())
    """
    said = split(question)
    if _NAMED.search(question) or len(said) < FEWEST_WORDS or any(word.key in _POINTING for word in said):
        return None
    words = [word for word in said if word.key not in STOP_WORDS | _ANYBODY | _ROWS]
    words = [word for word in words if stem(word.key) not in _PERIODS] or words
    known = {stem(word) for word in keys(name)} | name_stems(name)
    if not words or values or any(link.score > 0 for link in links) or any(stem(word.key) in known for word in words):
        return None
    return f"Nothing here is about {' or '.join(f'“{word.text}”' for word in words[:MOST_WORDS])}. {overview(schema, name)}"


def _columns(schema: Schema, table: str) -> str:
    """The columns of the table that is named, or of each; nothing where there is no such table."""
    wanted = re.sub(r"^(?:the )?(?:table )?| table$", "", table).replace(" ", "_")
    tables = [each for each in schema.tables if not wanted or each.name.casefold().replace(" ", "_") == wanted]
    listed = [f"{each.name} has {', '.join(column.name for column in each.columns)}" for each in tables[:MOST_TABLES]]
    left = len(tables) - len(listed)
    return "; ".join(listed) + (f"; and {left} tables more" if left > 0 else "") + "." if listed else ""


def overview(schema: Schema, name: str = "") -> str:
    """What a database holds, and questions to begin with."""
    names = [table.name for table in schema.tables]
    if not names:
        return "There are no tables here to ask about."
    left = len(names) - MOST_TABLES
    listed = ", ".join(names[:MOST_TABLES]) + (f" and {left} more" if left > 0 else "")
    count = "one table" if len(names) == 1 else f"{len(names)} tables"
    examples = " ".join(first_questions(schema, name, MOST_EXAMPLES))
    return f"There {'is' if len(names) == 1 else 'are'} {count}: {listed}. Ask, for example: {examples}"


ENGLISH_ONLY = "The model here understands English only: ask in English, or give --model a larger model."
_FOREIGN = word_set(
    "wie viele wieviele welche welcher welches wer gibt sind ist das der und oder nicht von aus mit fur pro jede alle "
    "zeige ein eine einen combien quel quelle quels quelles qui est sont les des du une dans avec pour par chaque tous "
    "toutes montre il le la de cuantos cuantas cual cuales que quien hay cada los las el del con para por todos todas "
    "muestra quanti quante quale quali chi sono gli della delle degli ogni tutti tutte mostra quantos quantas qual quais "
    "quem sao dos das mostre hoeveel welke zijn het een elke toon existem sao"
)
FEWEST_FOREIGN = 2


def in_another_language(question: str) -> bool:
    """Whether a question is written in another language than English: in other letters than Latin ones for the most part, or
    with words that English does not have and without any that only English has.

    >>> in_another_language("有多少张专辑"), in_another_language("Wie viele Alben gibt es?")
    (True, True)
    >>> in_another_language("How many albums are called “Les rues des amis”?"), in_another_language("albums per genre")
    (False, False)
    """
    letters = [letter for letter in question if letter.isalpha()]
    others = [letter for letter in letters if not unicodedata.name(letter, "").startswith("LATIN")]
    if 2 * len(others) > len(letters):
        return True
    words = {word.key for word in split(question)}
    return len(words & _FOREIGN) >= FEWEST_FOREIGN and not words & (STOP_WORDS - _FOREIGN - word_set("a in on me so"))


def _speaks_of_tables(schema: Schema) -> bool:
    """Whether tables may be things of the data, as in a restaurant."""
    names = (name for table in schema.tables for name in (table.name, *(column.name for column in table.columns)))
    return any("table" in name.casefold() for name in names)


def link_schema(state: State, runtime: Tools) -> Command[Literal["clarify", "adapt", "plan", "check", "__end__"]]:
    """Find the tables, columns and cell values that the question is about, or the stored example that asks the same. Needs no
    model. SQL that the asker has chosen is taken as it is. A question about nothing that is here is told so.
    """
    start, toolbox = begin(runtime, "link"), runtime.context
    if chosen := state["chosen"]:
        step = tool_step("link", since(start), "the reading that was chosen")
        return Command(update={"candidate": proposed(chosen)} | recorded(state, runtime, step), goto="check")
    example = toolbox.options.knowledge.example(state["question"])
    if example and example[1] not in state["refused"]:
        known = {"example": example[0], "candidate": proposed(example[1])}
        step = tool_step("link", since(start), "the SQL of a stored example")
        return Command(update=known | recorded(state, runtime, step), goto="check")
    schema = toolbox.database.schema()
    question = asked(state)
    whole = of_all_rows(question, schema) if toolbox.options.present and state["readings"] == ["standalone"] else None
    if whole and whole not in state["refused"]:
        step = tool_step("link", since(start), "all rows of a table")
        return Command(update={"candidate": proposed(whole)} | recorded(state, runtime, step), goto="check")
    meant = [text for name, text in toolbox.options.knowledge.meant(question) if definition(schema, name, text) is None]
    text = " ".join(filter(None, (question, state["evidence"], *meant)))
    values = match_values(toolbox.database, text) if toolbox.options.values else ()
    if toolbox.options.clarify:
        values = as_told(values, state["evidence"])
    links = link(schema, " ".join((question, *meant)), values) if toolbox.options.hints else ()
    step = tool_step("link", since(start), f"{_counted(links, 'link')}, {_counted(values, 'value')}")
    update = {"values": [asdict(value) for value in values], "links": [asdict(each) for each in links]}
    if told := _told(state, toolbox, links, values):
        ended = recorded(state, runtime, tool_step("link", since(start), "nothing in the data is about this"))
        return Command(update={"answer": told, "told": True} | ended, goto="__end__")
    leans = state["readings"] == ["follow_up"] and bool(state.get("turns"))
    ask_back = toolbox.options.clarify and not state["evidence"] and not leans
    goto: Literal["clarify", "adapt", "plan"] = "adapt" if leans else "clarify" if ask_back else "plan"
    return Command(update=update | recorded(state, runtime, step), goto=goto)


def _told(state: State, toolbox: AgentContext, links: Sequence[Link], values: Sequence[ValueMatch]) -> str | None:
    """What people are told where a question that stands by itself is about nothing in the data, or is not in the language that
    the model was trained on; None where it may be answered."""
    options, question = toolbox.options, asked(state)
    alone = not state.get("turns") or state["readings"] == ["standalone"]
    helped = state["evidence"] or options.knowledge.about(question) or options.knowledge.similar(question)
    if not (options.present and options.hints and options.values and alone) or helped:
        return None
    said = question.casefold()
    names = [each.column or each.table for each in links if each.score >= 1]
    for named in (*(value.phrase for value in values), *(name for name in names if not name.isascii())):
        said = said.replace(named.casefold(), "")
    if toolbox.profile.raw and in_another_language(said):
        return ENGLISH_ONLY
    schema, name = toolbox.database.schema(), toolbox.database.name
    if of_all_rows(question, schema) == "":
        return overview(schema, name)
    return nothing_about(question, schema, links, values, name)


def clarify(state: State, runtime: Tools) -> Command[Literal["plan", "__end__"]]:
    """Offer the asker the possible meanings of an ambiguous question. The choice comes back as evidence of the same
    question, so that nobody is asked twice. Needs no model.
    """
    start, database = begin(runtime, "clarify"), runtime.context.database
    links = [Link(**each) for each in state["links"]]
    meanings = find_unclear(database, state["question"], values_of(state), links)
    step = tool_step("clarify", since(start), f"{len(meanings)} meanings" if meanings else "clear")
    update: dict[str, Any] = recorded(state, runtime, step)
    if not meanings:
        return Command(update=update, goto="plan")
    options = dict(zip(meanings_in_words(meanings), (one.evidence for one in meanings), strict=True))
    runtime.stream_writer(Unclear(meanings[0].phrase, options))
    opened = OpenQuestion(
        said=state["said"],
        question=state["question"],
        number=state["number"],
        phrase=meanings[0].phrase,
        options=options,
    )
    return Command(update=update | {"unclear": options, "answer": asked_back(meanings), "open": opened}, goto="__end__")


def without_unmeant(state: State, toolbox: AgentContext, sql: str) -> dict[str, Any]:
    """The update of the state without values that the question hardly means, if the SQL after the model's plan compares with
    one of them; nothing otherwise."""
    values, schema, question = values_of(state), toolbox.database.schema(), asked(state)
    if not state["plan"]:
        return {}
    context = QuestionContext(question, values, without=toolbox.options.without_rules)
    kept = applied(rules_of("values", context), values, schema, context)
    dropped = {match.value.casefold() for match in values} - {match.value.casefold() for match in kept}
    literals = (each for tree in parse_or_nothing(sql, schema.dialect) for each in tree.find_all(exp.Literal))
    if not any(each.is_string and each.name.casefold() in dropped for each in literals):
        return {}
    links = link(schema, question, kept) if toolbox.options.hints else ()
    again = {"values": [asdict(value) for value in kept], "links": [asdict(each) for each in links]}
    return again | {"readings": [state["reading"]], "plan": ""}


def _counted(things: Collection[object], noun: str) -> str:
    return f"{len(things)} {noun if len(things) == 1 else noun + 's'}"
