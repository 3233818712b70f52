"""Which tables and columns exist for those who ask. `RestrictedDatabase` (`tools/databases/open_database.py`) applies it.

`Visibility.seen` is the schema that is left, and `narrowed` holds a statement to it: a table with hidden columns is read
through a subquery that names the others. What is hidden is therefore not there, whatever a query says: `*`, a join by common
columns, a row taken as one value. A hidden name gets the answer of a name that never existed: the guard or the engine refuses
it as unknown.

What is hidden of a table is hidden of its partitions, and of the tables that it is a part of, because they have the same rows.
What is computed from something hidden is hidden with it: a generated column, and a view, unless `tables` names that view. A
view that is named shows what its author selected. The second lock is next to each engine: `SQLiteReads`, `DuckDBReads`,
`PostgreSQLReads`.

A table with a rule, a condition on its rows, is read through a subquery with that condition and with a LIMIT, larger than any
table, as a fence: no engine moves a condition of the query past that, to be tried on rows that may not be seen. A view that
reads such a table needs a rule of its own. `outside_rules` looks at the statement that runs a second time, at its text alone.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from sqlglot import exp
from sqlglot.errors import SqlglotError

from tools.guard.allowed import refused, unknown_table
from tools.guard.canonicalize import Respelt, edited
from tools.guard.guard import ApprovedQuery
from tools.result import OpenError, QueryError
from tools.schema import Schema, Table, words_of

RULED = ("duckdb", "sqlite", "postgres", "mysql")
"""Dialects of which it is known that no condition is moved past a LIMIT."""
_FENCE = "9223372036854775807"


@dataclass(frozen=True, slots=True)
class Visibility:
    """`tables`: the only ones that may be read; none given, all. `hidden`: tables, and columns as `table.column`. `rules`:
    tables and the conditions, in the database's SQL, that their rows must meet to be seen."""

    tables: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()
    rules: tuple[tuple[str, str], ...] = ()

    def seen(self, schema: Schema) -> Schema:
        """What is left of the schema. Raises OpenError for a name that is not in it: a slip must not show what it hides."""
        for name in self.tables:
            if schema.table(name) is None:
                raise OpenError(f"there is no table {name} to show; there are: {_names(schema)}")
        for name in self.hidden:
            if not _is_in(schema, name):
                raise OpenError(f"there is nothing called {name} to hide; write table or table.column")
        ruled = tuple(name for name, _ in self.rules)
        if ruled and schema.dialect not in RULED:
            raise OpenError(f"rules are not enforced for {schema.dialect}; they are for {', '.join(RULED)}")
        for name in ruled:
            if schema.table(name) is None:
                raise OpenError(f"there is no table {name} for a rule; there are: {_names(schema)}")
        if several := next((name for name in ruled if [*map(str.casefold, ruled)].count(name.casefold()) > 1), None):
            raise OpenError(f"{several} has two rules; join them with AND")
        whole = replace(self, rules=_with_parts(self.rules, schema), hidden=_with_relatives(self.hidden, schema))
        return whole._seen(schema)

    def _seen(self, schema: Schema) -> Schema:
        touched = self._touched(schema)
        tables = [
            self._table(table) for table in schema.tables if self._shows(table.name) and table.name not in touched
        ]
        kept = Schema(tuple(table for table in tables if table.columns), schema.dialect, schema.own_types)
        if not kept.tables:
            raise OpenError("every table is hidden: nothing is left to ask")
        return replace(kept, tables=tuple(_with_whole_keys(table, kept) for table in kept.tables))

    def _shows(self, table: str) -> bool:
        return (not self.tables or _among(table, self.tables)) and not _among(table, self.hidden)

    def _touched(self, schema: Schema) -> set[str]:
        """The views, not named by `tables`, whose SQL has a name that is hidden, or of which a column is; and those that read a
        table with a rule and have none. Raises OpenError for one of these that `tables` names."""
        secret = {table for name in self.hidden for table in _tables_of(schema, name)}
        ruled = {table for name, _ in self.rules for table in _tables_of(schema, name)}
        views = {table.name: table.made_of for table in schema.tables if table.made_of}
        in_part = _that_mention(ruled, {name: words for name, words in views.items() if name not in ruled})
        if named := next((name for name in in_part if _among(name, self.tables)), None):
            raise OpenError(f"the view {named} reads a table with a rule; write a rule for the view as well")
        return in_part | _that_mention(
            secret, {name: words for name, words in views.items() if not _among(name, self.tables)}
        )

    def _table(self, table: Table) -> Table:
        """The table without what is hidden and what is computed from it."""
        gone = {each.name for each in table.columns if _among(f"{table.name}.{each.name}", self.hidden)}
        while more := {each.name for each in table.columns if each.name not in gone and _mentions(each.made_of, gone)}:
            gone |= more
        left = replace(table, columns=tuple(each for each in table.columns if each.name not in gone))
        rule = next((rule for name, rule in self.rules if _among(name, (table.name, ".".join(table.path)))), "")
        if not rule:
            return left
        blank = tuple(replace(each, samples=(), choices=()) for each in left.columns)
        return replace(left, rule=rule, row_count=None, columns=blank)


