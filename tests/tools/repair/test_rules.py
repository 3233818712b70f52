"""Each rule for SQL changes what it is for, once, and nothing else: one table of (rule, SQL, question, then).

`then` is None where the statement must stay. Guards against a rule that acts on what may be meant as it stands.
"""

import pytest
from sqlglot import exp, parse_one

from tools.linking.match_values import ValueMatch
from tools.linking.mentions import QuestionContext
from tools.repair.rules import RULE_NAMES, RULES, rewritten, rules_of
from tools.schema import Column, ForeignKey, Schema, Table


def found(table: str, column: str, value: str, score: float = 1.0) -> ValueMatch:
    return ValueMatch(table, column, value, value, score)


PUBLISHER_KEY = ForeignKey(("publisher_id",), "publisher", ("id",))
HERO = Table(
    "hero",
    (
        Column("id", "INTEGER", True),
        Column("name", "TEXT"),
        Column("alias", "TEXT"),
        Column("publisher_id", "INTEGER"),
    ),
    (PUBLISHER_KEY,),
)
HEROES = Schema(
    (
        HERO,
        Table("publisher", (Column("id", "INTEGER", True), Column("title", "TEXT"))),
        Table("movie", (Column("title", "TEXT"),)),
    ),
    "sqlite",
)
ROOM = Table("room", (Column("Beds", "INTEGER"), Column("decor", "TEXT"), Column("hotel", "TEXT")))
HOTEL = Table("hotel", (Column("id", "TEXT"), Column("stars", "INTEGER"), Column("opened_on", "DATE")))
HOTELS = Schema((ROOM, HOTEL), "sqlite")
EXTRA_BEDS = Schema((*HOTELS.tables, Table("offer", (Column("extra_bed", "INTEGER"),))), "sqlite")
SINGERS = Schema((Table("singer", (Column("name", "TEXT"), Column("Age", "INTEGER"))),), "sqlite")
ALBUMS = (
    Table("albums", (Column("album_id", "INTEGER"), Column("Title", "TEXT"))),
    Table("Order Lines", (Column("album_id", "INTEGER"),)),
)
DC, BO = found("publisher", "title", "DC Comics"), found("hero", "name", "Bo")
JOINED = "hero JOIN publisher ON hero.publisher_id = publisher.id"
AVERAGE = "(SELECT AVG(pay) FROM singer)"
BEDS, MOST_BEDS = "How many beds are there?", "Which decor has the most beds?"
BY_DECOR = "SELECT decor FROM room GROUP BY decor ORDER BY {}"

