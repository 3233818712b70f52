"""Templates over foreign keys: without, with, both, either, averages, and most or fewest by count."""

from collections.abc import Iterator

from training.templates.labels import Asked, Author, Key, literal, q
from training.variants.mistakes import plural, with_article

_WITHOUT = (
    "Which {many} have no {children}? Show their {name}.",
    "What are the {names} of the {many} that do not have any {children}?",
    "List the {name} of every {one} without {a_child}.",
    "Find the {names} of {many} that have never had {a_child}.",
    "Show the {names} of {many} with no {children}.",
    "Give me the {names} of all {many} that have no {child} at all.",
)
_COUNT_WITHOUT = (
    "How many {many} have no {children}?",
    "How many {many} do not have {a_child}?",
    "Count the {many} without any {child}.",
    "What is the number of {many} that have no {children}?",
)
_WITH = (
    "Which {many} have at least one {child}? Show their {name}.",
    "What are the {names} of the {many} that have {a_child}?",
    "List the {name} of every {one} that has some {child}.",
    "Find the {names} of {many} with any {children}.",
)
_COUNT_WITH = (
    "How many {many} have at least one {child}?",
    "How many {many} have {a_child}?",
    "Count the {many} that have any {children}.",
    "How many different {many} have {children}?",
)
_AVERAGE = {
    "IN": (
        "What is the average {measure} of the {many} that have {a_child}?",
        "Find the average {measure} of {many} with at least one {child}.",
        "For {many} that have any {children}, what is the mean {measure}?",
    ),
    "NOT IN": (
        "What is the average {measure} of the {many} that have no {children}?",
        "Find the average {measure} of {many} without {a_child}.",
        "For {many} that do not have any {children}, what is the mean {measure}?",
    ),
}
_MOST = {
    "DESC": (
        "Which {one} has the most {children}? Show its {name}.",
        "What is the {name} of the {one} with the largest number of {children}?",
        "Find the {name} of the {one} that has the most {children}.",
        "Show the {name} of the {one} with the highest count of {children}.",
    ),
    "ASC": (
        "Which {one} has the fewest {children}, but at least one? Show its {name}.",
        "Of the {many} that have {children}, which has the fewest? Give the {name}.",
        "Among {many} with {a_child}, what is the {name} of the one with the smallest number of {children}?",
    ),
}
_EACH = (
    "How many {children} does each {one} have? Show the {name} and the number.",
    "For each {one}, show its {name} and the number of its {children}.",
    "List the {name} of each {one} that has {children}, with how many it has.",
    "Show the {names} of {many} and how many {children} each of them has.",
)
_AT_LEAST = (
    "Which {many} have at least {n} {children}? Show their {name}.",
    "What are the {names} of the {many} with {n} or more {children}?",
    "Find the {name} of every {one} that has {n} or more {children}.",
    "List the {names} of {many} having at least {n} {children}.",
)
_ABOVE = {
    ">": (
        "Which {many} have {a_measure} above the average? Show their {name}.",
        "List the {names} of {many} whose {measure} is higher than the average.",
        "Find the {name} of each {one} with more than the average {measure}.",
    ),
    "<": (
        "Which {many} have {a_measure} below the average? Show their {name}.",
        "List the {names} of {many} whose {measure} is lower than the average.",
        "Find the {name} of each {one} with less than the average {measure}.",
    ),
}
_PAIRS = {
    "INTERSECT": (
        "Which {many} have both {a_child} with {label} {one_value} and one with {label} {other_value}? Show the {name}.",
        "Find the {names} of {many} with {children} of {label} {one_value} as well as {children} of {label} {other_value}.",
        "What are the {names} of the {many} that have {children} with {label} {one_value} and also with {label} {other_value}?",
    ),
    "EXCEPT": (
        "Which {many} have {a_child} whose {label} is {one_value}, but none whose {label} is {other_value}? Show the {name}.",
        "Find the {names} of {many} with {children} of {label} {one_value} but not of {label} {other_value}.",
        "Show the {names} of the {many} that have {children} with {label} {one_value} and none with {label} {other_value}.",
    ),
    "OR": (
        "Which {many} have {a_child} whose {label} is either {one_value} or {other_value}? Show the different {names}.",
        "What are the different {names} of {many} with {children} of {label} {one_value} or {other_value}?",
        "Find the distinct {names} of the {many} that have {a_child} whose {label} is {one_value} or {other_value}.",
    ),
}
_NONE_SUCH = (
    "Which {many} have no {child} whose {label} is {one_value}? Show their {name}.",
    "List the {names} of {many} that do not have any {child} with {label} {one_value}.",
    "Find the {names} of the {many} without {a_child} whose {label} is {one_value}.",
)


def sets(author: Author) -> Iterator[Asked]:
    """Questions over each foreign key, and on the averages within each table."""
    for key in author.labels.references(named=False):
        if not author.labels.is_noun(author.labels.other_side(key) or key.child) or not author.labels.is_noun(
            key.parent
        ):
            continue
        yield from _members(author, key)
        yield from _averages(author, key)
        yield from _by_count(author, key)
        yield from _by_value(author, key)
    yield from _above_average(author)


def _parts(author: Author, key: Key) -> dict[str, str]:
    """The words for a foreign key. A table that only links two is called by the other one."""
    labels, other = author.labels, author.labels.other_side(key)
    child, name = labels.one(other or key.child), labels.name(key.parent)
    label = labels.column(key.parent, name.name) if name else ""
    return {
        "one": labels.one(key.parent),
        "many": labels.many(key.parent),
        "child": child,
        "children": labels.many(other or key.child),
        "a_child": with_article(child),
        "name": label,
        "names": _many(label),
    }


