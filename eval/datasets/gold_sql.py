"""Rewrites gold SQL in the style that the model learns, and makes plans of it.

The style: keywords in capitals; names as the schema spells them; columns without a qualifier if their query has one source,
otherwise as table.column. There are no aliases except T1 and T2 if a table occurs twice. So the model can copy
`concert.singer_id = singer.singer_id` unchanged from the prompt's join line, and a constraint knows a column's table before
FROM is written, which it could not with T1.
"""

from collections.abc import Iterator

from sqlglot import exp
from sqlglot.errors import SqlglotError
from sqlglot.generators.sqlite import SQLiteGenerator

from agent.grammar.words import is_plain
from agent.prompts.slots import Plan, PlannedTable
from tools.schema import ColumnRef, Schema
from tools.sql.from_sqlite import quoted_strings
from tools.sql.scope import FromItem, common_table, enclosing, parse_quietly, sources


class GoldError(ValueError):
    """The SQL cannot be rewritten in the style; the message says why in one line."""


def normalise(sql: str, schema: Schema) -> exp.Query:
    """The tree of one SQLite query in the style. Raises GoldError."""
    tree = parse(sql, "sqlite")
    quoted_strings(tree, schema)
    _drop_needless_aliases(tree, schema)
    for join in tree.find_all(exp.Join):
        join.set("kind", None if join.kind in ("INNER", "OUTER") else join.args.get("kind"))
    for condition in tree.find_all(exp.EQ):
        _turn_to_join_line(condition, schema)
    return tree


def parse(sql: str, dialect: str) -> exp.Query:
    """The tree of one query. Raises GoldError."""
    try:
        statements = parse_quietly(sql.strip().rstrip(";"), dialect)
    except (SqlglotError, RecursionError) as error:
        raise GoldError(f"sqlglot cannot read it: {' '.join(str(error).split())[:120]}") from error
    if len(statements) != 1 or not isinstance(statements[0], exp.Query):
        raise GoldError("not one query")
    return statements[0]


def sql_text(tree: exp.Expr) -> str:
    """The tree as SQLite's SQL on one line, with `x NOT IN` and `x IS NOT NULL` as people write them."""
    return " ".join(_Negations(dialect="sqlite", comments=False).generate(tree).split("\n"))


class _Negations(SQLiteGenerator):
    """Writes `x NOT IN (...)`, where sqlglot would write `NOT x IN (...)`."""

    def not_sql(self, expression: exp.Not) -> str:
        inner = expression.this
        plain, left = self.sql(inner), self.sql(inner.this)
        if not isinstance(inner, exp.In | exp.Like | exp.ILike | exp.Between | exp.Is) or not plain.startswith(left):
            return f"NOT {plain}"
        rest = plain[len(left) :]
        return left + (rest.replace(" IS ", " IS NOT ", 1) if isinstance(inner, exp.Is) else f" NOT{rest}")


def identifier(name: str) -> exp.Identifier:
    """A name, quoted if either dialect needs it."""
    return exp.to_identifier(name, quoted=not (is_plain(name, "sqlite") and is_plain(name, "duckdb")))


def relations(select: exp.Select) -> list[exp.Expr]:
    """The entries of FROM and JOIN, in the order of `scope.sources`."""
    from_ = select.args.get("from_")
    return ([from_.this] if from_ else []) + [join.this for join in select.args.get("joins") or []]


def real_tables(tree: exp.Expr, schema: Schema) -> Iterator[tuple[exp.Table, str]]:
    """Each node that names a table of the schema, with the schema's spelling; common table expressions are left out."""
    for table in tree.find_all(exp.Table, bfs=False):
        found = schema.table(table.name) if common_table(table) is None else None
        if found is not None:
            yield table, found.name


def found(column: exp.Column, schema: Schema) -> tuple[exp.Select, FromItem] | None:
    """The query that a column's source belongs to, and the source: the innermost one that has the column."""
    qualifier, name = column.table.casefold(), column.name.casefold()
    for select in enclosing(column):
        for source in sources(select, schema):
            fits = source.alias.casefold() == qualifier if qualifier else name in source.columns
            if fits:
                return select, source
    return None


def place_of(column: exp.Column, schema: Schema) -> ColumnRef | None:
    """(table, column) as the schema spells them; None if it is not a table's column."""
    home = found(column, schema)
    table = home[1].table if home else None
    known = table.column(column.name) if table else None
    return (table.name, known.name) if table and known else None


def is_output(column: exp.Column) -> bool:
    """Whether the column is an unqualified name in ORDER BY, HAVING or GROUP BY that means an item of the SELECT list."""
    select = column.parent_select
    clause = column.find_ancestor(exp.Order, exp.Having, exp.Group)
    if column.table or clause is None or not isinstance(select, exp.Select):
        return False
    return column.name.casefold() in {item.alias.casefold() for item in select.expressions if item.alias}


