"""Invents schemas for WikiSQL's tables: one to three of them together, similar or not, with names in one style, id columns and
foreign keys; in some, the values of a column are in a table of their own.

Rows for an invented schema, so that values are found as in a real database and no question's answer is empty.

Invents names: of columns from WikiSQL's headers in one style for a schema, and of tables, which have none, from the columns
and the topic of the questions.
"""

import re
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

from agent.grammar.words import is_plain
from tools.linking.word_forms import STOP_WORDS, keys, name_words, stem, word_set
from tools.schema import Column, ColumnRef, ForeignKey, Schema, Table
from training.variants.mistakes import plural, singular
from training.variants.schemas import STYLES, Style
from training.wikisql.questions import WikiColumn, WikiQuestion, WikiTable, number_of, spoken

AS_WRITTEN = 0.12  # probability that a schema keeps the headers as they are, in quotes
ABBREVIATED = 0.15  # probability that a schema abbreviates
LONGEST = 5  # words of a column's name

_SIGNS = {
    "#": " number ",
    "%": " percent ",
    "$": " usd ",
    "€": " eur ",
    "£": " gbp ",
    "&": " and ",
    "+": " plus ",
    "²": "2",
}
_ORDINALS = {"1st": "first", "2nd": "second", "3rd": "third", "4th": "fourth", "5th": "fifth"}
_SHORT = {
    "number": "no",
    "position": "pos",
    "points": "pts",
    "average": "avg",
    "percent": "pct",
    "department": "dept",
    "population": "pop",
    "nationality": "nat",
    "attendance": "att",
    "tournament": "tourn",
    "competition": "comp",
    "description": "descr",
    "maximum": "max",
    "minimum": "min",
    "country": "ctry",
    "location": "loc",
    "opponent": "opp",
    "category": "cat",
    "quantity": "qty",
    "manufacturer": "manuf",
    "record": "rec",
    "total": "tot",
}

# The columns that tell what a table's rows are, the first fitting entry wins; the names are alternatives.
_ROWS: Sequence[tuple[frozenset[str], Sequence[str]]] = [
    (frozenset(columns.split(",")), names.split())
    for columns, names in (
        ("home team,away team", "matches fixtures games match_results"),
        ("home,visitor", "games season_games schedule"),
        ("gold,silver", "medal_table medals medal_counts"),
        ("gold,bronze", "medal_table medals medal_counts"),
        ("driver,laps", "race_results race_entries drivers"),
        ("rider,laps", "race_results grand_prix_results riders"),
        ("driver,constructor", "race_entries grand_prix drivers"),
        ("winning driver,circuit", "races grand_prix season_races"),
        ("pole position,race", "races season_races grand_prix"),
        ("incumbent,district", "house_elections elections representatives"),
        ("incumbent,party", "elections representatives incumbents"),
        ("directed by,written by", "episodes tv_episodes episode_list"),
        ("title,directed by", "episodes films tv_episodes"),
        ("title,written by", "episodes tv_episodes scripts"),
        ("original air date,title", "episodes tv_episodes broadcasts"),
        ("player,college", "draft_picks draftees players"),
        ("pick,player", "draft_picks draft draftees"),
        ("pick,round", "draft_picks draft selections"),
        ("player,to par", "leaderboard golfers tournament_scores"),
        ("place,player", "leaderboard standings golfers"),
        ("partner,surface", "doubles_finals finals tennis_finals"),
        ("opponent,surface", "finals tennis_finals singles_finals"),
        ("tournament,winner", "tournaments finals championships"),
        ("opponent,week", "games schedule season_games"),
        ("opponent,record", "games game_log schedule"),
        ("opponent,method", "fights bouts fight_record"),
        ("opponent,round", "fights bouts matches"),
        ("opponent,score", "games matches results"),
        ("high points,high rebounds", "games game_log game_leaders"),
        ("high points,high assists", "games game_log game_leaders"),
        ("venue,crowd", "matches rounds fixtures"),
        ("played,points", "standings league_table teams"),
        ("played,lost", "standings league_table teams"),
        ("wins,losses", "standings team_records clubs"),
        ("goals for,goals against", "standings league_table clubs"),
        ("chassis,engine", "race_cars entries cars"),
        ("call sign,frequency", "radio_stations stations broadcasters"),
        ("call sign,city of license", "radio_stations stations transmitters"),
        ("school,enrollment", "schools members colleges"),
        ("institution,enrollment", "institutions universities colleges"),
        ("institution,nickname", "universities institutions colleges"),
        ("artist,song", "songs entries tracks"),
        ("artist,album", "albums releases records"),
        ("catalog,label", "releases albums editions"),
        ("label,format", "releases editions albums"),
        ("song,points", "contest_entries songs entries"),
        ("county,population", "counties places districts"),
        ("city,population", "cities places towns"),
        ("country,population", "countries nations"),
        ("name,height", "buildings people peaks"),
        ("stadium,capacity", "stadiums venues grounds"),
        ("model,engine", "car_models models vehicles"),
        ("manufacturer,model", "vehicles models products"),
        ("nation,rank", "rankings nations results"),
        ("award,category", "awards nominations award_nominations"),
        ("name,nationality", "people members athletes"),
        ("swimmer", "swim_results"),
        ("athlete", "athletes athletics_results"),
        ("lane,time", "heats swim_results race_results"),
        ("candidates", "elections races candidates"),
        ("episode", "episodes"),
        ("race", "races race_calendar"),
        ("driver", "drivers race_entries"),
        ("player", "players roster squad"),
        ("school", "schools"),
        ("team", "teams team_seasons"),
        ("club", "clubs"),
        ("song", "songs"),
        ("artist", "artists"),
        ("title", "titles works"),
        ("location,date", "events"),
        ("opponent", "games matches"),
        ("tournament", "tournaments"),
        ("venue,date", "matches events"),
        ("competition", "competitions results"),
        ("season", "seasons"),
    )
]  # fmt: skip