Case = tuple[str, str, str, str | None]
WORDS: list[Case] = [
    # ORDER BY follows words that allow one direction only.
    ("direction", "ORDER BY Age LIMIT 1", "Who has the highest age?", "ORDER BY Age DESC LIMIT 1"),
    ("direction", "ORDER BY COUNT(*) LIMIT 1", "Which has the most songs?", "ORDER BY COUNT(*) DESC LIMIT 1"),
    ("direction", "ORDER BY COUNT(*) DESC LIMIT 1", "Which has the fewest songs?", "ORDER BY COUNT(*) LIMIT 1"),
    ("direction", "ORDER BY name", "Names in descending order", "ORDER BY name DESC"),
    ("direction", "ORDER BY name DESC", "Names in alphabetical order", "ORDER BY name"),
    ("direction", "ORDER BY Age", "Names, from old to young", "ORDER BY Age DESC"),
    ("direction", "ORDER BY Age LIMIT 1", "Who is the oldest?", "ORDER BY Age DESC LIMIT 1"),
    ("direction", "ORDER BY birth_date LIMIT 1", "Who is the youngest?", "ORDER BY birth_date DESC LIMIT 1"),
    ("direction", "ORDER BY birth_date DESC LIMIT 1", "Who is the oldest?", "ORDER BY birth_date LIMIT 1"),
    ("direction", "ORDER BY year LIMIT 1", "What is the most recent song?", "ORDER BY year DESC LIMIT 1"),
    ("direction", "ORDER BY Age", "Who has the highest age?", None),  # perhaps sorted for another reason
    ("direction", "ORDER BY rank LIMIT 1", "Who has the highest rank?", None),  # 1 is the highest
    ("direction", "ORDER BY birth_year LIMIT 1", "Who has the highest birth year?", None),
    ("direction", "ORDER BY Age LIMIT 1", "The most and the least", None),
    ("direction", "ORDER BY date LIMIT 1", "The first song of the youngest singer", None),
    ("direction", "ORDER BY date LIMIT 1", "The latest song of the oldest singer", None),
    ("direction", "ORDER BY COUNT(year) LIMIT 1", "The oldest", None),
    ("direction", "ORDER BY Age LIMIT 1", "The most recent one", None),
    ("direction", "ORDER BY Age LIMIT 1", "Those with at most three songs", None),
    ("direction", "ORDER BY Age, name DESC", "In descending order", None),  # two keys
    ("direction", "ORDER BY Age", "", None),
    # LIKE has the wildcards that are said, and keeps its own where none are.
    ("wildcards", "WHERE name LIKE '2'", "Codes that start with 2", "WHERE name LIKE '2%'"),
    ("wildcards", "WHERE name LIKE '%Orbit%'", "Names beginning with Orbit", "WHERE name LIKE 'Orbit%'"),
    ("wildcards", "WHERE name LIKE 'son'", "Names that end with 'son'", "WHERE name LIKE '%son'"),
    ("wildcards", "WHERE name LIKE 'Orbit'", "Names that contain Orbit", "WHERE name LIKE '%Orbit%'"),
    ("wildcards", "WHERE name LIKE 'Orbit%'", "Names including Orbit", "WHERE name LIKE '%Orbit%'"),
    ("wildcards", "WHERE name LIKE 'Orbit'", "Names like Orbit", None),
    ("wildcards", "WHERE name LIKE 'Orbit'", "Names that start with O and contain r", None),
    ("wildcards", "WHERE name LIKE 'O%t'", "Names that start with O", None),
    ("wildcards", "WHERE name LIKE 'A' OR name LIKE 'B'", "Names that start with A or B", None),
    ("wildcards", "WHERE name = 'Orbit'", "Names that start with Orbit", None),
    ("wildcards", "WHERE name LIKE other", "Names that start with Orbit", None),
    # A comparison with NULL is a test for it, in conditions alone.
    ("nulls", "WHERE b = NULL", "", "WHERE b IS NULL"),
    ("nulls", "WHERE t.b = t.b", "", "WHERE NOT t.b IS NULL"),
    ("nulls", 'WHERE b = "B"', "", "WHERE NOT b IS NULL"),
    ("nulls", "WHERE NULL <> b AND c = 1", "", "WHERE NOT b IS NULL AND c = 1"),
    ("nulls", "GROUP BY a HAVING MAX(b) = NULL", "", "GROUP BY a HAVING MAX(b) IS NULL"),
    ("nulls", "WHERE a IN (SELECT a FROM s WHERE NULL = b)", "", "WHERE a IN (SELECT a FROM s WHERE b IS NULL)"),
    ("nulls", "WHERE b = 'NULL'", "", None),
    ("nulls", "WHERE t.b = s.b", "", None),
    ("nulls", "WHERE b <> b", "", None),
    ("nulls", "WHERE 1 = 1", "", None),
    # A number is compared as the question bounds it.
    ("bounds", "WHERE Age = 25", "Those aged 25 or older", "WHERE Age >= 25"),
    ("bounds", "WHERE Age < 30", "Those aged 30 or younger", "WHERE Age <= 30"),
    ("bounds", "WHERE Age > 3", "Those of at least three years", "WHERE Age >= 3"),
    ("bounds", "WHERE Age < 3", "Those of no more than 3 years", "WHERE Age <= 3"),
    ("bounds", "WHERE Age >= 3", "Those of more than 3 years", "WHERE Age > 3"),
    ("bounds", "WHERE Age > 20", "Those younger than 20", "WHERE Age < 20"),
    ("bounds", f"WHERE pay < {AVERAGE}", "Those dearer than the average", f"WHERE pay > {AVERAGE}"),
    ("bounds", f"WHERE pay > {AVERAGE}", "Those paid below average", f"WHERE pay < {AVERAGE}"),
    ("bounds", "WHERE Age > 30 OR Age <= 20", "Older than 30 or younger than 20", "WHERE Age > 30 OR Age < 20"),
    ("bounds", "GROUP BY name HAVING COUNT(*) > 2", "At least two times?", "GROUP BY name HAVING COUNT(*) >= 2"),
    ("bounds", "WHERE Age = 25", "Those aged 25", None),
    ("bounds", "WHERE Age = 25 OR wins = 25", "Those aged 25 or older", None),  # which of the two?
    ("bounds", "WHERE Age = 25", "More than 25 singers who are younger than 25", None),
    ("bounds", "WHERE NOT Age > 25", "Those of at least 25 years", None),  # the rest is meant
    ("bounds", "WHERE Age > (SELECT 25)", "Those of at least 25 years", None),
    ("bounds", "WHERE Age IN (25)", "Those of at least 25 years", None),
    ("bounds", "WHERE Age + 1 > 25", "Those of at least 25 years", None),
    ("bounds", f"WHERE pay < {AVERAGE}", "Those not dearer than the average", None),
    ("bounds", f"WHERE pay < {AVERAGE}", "Dearer than the average, older than average, below average", None),
    # No column has two values at once.
    (
        "intersections",
        "WHERE name = 'a' AND Name = 'b' AND Age > 2",
        "",
        "WHERE name = 'a' AND Age > 2 INTERSECT SELECT name FROM singer WHERE Name = 'b' AND Age > 2",
    ),
    ("intersections", "WHERE name = 'a' AND Age = 3", "", None),
    ("intersections", "WHERE name = 'a' AND name = 'a'", "", None),
    ("intersections", "WHERE name = 'a' OR name = 'b'", "", None),
    ("intersections", "WHERE name = 'a' AND name = other", "", None),
    ("intersections", "WHERE name = 'a' AND name = 'b' AND name = 'c'", "", None),
    ("intersections", "WHERE name = 'a' AND name = 'b' ORDER BY Age LIMIT 1", "", None),
]
HOTEL_CASES: list[Case] = [
    # What is asked for is added up where a column holds its number, and rows are counted everywhere else.
    ("counted", "SELECT COUNT(*) FROM room", BEDS, "SELECT SUM(Beds) FROM room"),
    ("counted", "SELECT COUNT(decor) FROM room WHERE decor = 'x'", BEDS, "SELECT SUM(Beds) FROM room WHERE decor = 'x'"),
    (
        "counted",
        "SELECT COUNT(*) FROM room AS r JOIN hotel ON r.hotel = hotel.id",
        BEDS,
        "SELECT SUM(r.Beds) FROM room AS r JOIN hotel ON r.hotel = hotel.id",
    ),
    ("counted", BY_DECOR.format("COUNT(*) DESC LIMIT 1"), MOST_BEDS, BY_DECOR.format("SUM(Beds) DESC LIMIT 1")),
    ("counted", BY_DECOR.format("COUNT(*) DESC LIMIT 1"), "Which decor has the most rooms?", None),
    ("counted", "SELECT decor FROM room ORDER BY COUNT(*) DESC LIMIT 1", MOST_BEDS, None),
    ("counted", "SELECT COUNT(*) FROM room", "How many rooms are there?", None),
    ("counted", "SELECT COUNT(*) FROM hotel", BEDS, None),  # without the table that has beds
    ("counted", "SELECT COUNT(*) FROM room WHERE Beds > 1", BEDS, None),  # the beds have been used
    ("counted", "SELECT decor, COUNT(*) FROM room GROUP BY decor", BEDS, None),
    ("counted", "SELECT COUNT(*), COUNT(decor) FROM room", BEDS, None),
    ("counted", "SELECT COUNT(*) FROM room, hotel", "How many beds and what number of stars?", None),
    ("direction", "SELECT id FROM hotel ORDER BY opened_on DESC LIMIT 1", "Our oldest hotel?",
     "SELECT id FROM hotel ORDER BY opened_on LIMIT 1"),  # a column of dates is known by its type
    ("dates", "SELECT id FROM hotel WHERE stars = 2019", "", None),
    ("dates", "SELECT id FROM hotel WHERE opened_on > 201", "", None),  # no year
    ("dates", "SELECT id FROM hotel WHERE opened_on = '2019-01-01'", "", None),
    ("dates", "SELECT id FROM hotel WHERE id = '2019'", "", None),
]  # fmt: skip
LITERALS: list[tuple[str, list[ValueMatch], str | None]] = [
    (
        "SELECT COUNT(*) FROM hero WHERE name = 'DC Comics'",
        [DC],
        f"SELECT COUNT(*) FROM {JOINED} WHERE publisher.title = 'DC Comics'",
    ),
    ("SELECT id FROM hero WHERE id = 'Bo'", [BO], "SELECT id FROM hero WHERE name = 'Bo'"),
    ("SELECT id FROM hero WHERE name = 'bo'", [BO], "SELECT id FROM hero WHERE name = 'Bo'"),
    ("SELECT id FROM hero WHERE name = 'Bo'", [BO, DC], None),  # it is where it belongs
    ("SELECT id FROM hero WHERE id = 'Bo'", [BO, found("hero", "alias", "Bo")], None),  # two ways
    (
        f"SELECT hero.id FROM {JOINED} WHERE hero.name = 'Bo'",
        [found("hero", "alias", "Bo"), found("publisher", "title", "Bo")],  # the nearer one
        f"SELECT hero.id FROM {JOINED} WHERE hero.alias = 'Bo'",
    ),
    ("SELECT id FROM hero WHERE name = 'Up'", [found("movie", "title", "Up")], None),  # nothing joins it
    ("SELECT id FROM hero WHERE name = 'Bo'", [found("hero", "alias", "Bo", 0.5)], None),  # perhaps not meant
]
MEMBER = Table("member", (Column("name", "TEXT"), Column("sex", "TEXT"), Column("club", "TEXT")))
MEMBERS = Schema((MEMBER, Table("club", (Column("id", "TEXT"), Column("sex", "TEXT")))), "sqlite")
FEMALE, MALE = (ValueMatch("member", "sex", code, word, 0.9) for code, word in (("F", "female"), ("M", "male")))
CLUBS = "member AS m JOIN club ON m.club = club.id"
GENDERS: list[tuple[str, list[ValueMatch], str | None]] = [
    ("SELECT name FROM member", [FEMALE], "SELECT name FROM member WHERE sex = 'F'"),
    (
        "SELECT name FROM member WHERE club = 'a'",
        [FEMALE],
        "SELECT name FROM member WHERE club = 'a' AND sex = 'F'",
    ),
    (f"SELECT m.name FROM {CLUBS}", [FEMALE], f"SELECT m.name FROM {CLUBS} WHERE m.sex = 'F'"),
    ("SELECT name FROM member", [], None),
    ("SELECT name FROM member", [found("member", "club", "F")], None),  # no word for a gender
    ("SELECT name FROM member", [FEMALE, MALE], None),
    ("SELECT id FROM club", [FEMALE], None),  # another table's
    ("SELECT name, sex FROM member", [FEMALE], None),
    ("SELECT name FROM member EXCEPT SELECT name FROM member", [FEMALE], None),
    ("SELECT name FROM member WHERE name IN (SELECT id FROM club)", [FEMALE], None),
]
STORE = Table("store", (Column("id", "INTEGER", primary_key=True), Column("name", "TEXT"), Column("city", "TEXT")))
CLERK = Table(
    "clerk",
    (Column("id", "INTEGER", primary_key=True), Column("boss", "INTEGER"), Column("store", "INTEGER")),
    (ForeignKey(("store",), "store", ("id",)),),
)
SALE = Table("sale", (Column("clerk", "INTEGER"), Column("day", "DATE")), (ForeignKey(("clerk",), "clerk", ("id",)),))
STORES = Schema((STORE, CLERK, SALE), "sqlite")
CLERKS = "FROM clerk JOIN store ON clerk.store = store.id"
SALES = "FROM sale JOIN clerk ON sale.clerk = clerk.id JOIN store ON clerk.store = store.id"
GROUPS: list[tuple[str, str | None]] = [
    (
        f"SELECT store.name {CLERKS} GROUP BY clerk.boss ORDER BY COUNT(*) DESC LIMIT 1",
        f"SELECT store.name {CLERKS} GROUP BY store.id ORDER BY COUNT(*) DESC LIMIT 1",
    ),
    (f"SELECT store.name, COUNT(*) {CLERKS} GROUP BY clerk.store", None),  # the key of one row
    (f"SELECT store.name, COUNT(*) {CLERKS} GROUP BY store.city", None),  # a key of the same table
    (f"SELECT clerk.boss, store.name, COUNT(*) {CLERKS} GROUP BY clerk.boss", None),  # one that is shown itself
    (f"SELECT store.name, COUNT(*) {CLERKS} GROUP BY clerk.id", None),
    (f"SELECT COUNT(*) {CLERKS} GROUP BY clerk.boss", None),
    (f"SELECT store.name, COUNT(*) {SALES} GROUP BY sale.clerk", None),  # along two foreign keys
    ("SELECT store.name, COUNT(*) FROM clerk, store WHERE clerk.store = store.id GROUP BY clerk.store", None),
    ("SELECT name FROM store WHERE id IN (SELECT store FROM clerk GROUP BY store.city)", None),
    ("SELECT store.name FROM nowhere", None),
]
SPELLINGS: list[tuple[str, str | None]] = [
    ("SELECT aLBUMS.title FROM aLBUMS", "SELECT albums.Title FROM albums"),
    ('SELECT "ALBUM_ID" FROM "order lines"', 'SELECT "album_id" FROM "Order Lines"'),
    ("SELECT a.TITLE FROM albums AS a", "SELECT a.Title FROM albums AS a"),
    ("SELECT Title AS TITLE FROM albums", None),  # a name that the statement makes
    ("SELECT Title FROM albums WHERE Title = 'ALBUMS'", None),
    ("SELECT MadeUp FROM albums", None),
]