def _drop_needless_aliases(tree: exp.Query, schema: Schema) -> None:
    names = _new_names(tree, schema)
    renamed = [(column, _spelling(column, schema, names)) for column in tree.find_all(exp.Column)]
    for column, (name, qualifier) in renamed:
        if name and not column.is_star:
            column.set("this", identifier(name))
        column.set("table", identifier(qualifier) if qualifier else None)
    for table, name in list(real_tables(tree, schema)):
        alias = names[id(table)]
        table.set("this", identifier(name))
        table.set("db", None)
        table.set("alias", exp.TableAlias(this=identifier(alias)) if alias != name else None)


def _new_names(tree: exp.Query, schema: Schema) -> dict[int, str]:
    """The name of each table in its query: its own, or T1, T2 if its own would be ambiguous."""
    tables = list(real_tables(tree, schema))
    places = [(name, id(table.parent_select)) for table, name in tables]
    correlated = any(_is_correlated(column, schema) for column in tree.find_all(exp.Column))
    twice = {name for name, select in places if places.count((name, select)) > 1}
    if correlated:
        twice |= {name for name, _ in places if sum(other == name for other, _ in places) > 1}
    names: dict[int, str] = {}
    for table, name in tables:
        count = sum(alias.startswith("T") and alias[1:].isdigit() for alias in names.values())
        names[id(table)] = f"T{count + 1}" if name in twice else name
    return names


def _is_correlated(column: exp.Column, schema: Schema) -> bool:
    home = found(column, schema)
    return home is not None and home[0] is not column.parent_select


def _spelling(column: exp.Column, schema: Schema, names: dict[int, str]) -> tuple[str, str]:
    """The column's name and qualifier in the style; an empty name stays as it is."""
    home = None if is_output(column) else found(column, schema)
    if home is None:
        return "", column.table
    select, source = home
    known = source.table.column(column.name) if source.table else None
    if not column.is_star and source.table and known is None:
        raise GoldError(f"{source.table.name} has no column {column.name}")
    entries = relations(select)
    if len(entries) == 1 and select is column.parent_select:
        return known.name if known else "", ""
    entry = next(e for e, s in zip(entries, sources(select, schema), strict=True) if s.alias == source.alias)
    return known.name if known else "", names.get(id(entry), source.alias)


def _turn_to_join_line(condition: exp.EQ, schema: Schema) -> None:
    """Order the two sides of a join condition as in the prompt's join line."""
    left, right = condition.this, condition.expression
    if not isinstance(left, exp.Column) or not isinstance(right, exp.Column):
        return
    ends = place_of(left, schema), place_of(right, schema)
    keys = {
        ((table.name, a), (key.ref_table, b))
        for table in schema.tables
        for key in table.foreign_keys
        for a, b in zip(key.columns, key.ref_columns, strict=True)
    }
    if ends not in keys and ends[::-1] in keys:
        condition.set("this", right.copy())
        condition.set("expression", left.copy())


BLANK = "_"


def plan_answer(tree: exp.Query, schema: Schema) -> Plan:
    """The plan of a query in the style; `schema` is the schema with its names."""
    tables = dict.fromkeys(name for _, name in real_tables(tree, schema))
    places = [
        place for column in tree.find_all(exp.Column, bfs=False) if (place := _needed(column, schema)) is not None
    ]
    columns = {name: tuple(dict.fromkeys(c for table, c in places if table == name)) for name in tables}
    return Plan(tuple(PlannedTable(name, columns[name]) for name in tables), skeleton(tree))


def _needed(column: exp.Column, schema: Schema) -> ColumnRef | None:
    """The column's table and name; None for a column that is only joined on, since the prompt's join lines name it."""
    joins = column.find_ancestor(exp.Join, exp.Select)
    return None if isinstance(joins, exp.Join) else place_of(column, schema)


def skeleton(tree: exp.Query) -> str:
    """The SQL with `_` for each name and literal, without join conditions and aliases, so that inner joins become commas."""
    bare = tree.copy()
    for join in list(bare.find_all(exp.Join)):
        join.set("on", None)
        join.set("using", None)
    for node in list(bare.find_all(exp.Table, exp.Column, exp.Literal)):
        if not isinstance(node.this, exp.Func):
            node.replace(exp.Star() if isinstance(node, exp.Column) and node.is_star else exp.to_identifier(BLANK))
    for alias in list(bare.find_all(exp.Alias)):
        alias.replace(alias.this)
    for named in list(bare.find_all(exp.Subquery)):
        named.set("alias", None)
    return sql_text(bare)