def _many(label: str) -> str:
    return plural(label) if label else ""


def _members(author: Author, key: Key) -> Iterator[Asked]:
    parts, name = _parts(author, key), author.labels.name(key.parent)
    for operator, listed, counted in (("NOT IN", _WITHOUT, _COUNT_WITHOUT), ("IN", _WITH, _COUNT_WITH)):
        source = f"FROM {q(key.parent.name)} WHERE {_member(key, operator)}"
        if name is not None:
            yield Asked(author.worded(listed, **parts), f"SELECT {q(name.name)} {source}", key.parent.name)
        yield Asked(author.worded(counted, **parts), f"SELECT COUNT(*) {source}")


def _member(key: Key, operator: str, where: str = "") -> str:
    return f"{q(key.id)} {operator} (SELECT {q(key.column)} FROM {q(key.child.name)}{where})"


def _averages(author: Author, key: Key) -> Iterator[Asked]:
    for measure in author.labels.measures(key.parent)[:2]:
        operator = author.rng.choice(tuple(_AVERAGE))
        text = author.worded(
            _AVERAGE[operator], **_parts(author, key), measure=author.labels.column(key.parent, measure.name)
        )
        yield Asked(text, f"SELECT AVG({q(measure.name)}) FROM {q(key.parent.name)} WHERE {_member(key, operator)}")


def _joined(key: Key) -> str:
    parent, child = q(key.parent.name), q(key.child.name)
    return f"{parent} JOIN {child} ON {child}.{q(key.column)} = {parent}.{q(key.id)}"


def _by_count(author: Author, key: Key) -> Iterator[Asked]:
    name = author.labels.name(key.parent)
    if name is None:
        return
    parts = _parts(author, key)
    shown, grouped = f"{q(key.parent.name)}.{q(name.name)}", f"GROUP BY {q(key.parent.name)}.{q(key.id)}"
    yield Asked(author.worded(_EACH, **parts), f"SELECT {shown}, COUNT(*) FROM {_joined(key)} {grouped}")
    counts = [row[0] for row in author.rows(f"SELECT COUNT(*) FROM {_joined(key)} {grouped} ORDER BY COUNT(*) DESC")]
    for direction, ends in (("DESC", counts[:2]), ("ASC", counts[-2:])):
        if len(ends) == 2 and ends[0] != ends[1]:
            order = f"ORDER BY COUNT(*) {direction} LIMIT 1"
            yield Asked(
                author.worded(_MOST[direction], **parts), f"SELECT {shown} FROM {_joined(key)} {grouped} {order}"
            )
    if counts and isinstance(counts[0], int) and counts[0] > 1:
        least = author.rng.randint(2, min(5, counts[0]))
        having = f"{grouped} HAVING COUNT(*) >= {least}"
        text = author.worded(_AT_LEAST, **parts, n=author.rng.choice((str(least), _NUMBERS[least])))
        yield Asked(text, f"SELECT {shown} FROM {_joined(key)} {having}", key.parent.name)


_NUMBERS = ("zero", "one", "two", "three", "four", "five")


def _by_value(author: Author, key: Key) -> Iterator[Asked]:
    """Conditions on the children: both values, one but not the other, either, none of that value."""
    name = author.labels.name(key.parent)
    columns = author.labels.texts(key.child)
    if name is None or not columns or author.labels.other_side(key) is not None:
        return
    for operator in (*_PAIRS, "none"):
        column = author.rng.choice(columns)
        values = author.values(key.child, column.name, 8)
        if len(values) < 2:
            continue
        one, other = author.rng.sample(values, 2)
        parts = {**_parts(author, key), "label": author.labels.column(key.child, column.name)}
        worded = {**parts, "one_value": str(one), "other_value": str(other)}
        sql = _set_query(key, name.name, column.name, operator, literal(one), literal(other))
        yield Asked(author.worded(_PAIRS.get(operator, _NONE_SUCH), **worded), sql, key.parent.name)


def _set_query(key: Key, name: str, column: str, operator: str, one: str, other: str) -> str:
    shown, tested = f"{q(key.parent.name)}.{q(name)}", f"{q(key.child.name)}.{q(column)}"
    if operator == "none":
        member = _member(key, "NOT IN", f" WHERE {q(column)} = {one}")
        return f"SELECT {q(name)} FROM {q(key.parent.name)} WHERE {member}"
    if operator == "OR":
        return f"SELECT DISTINCT {shown} FROM {_joined(key)} WHERE {tested} = {one} OR {tested} = {other}"
    half = f"SELECT {shown} FROM {_joined(key)} WHERE {tested} = "
    return f"{half}{one} {operator} {half}{other}"


def _above_average(author: Author) -> Iterator[Asked]:
    for table in author.tables:
        name = author.labels.name(table)
        for measure in author.labels.measures(table)[:3] if name else ():
            sign = author.rng.choice(tuple(_ABOVE))
            label, shown = (
                author.labels.column(table, measure.name),
                author.labels.column(table, name.name if name else ""),
            )
            words = {
                "one": author.labels.one(table),
                "many": author.labels.many(table),
                "name": shown,
                "names": _many(shown),
            }
            text = author.worded(_ABOVE[sign], **words, measure=label, a_measure=with_article(label))
            average = f"(SELECT AVG({q(measure.name)}) FROM {q(table.name)})"
            sql = f"SELECT {q(name.name if name else '')} FROM {q(table.name)} WHERE {q(measure.name)} {sign} {average}"
            yield Asked(text, sql, table.name)