def check(rule: str, sql: str, schema: Schema, context: QuestionContext, then: str | None) -> None:
    """The rule makes `then` of the SQL, and nothing more of that."""
    (own,) = (each for each in RULES if each.name == rule and each.stage == "sql")
    assert rewritten(sql, schema, context, [own]) == then
    assert then is None or rewritten(then, schema, context, [own]) is None


@pytest.mark.parametrize(("rule", "clause", "question", "then"), WORDS)
def test_rules_for_clauses(rule: str, clause: str, question: str, then: str | None) -> None:
    start = "SELECT name FROM singer "
    check(rule, start + clause, SINGERS, QuestionContext(question), start + then if then else None)


@pytest.mark.parametrize(("rule", "sql", "question", "then"), HOTEL_CASES)
def test_rules_for_what_a_schema_tells(rule: str, sql: str, question: str, then: str | None) -> None:
    check(rule, sql, HOTELS, QuestionContext(question), then)


@pytest.mark.parametrize(("sql", "values", "then"), LITERALS)
def test_a_literal_stands_at_the_column_that_holds_it(sql: str, values: list[ValueMatch], then: str | None) -> None:
    check("literals", sql, HEROES, QuestionContext("", tuple(values)), then)


@pytest.mark.parametrize(("sql", "values", "then"), GENDERS)
def test_a_gender_that_is_named_is_a_condition(sql: str, values: list[ValueMatch], then: str | None) -> None:
    check("genders", sql, MEMBERS, QuestionContext("", tuple(values)), then)