def table_names(table: WikiTable) -> list[str]:
    """Names for the table in snake_case, the likeliest first: from its columns, the questions' topic, or its first column."""
    headers = frozenset(column.name for column in table.columns)
    known = [name for columns, names in _ROWS if columns <= headers for name in names]
    topics = [plural(word) for word in _topics(table)]
    first = "_".join(header_words(table.columns[0].name)[:2])
    return list(dict.fromkeys([*known[:4], *topics[:2], *known[4:], plural(first), f"{first}_list", f"{first}_info"]))


def _topics(table: WikiTable) -> list[str]:
    """Nouns, as far as one can tell, of at least half of the questions that are neither headers nor values."""
    own = {stem(word) for column in table.columns for text in (column.name, *column.values) for word in keys(text)}
    counts = Counter(
        word
        for question in table.questions
        for word in dict.fromkeys(map(stem, keys(question.text)))
        if word.isalpha() and len(word) > 3 and word not in own and not _is_no_topic(word)
    )
    return [word for word, count in counts.most_common() if 2 * count >= max(4, len(table.questions))]


def _is_no_topic(word: str) -> bool:
    return word in STOP_WORDS or word in _NO_TOPICS or word.endswith(("ed", "ing", "est", "ly"))


_NO_TOPICS = word_set("""
    after against aired airing amount associated average before began begin being belong between bigger born
    broadcast call called came come contain contest corresponding create date directed during earlier equal
    feature featured fewer first full full-time goes greater greatest happened having held highest information
    kind larger largest last later least less level listed lose lost lowest made maximum minimum more most name
    number occurred original over overall part play played produced related release released said same score
    scored serve served show smaller smallest start state sum take tell than their there time took total type
    under value went were when where with won written year
""")


def header_words(header: str) -> tuple[str, ...]:
    """The words of a header, signs spelled out: `pick #` is ("pick", "number")."""
    for sign, word in _SIGNS.items():
        header = header.replace(sign, word)
    header = re.sub(r"\[\s*\w?\s*\]", " ", header)  # a footnote
    words = [_ORDINALS.get(word, word) for word in keys(re.sub(r"\W+", " ", header))]
    return tuple(word for word in words if word not in ("the", "of"))[:LONGEST] or ("value",)