def rules_of(given: Sequence[str], values: Mapping[str, str], dialect: str) -> tuple[tuple[str, str], ...]:
    """Rules from `table: condition` texts, whose `:names` stand for the values. Raises OpenError."""
    found, used = [], set[str]()
    for text in given:
        table, colon, rest = text.partition(":")
        if not colon or not table.strip() or not rest.strip():
            raise OpenError(f"write a rule as 'table: condition', not {text!r}")
        try:
            condition = exp.condition(rest, dialect=dialect)
        except SqlglotError:
            raise OpenError(f"the rule for {table.strip()} is no condition: {rest.strip()}") from None
        if condition.find(exp.Query, exp.AggFunc, exp.Window, exp.Table, exp.Star):
            raise OpenError(f"the rule for {table.strip()} may only compare columns of one row")
        if any(column.table for column in condition.find_all(exp.Column)):
            raise OpenError(f"the rule for {table.strip()} names its own columns, without the table before them")
        for place in list(condition.find_all(exp.Placeholder)):
            if place.name not in values:
                raise OpenError(f"the rule for {table.strip()} needs a value: --rule-value {place.name or 'NAME'}=...")
            used.add(place.name)
            place.replace(exp.Literal.string(values[place.name]))
        spelt = condition.sql(dialect, comments=False)
        if exp.condition(spelt, dialect=dialect) != condition:
            raise OpenError(f"the rule for {table.strip()} cannot be written for {dialect}; use plainer values")
        found.append((table.strip(), spelt))
    if unused := sorted(values.keys() - used):
        raise OpenError(f"no rule has :{unused[0]}, for which there is a value")
    return tuple(found)


def outside_rules(tree: exp.Expr, seen: Schema) -> QueryError | None:
    """Why the statement that is to run may not: it reads a table that has a rule without the subquery that enforces that."""
    ruled = {table.name.rpartition(".")[2].casefold() for table in seen.tables if table.rule}
    for node in tree.walk() if ruled else ():
        if isinstance(node, exp.In) and isinstance(field := node.args.get("field"), exp.Expr):
            named = {each.name.casefold() for each in field.find_all(exp.Identifier)}
        else:
            named = {node.alias_or_name.casefold() if isinstance(node, exp.CTE) else node.name.casefold()}
        if not isinstance(node, exp.In | exp.CTE | exp.Table) or not named & ruled:
            continue
        table = _table_of(node, seen) if isinstance(node, exp.Table) else None
        has_none = table is not None and not table.rule and isinstance(node, exp.Table) and node.db
        if not has_none and (table is None or not _is_fenced(node, table.rule, seen.dialect)):
            return refused(f"the rule of {min(named & ruled)} does not hold here")
    return None


def _is_fenced(table: exp.Expr, rule: str, dialect: str) -> bool:
    """Whether the table stands alone in a subquery with the rule as its condition, and with the fence."""
    select = table.parent.parent if isinstance(table.parent, exp.From) else None
    if not rule or not isinstance(select, exp.Select) or not isinstance(select.parent, exp.Subquery):
        return False
    parts = {name for name, part in select.args.items() if part}
    where, limit = select.args.get("where"), select.args.get("limit")
    return (
        parts <= {"expressions", "from_", "where", "limit"}
        and {name for name, part in table.args.items() if part} <= {"this", "db", "catalog"}
        and where is not None
        and where.this.unnest() == exp.condition(rule, dialect=dialect).unnest()
        and limit is not None
        and limit.expression == exp.Literal.number(_FENCE)
    )


def narrowed(statement: ApprovedQuery, whole: Schema, seen: Schema) -> Respelt | QueryError:
    """The judged statement, with each table that has hidden columns read through a subquery without them."""
    withs = {each.alias.casefold() for each in statement.tree.find_all(exp.CTE)}
    for name in withs:
        if whole.table(name) is not None:
            return QueryError("refused", f"refused: WITH may not name {name}, for a table is called so", name)
    edits = []
    for found in _reads(statement.tree, withs, seen.dialect):
        table = _table_of(found, seen) if isinstance(found, exp.Table) else None
        if not isinstance(found, exp.Table) or table is None:
            return unknown_table(found, seen)
        original = whole.table(table.name)
        if original is None or len(original.columns) > len(table.columns) or table.rule:
            start, end = found.parts[0].meta["start"], found.parts[-1].meta["end"] + 1
            edits.append((start, end, _subquery(statement.text[start:end], found, table, seen.dialect)))
    return edited(statement.spelling, sorted(edits))


