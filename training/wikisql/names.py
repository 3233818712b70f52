"""Invents names: of columns from WikiSQL's headers in one style for a schema, and of tables, which have none, from the columns
and the topic of the questions.
"""

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from random import Random

from agent.grammar.words import is_plain
from tools.linking.word_forms import STOP_WORDS, keys, stem, word_set
from training.variants.schemas import STYLES, Style
from training.variants.wording import plural
from training.wikisql.questions import WikiTable

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