class Spelling:
    """One style of names for a whole schema, drawn at the start."""

    def __init__(self, rng: Random) -> None:
        self._style: Style = rng.choices([s for _, s in STYLES.values()], [weight for weight, _ in STYLES.values()])[0]
        self._as_written = rng.random() < AS_WRITTEN
        self._short: Mapping[str, str] = _SHORT if rng.random() < ABBREVIATED else {}

    def column(self, header: str, taken: Collection[str]) -> str:
        """The name of a header's column, unlike those `taken` (in lower case)."""
        if self._as_written and '"' not in header and header not in taken:
            return header
        words = [self._short.get(word, word) for word in header_words(header)]
        return self._unique(words, taken)

    def table(self, name: str, taken: Collection[str] = ()) -> str:
        """The name of a table that is given in snake_case."""
        return self._unique(name.split("_"), taken)

    def _unique(self, words: Sequence[str], taken: Collection[str]) -> str:
        if words[0][:1].isdigit():
            words = ["in" if words[0].isdigit() and len(words[0]) == 4 else "no", *words]
        found = self._style(words)
        if not (" " in found or (is_plain(found, "sqlite") and is_plain(found, "duckdb"))):
            words = [*words, "value"]
        number = 2
        while self._style(words).casefold() in taken:
            words = [*words[:-1], str(number)] if number > 2 else [*words, str(number)]
            number += 1
        return self._style(words)


TABLES = (1, 2, 2, 3, 3)  # in a schema, drawn
SIMILAR = 0.5  # probability that another table shares a column with the first
WITH_IDS = 0.5
LINKED = 0.3  # probability that one of several tables with ids refers to another
MOVED = 0.2  # probability that the values of an entity's column are in a table of their own
ENTITIES = word_set("""team player country driver club nation party college city constructor director venue artist county school
    manufacturer tournament league stadium rider region competition circuit label state winner entrant""")


@dataclass(frozen=True, slots=True)
class Invented:
    """A WikiSQL table in the schema: the table that holds its rows, and where each header's column is. One header at most,
    `moved`, is in another table, to which the first foreign key leads."""

    table: WikiTable
    rows_in: Table
    places: Mapping[str, ColumnRef]
    moved: str = ""


@dataclass(frozen=True, slots=True)
class Composition:
    """An invented schema and its WikiSQL tables."""

    schema: Schema
    tables: tuple[Invented, ...]


def together(tables: Sequence[WikiTable], rng: Random) -> Iterator[list[WikiTable]]:
    """The tables in random groups of one to three, each table once."""
    order = rng.sample(list(tables), len(tables))
    left = {table.id: table for table in order}
    alike: dict[str, list[WikiTable]] = defaultdict(list)
    for table in order:
        for column in table.columns:
            alike[column.name].append(table)
    for first in order:
        if left.pop(first.id, None) is None:
            continue
        group = [first]
        for _ in range(rng.choice(TABLES) - 1):
            found = _companion(first, left, alike, rng)
            if found is not None:
                group.append(left.pop(found.id))
        rng.shuffle(group)
        yield group


def _companion(
    first: WikiTable, left: Mapping[str, WikiTable], alike: Mapping[str, Sequence[WikiTable]], rng: Random
) -> WikiTable | None:
    """Another table: one that shares a column with the first, or any."""
    sharing = [table for table in alike[rng.choice(first.columns).name] if table.id in left]
    if sharing and rng.random() < SIMILAR:
        return rng.choice(sharing)
    return next(iter(left.values()), None)