def _reads(tree: exp.Expr, withs: set[str], dialect: str) -> Iterator[exp.Expr]:
    """What the statement reads besides what it names itself. SQLite reads a table in `x IN people`, too."""
    for node in tree.walk():
        is_named_here = isinstance(node, exp.Table) and not node.db and node.name.casefold() in withs
        if isinstance(node, exp.Table) and isinstance(node.this, exp.Identifier) and not is_named_here:
            yield node
        if isinstance(node, exp.In) and node.args.get("field") and dialect == "sqlite":
            yield node.args["field"]


def _table_of(table: exp.Table, schema: Schema) -> Table | None:
    qualified = f"{table.db}.{table.name}" if table.db else table.name
    return schema.table(qualified) or (schema.table(table.name) if table.db in ("main", "public", "dbo") else None)


def _subquery(name: str, found: exp.Table, table: Table, dialect: str) -> str:
    columns = ", ".join(exp.to_identifier(each.name, quoted=True).sql(dialect) for each in table.columns)
    alias = "" if found.alias else " AS " + exp.to_identifier(found.name, quoted=True).sql(dialect)
    return f"(SELECT {columns} FROM {name}{rows_of(table.rule)}){alias}"


def rows_of(rule: str) -> str:
    """What follows a table's name in the subquery of its rule; nothing where there is none."""
    return f" WHERE ({rule}) LIMIT {_FENCE}" if rule else ""


def _with_parts(rules: tuple[tuple[str, str], ...], schema: Schema) -> tuple[tuple[str, str], ...]:
    """The rules, and those of tables that share rows with theirs and have none of their own."""
    found = list(rules)
    for name, rule in rules:
        own = {each.casefold() for each, _ in found}
        found += [(other, rule) for other in _with_relatives((name,), schema)[1:] if other.casefold() not in own]
    return tuple(found)


def _that_mention(names: set[str], views: Mapping[str, frozenset[str]]) -> set[str]:
    """The views whose SQL has one of the names in it, or that of such a view."""
    touched: set[str] = set()
    while more := {view for view in views.keys() - touched if _mentions(views[view], names | touched)}:
        touched |= more
    return touched


def _with_relatives(hidden: tuple[str, ...], schema: Schema) -> tuple[str, ...]:
    """The hidden names, and what they name in tables that share rows with theirs, in either direction."""
    found = list(hidden)
    for name in found:  # which grows meanwhile
        table = schema.table(name) or schema.table(name.rpartition(".")[0])
        column = "" if schema.table(name) else "." + name.rpartition(".")[2]
        parents = _folded(table.parents) if table else set()
        for other in schema.tables:
            is_relative = other.name.casefold() in parents or (
                table and table.name.casefold() in _folded(other.parents)
            )
            if is_relative and _is_in(schema, other.name + column) and not _among(other.name + column, tuple(found)):
                found.append(other.name + column)
    return tuple(found)


def _folded(names: tuple[str, ...]) -> set[str]:
    return {name.casefold() for name in names}


def _tables_of(schema: Schema, name: str) -> list[str]:
    """The table that `name` is, or is a column of."""
    found = schema.table(name) or schema.table(name.rpartition(".")[0])
    return [found.name] if found else []


def _mentions(made_of: frozenset[str], names: set[str]) -> bool:
    """Whether the words have one of these names, without its schema, in them."""
    return any(words_of(name.rpartition(".")[2]) <= made_of for name in names)


def _among(name: str, names: tuple[str, ...]) -> bool:
    return name.casefold() in _folded(names)


def _is_in(schema: Schema, name: str) -> bool:
    table, _, column = name.rpartition(".")
    found = schema.table(table)
    return schema.table(name) is not None or (found is not None and found.column(column) is not None)


def _with_whole_keys(table: Table, schema: Schema) -> Table:
    """Without the foreign keys of which an end is hidden."""
    keys = []
    for key in table.foreign_keys:
        target = schema.table(key.ref_table)
        if target and all(map(table.column, key.columns)) and all(map(target.column, key.ref_columns)):
            keys.append(key)
    return replace(table, foreign_keys=tuple(keys))


def _names(schema: Schema) -> str:
    return ", ".join(table.name for table in schema.tables)