SPELT = (
    [ValueMatch("club", "town", text, "zurich", 1.0) for text in ("Zürich", "zürich", "ZÜRICH ")]
    + [ValueMatch("club", "town", "Bern", "Bern", 1.0), ValueMatch("club", "name", "zürich", "zurich", 1.0)]
)  # fmt: skip
ALL = "town IN ('Zürich', 'zürich', 'ZÜRICH ')"


@pytest.mark.parametrize(
    ("condition", "then"),
    [
        ("town = 'zürich'", ALL),
        ("town = 'Zurich'", ALL),
        ("town <> 'Zürich'", f"NOT {ALL}"),
        ("town IN ('Bern', 'Zürich')", "town IN ('Bern', 'Zürich', 'zürich', 'ZÜRICH ')"),
        ("town = 'Bern'", None),
        ("name = 'Zürich'", "name = 'zürich'"),
        ("town = name", None),
        ("town IN (SELECT 'zürich')", None),
        ("town > 'zürich'", None),
    ],
)
def test_every_spelling_of_a_value_is_compared(condition: str, then: str | None) -> None:
    """One of several spellings was taken for the value: 1 member lived in Zürich, of 3."""
    schema = Schema((Table("club", (Column("name", "TEXT"), Column("town", "TEXT"))),), "sqlite")
    start = "SELECT COUNT(*) FROM club WHERE "
    check("literals", start + condition, schema, QuestionContext("?", tuple(SPELT)), then and start + then)