def compose(group: Sequence[WikiTable], rng: Random) -> Composition:
    """The schema of these tables, in random order; no two have the same name."""
    spelling, with_ids, taken = Spelling(rng), rng.random() < WITH_IDS, set[str]()
    own, lookups = list[Invented](), list[Table]()
    for table in group:
        name = _table_name(table, spelling, taken, rng)
        invented, lookup = _invented(table, name, spelling, with_ids, taken, rng)
        own.append(invented)
        lookups += lookup
        taken |= {name.casefold(), *(other.name.casefold() for other in lookup)}
    if with_ids and len(own) > 1 and rng.random() < LINKED:
        first, second = rng.sample(range(len(own)), 2)
        own[first] = _linked(own[first], own[second].rows_in, spelling)
    tables = [*(each.rows_in for each in own), *lookups]
    rng.shuffle(tables)
    return Composition(Schema(tuple(tables), "sqlite"), tuple(own))


def _table_name(table: WikiTable, spelling: Spelling, taken: set[str], rng: Random) -> str:
    names = table_names(table)
    likely = rng.sample(names[:3], min(3, len(names)))
    free = (name for name in [*likely, *names] if spelling.table(name).casefold() not in taken)
    return spelling.table(next(free, names[0]), taken)


def _invented(
    table: WikiTable, name: str, spelling: Spelling, with_id: bool, taken: set[str], rng: Random
) -> tuple[Invented, list[Table]]:
    """The table under its names, and the one that holds a column's values, if there is one."""
    used, columns, places = set[str](), list[Column](), dict[str, ColumnRef]()

    def add(header: str, kind: str, *, key: bool = False) -> str:
        column = spelling.column(header, used)
        used.add(column.casefold())
        columns.append(Column(column, kind, primary_key=key))
        return column

    if with_id:
        add(rng.choice(("id", _id(name))), "INTEGER", key=True)
    moved = _moved(table, rng)
    for column in rng.sample(table.columns, len(table.columns)):
        if column.name != moved:
            places[column.name] = (name, add(column.name, "NUMERIC" if column.numeric else "TEXT"))
    if not moved:
        return Invented(table, Table(name, tuple(columns)), places), []
    other = spelling.table("_".join(plural(moved).split()), {*taken, name.casefold()})
    there, label = spelling.column(f"{moved} id", ()), spelling.column("name", ())
    lookup = Table(other, (Column(there, "INTEGER", primary_key=True), Column(label, "TEXT")))
    key = ForeignKey((add(f"{moved} id", "INTEGER"),), other, (there,))
    places[moved] = (other, label)
    return Invented(table, Table(name, tuple(columns), (key,)), places, moved), [lookup]


def _id(name: str) -> str:
    """The header of a table's id: of `draft_picks` it is `pick id`, of `medal_table` `medal id`."""
    words = [word for word in name_words(name) if word not in ("list", "info", "table", "results", "log")]
    return f"{singular(words[-1])} id" if words else "id"


def _moved(table: WikiTable, rng: Random) -> str:
    fitting = [column.name for column in table.columns if column.name in ENTITIES and not column.numeric]
    return rng.choice(fitting) if fitting and rng.random() < MOVED else ""


def _linked(invented: Invented, other: Table, spelling: Spelling) -> Invented:
    """The table with a column more, which refers to the other table's id."""
    here = invented.rows_in
    name = spelling.column(_id(other.name), {column.name.casefold() for column in here.columns})
    key = ForeignKey((name,), other.name, (other.columns[0].name,))
    columns = (*here.columns, Column(name, "INTEGER"))
    return replace(invented, rows_in=replace(here, columns=columns, foreign_keys=(*here.foreign_keys, key)))


Row = dict[str, str | float | None]  # by header
MORE_ROWS = 8  # rows that no question is about
MOST_POOLED = 40
FEW = 0.35  # probability that a column repeats a few values
AS_SPOKEN = 0.6  # probability that a cell has the upper and lower case of the question


class Pool:
    """Values of columns of the same header in all tables, to fill cells that no question mentions."""

    def __init__(self, tables: Iterable[WikiTable]) -> None:
        pooled: dict[tuple[str, bool], dict[str, None]] = defaultdict(dict)
        for table in tables:
            for column in table.columns:
                values = (value for value in column.values if not column.numeric or number_of(value))
                pooled[column.name, column.numeric].update(dict.fromkeys(values))
        self._values = {key: list(values)[:MOST_POOLED] for key, values in pooled.items()}

    def some(self, column: WikiColumn, rng: Random) -> list[str]:
        """Values for one table's column, to draw cells from: all, or a few that repeat; none if nothing is known."""
        known = self._values.get((column.name, column.numeric), [])
        return rng.sample(known, min(rng.randint(2, 4), len(known))) if rng.random() < FEW else known


def _number(text: str) -> float:
    number = float(number_of(text) or 0)
    return int(number) if number.is_integer() else number


@dataclass(frozen=True, slots=True)
class Cells:
    """A table's rows, and how the cells spell the values of its questions, by (header, value in lower case)."""

    rows: Sequence[Row]
    spelling: Mapping[tuple[str, str], str]


def cells(table: WikiTable, pool: Pool, rng: Random) -> Cells:
    """One row for each question, on which its conditions hold, and a few more, in random order."""
    spelling: dict[tuple[str, str], str] = {}
    for question in table.questions:
        for header, _, value in question.conditions:
            said = spoken(value, question.text) or value
            form = said if rng.random() < AS_SPOKEN else value
            spelling.setdefault((header, value.casefold()), form)
    values = {
        column.name: [spelling.get((column.name, value.casefold()), value) for value in pool.some(column, rng)]
        for column in table.columns
    }
    asked = [*table.questions, *[None] * MORE_ROWS]
    rows = [_row(table, question, spelling, values, rng) for question in asked]
    rng.shuffle(rows)
    return Cells(rows, spelling)


def _row(
    table: WikiTable,
    question: WikiQuestion | None,
    spelling: Mapping[tuple[str, str], str],
    values: Mapping[str, Sequence[str]],
    rng: Random,
) -> Row:
    """A row of known values, on which the question's conditions hold."""
    row = {column.name: _cell(column, values[column.name], rng) for column in table.columns}
    if question is not None and row[question.select] is None:
        row[question.select] = "unknown"
    for header, operator, value in question.conditions if question else ():
        numeric = table.column(header).numeric
        row[header] = _number(value) + _STEPS[operator] if numeric else spelling[header, value.casefold()]
    return row


def _cell(column: WikiColumn, known: Sequence[str], rng: Random) -> str | float | None:
    if column.numeric:
        return _number(rng.choice(known)) if known else rng.randint(1, 60)
    return rng.choice(known) if known else None


_STEPS = {"=": 0, ">": 1, "<": -1}


def fill(composition: Composition, pool: Pool, file: Path, rng: Random) -> dict[str, Cells]:
    """Insert rows into the database of that schema; each WikiSQL table's cells by its id."""
    made = {each.table.id: cells(each.table, pool, rng) for each in composition.tables}
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute("PRAGMA synchronous = OFF")
        for each in composition.tables:
            _insert(connection, each, made[each.table.id].rows, rng)
    return made


def _insert(connection: sqlite3.Connection, each: Invented, rows: Sequence[Row], rng: Random) -> None:
    headers = {column: header for header, (_, column) in each.places.items() if header != each.moved}
    moved: dict[object, int] = {}
    for number, row in enumerate(rows, 1):
        if each.moved:
            moved.setdefault(row[each.moved], len(moved) + 1)
        values = [
            row[headers[column.name]] if column.name in headers
            else number if column.primary_key
            else moved[row[each.moved]] if each.moved and column.name == each.rows_in.foreign_keys[0].columns[0]
            else rng.randint(1, len(rows))
            for column in each.rows_in.columns
        ]  # fmt: skip
        marks = ", ".join("?" * len(values))
        connection.execute(f"INSERT INTO {_quoted(each.rows_in.name)} VALUES ({marks})", values)
    if each.moved:
        other = _quoted(each.places[each.moved][0])
        connection.executemany(f"INSERT INTO {other} VALUES (?, ?)", [(n, value) for value, n in moved.items()])


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