@pytest.mark.parametrize(("sql", "then"), GROUPS)
def test_groups_fix_what_is_shown(sql: str, then: str | None) -> None:
    check("grouped", sql, STORES, QuestionContext(""), then)


def test_without_a_key_groups_are_of_what_joins_their_table() -> None:
    tables = (Table("store", (Column("id", "BIGINT"), Column("name", "VARCHAR"))), Table("clerk", CLERK.columns[1:]))
    sql, schema = f"SELECT ANY_VALUE(store.name), COUNT(*) {CLERKS} GROUP BY ", Schema(tables, "duckdb")
    check("grouped", sql + "clerk.boss", schema, QuestionContext(""), sql + "store.id")


@pytest.mark.parametrize(("sql", "then"), SPELLINGS)
def test_names_are_spelled_as_the_schema_does(sql: str, then: str | None) -> None:
    check("spelling", sql, Schema(ALBUMS, "duckdb"), QuestionContext(""), then)
    check("spelling", sql, Schema(ALBUMS, "postgresql"), QuestionContext(""), None)  # quotes keep capitals there


def test_which_beds_have_the_most_is_open_where_two_columns_are_called_alike() -> None:
    check("counted", BY_DECOR.format("COUNT(*) DESC LIMIT 1"), EXTRA_BEDS, QuestionContext(MOST_BEDS), None)


def test_aggregates_of_two_values_have_the_rows_of_either() -> None:
    sql, then = "SELECT SUM(age) FROM pet WHERE {}", "kind IN ('cat', 'dog') AND age < 4"
    both = sql.format("age < 4 AND kind = 'cat' AND kind = 'dog'")
    check("intersections", both, Schema((), "sqlite"), QuestionContext(""), sql.format(then))


def test_duckdb_keeps_its_place_for_nulls() -> None:
    schema, sql = Schema((), "duckdb"), "SELECT name FROM singer ORDER BY age LIMIT 1"
    turned = "SELECT name FROM singer ORDER BY age DESC LIMIT 1"
    check("direction", sql, schema, QuestionContext("Who has the highest age?"), turned)
    check("direction", turned, schema, QuestionContext("Who has the lowest age?"), sql)


@pytest.mark.parametrize("sql", ["SELECT FROM WHERE", "DELETE FROM hero WHERE id = NULL", "SELECT 1; SELECT 2", ""])
def test_what_is_not_one_query_stays(sql: str) -> None:
    assert rewritten(sql, HEROES, QuestionContext("Who?"), rules_of("sql", QuestionContext("Who?"))) is None


def test_a_rule_that_gives_up_leaves_no_trace() -> None:
    """Guards against a join that was added for a literal which then stays: two columns of the joined table hold it."""
    makers = Table("maker", (Column("id", "INTEGER", True), Column("title", "TEXT"), Column("owner", "TEXT")))
    hero = Table("hero", (Column("name", "TEXT"), Column("maker_id", "INTEGER")),
                 (ForeignKey(("maker_id",), "maker", ("id",)),))  # fmt: skip
    values = (found("maker", "title", "DC"), found("maker", "owner", "DC"))
    context, sql = QuestionContext("", values), "SELECT name FROM hero WHERE NAME = 'DC'"
    then = rewritten(sql, Schema((hero, makers), "sqlite"), context, rules_of("sql", context))
    assert then == "SELECT name FROM hero WHERE name = 'DC'"


def test_every_rule_says_what_holds_after_it() -> None:
    assert all(rule.doc.endswith(".") for rule in RULES) and len(RULE_NAMES) <= 15
    off = QuestionContext("Who?", without=RULE_NAMES)
    assert not any(rules_of(stage, off) for stage in ("values", "constraints", "sql"))


def test_rules_leave_the_tree_that_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards against a rule that rewrites what the next caller still holds."""
    tree = parse_one("SELECT name FROM hero WHERE name = NULL")
    monkeypatch.setattr("tools.repair.rules.parse_or_nothing", lambda sql, dialect: [tree])
    context = QuestionContext("")
    assert rewritten("", HEROES, context, rules_of("sql", context)) is not None
    assert tree.find(exp.EQ) is not None
