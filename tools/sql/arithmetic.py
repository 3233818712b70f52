"""Numbers as SQLite reckons with them: division, rounding, casts to whole numbers, and texts that are put together."""

from sqlglot import exp
from sqlglot.dialects.dialect import Dialect

from tools.schema import Schema
from tools.sql.scope import is_number, kind_of


def division(tree: exp.Expr, schema: Schema) -> exp.Expr:
    """Divides as SQLite does: integers give an integer, and division by zero gives NULL.

    Only the divisor that may be zero is guarded:

    >>> from tools.sql.from_sqlite import from_sqlite
    >>> from tools.schema import Column, Schema, Table
    >>> team = Table("team", (Column("won", "INTEGER"), Column("played", "INTEGER")))
    >>> from_sqlite("SELECT won / played, won / 2, won / 2.0 FROM team", Schema((team,), "duckdb"))
    'SELECT won // NULLIF(played, 0), won // 2, won / 2.0 FROM team'
    >>> from_sqlite("SELECT won / played, won / 2, won / 2.0 FROM team", Schema((team,), "postgres"))
    'SELECT won / NULLIF(played, 0), won / 2, won / 2.0 FROM team'
    >>> from_sqlite("SELECT won / played FROM team", Schema((team,), "mysql"))
    'SELECT won DIV played FROM team'
    """
    for node in list(tree.find_all(exp.Div)):
        left, right = node.this, node.expression
        never_zero = _is_never_zero(right)
        if kind_of(left, schema) == kind_of(right, schema) == "integer" and not _divides_so(node, schema):
            is_guarded = not never_zero and schema.dialect != "mysql"
            divisor = exp.Nullif(this=right.copy(), expression=exp.Literal.number(0)) if is_guarded else right
            node.replace(exp.IntDiv(this=left.copy(), expression=divisor.copy()))
        elif never_zero:
            node.set("safe", False)
    return tree


def _is_never_zero(divisor: exp.Expr) -> bool:
    return divisor.is_number and float(divisor.name or 0) != 0


def _divides_so(node: exp.Div, schema: Schema) -> bool:
    """Whether the dialect's own `/` gives an integer. In PostgreSQL the sum of large integers is none any more."""
    typed = Dialect.get_or_raise(schema.dialect).TYPED_DIVISION
    return typed and not (schema.dialect == "postgres" and node.find(exp.Sum))


def fractions(tree: exp.Expr, schema: Schema) -> exp.Expr:
    """Divides integers to fractions. Division by zero gives NULL all the same.

    >>> from tools.sql.from_sqlite import from_sqlite
    >>> from tools.schema import Column, Schema, Table
    >>> team = Table("team", (Column("won", "INTEGER"), Column("played", "INTEGER")))
    >>> from_sqlite("SELECT won / played, won / 2 FROM team", Schema((team,), "duckdb"), exactly=False)
    'SELECT won / NULLIF(played, 0), won / 2 FROM team'
    >>> from_sqlite("SELECT won / 2, won * 1.0 / 2 FROM team", Schema((team,), "postgres"), exactly=False)
    'SELECT CAST(won AS DOUBLE PRECISION) / 2, won * 1.0 / 2 FROM team'
    """
    for node in tree.find_all(exp.Div):
        is_fraction = "real" in (kind_of(node.this, schema), kind_of(node.expression, schema))
        node.set("typed", is_fraction)
        if _is_never_zero(node.expression):
            node.set("safe", False)
    return tree


def rounding(tree: exp.Expr, schema: Schema) -> exp.Expr:
    """Rounds and cuts numbers as SQLite does: a cast to an integer drops the fraction, where others round. PostgreSQL rounds
    none but exact numbers to a number of digits.

    >>> from tools.sql.from_sqlite import from_sqlite
    >>> from tools.schema import Column, Schema, Table
    >>> team = Table("team", (Column("pay", "REAL"),))
    >>> from_sqlite("SELECT ROUND(pay, 2), CAST(pay AS INTEGER) FROM team", Schema((team,), "postgres"))
    'SELECT ROUND(CAST(pay AS DECIMAL), 2), CAST(TRUNC(pay) AS INT) FROM team'
    """
    for cast in list(tree.find_all(exp.Cast)):
        if cast.to.is_type(*exp.DataType.INTEGER_TYPES) and kind_of(cast.this, schema) == "real":
            cast.this.replace(exp.Trunc(this=cast.this.copy(), decimals=_ZERO if schema.dialect == "mysql" else None))
    for node in list(tree.find_all(exp.Round)) if schema.dialect == "postgres" else ():
        if node.args.get("decimals") is not None and not _is_exact(node.this, schema):
            node.this.replace(exp.cast(node.this.copy(), "DECIMAL"))
    return tree


_ZERO = exp.Literal.number(0)


def _is_exact(node: exp.Expr, schema: Schema) -> bool:
    inner = node.this if isinstance(node, exp.Avg) else node
    return kind_of(inner, schema) == "integer"


def joined_texts(tree: exp.Expr, schema: Schema) -> exp.Expr:
    """Casts what `||` and GROUP_CONCAT put together to texts, where nothing says that it is one.

    >>> from tools.sql.from_sqlite import from_sqlite
    >>> from tools.schema import Column, Schema, Table
    >>> team = Table("team", (Column("won", "INTEGER"), Column("lost", "INTEGER")))
    >>> from_sqlite("SELECT won || lost FROM team", Schema((team,), "postgres"))
    'SELECT CAST(won AS TEXT) || lost FROM team'
    """
    for node in list(tree.find_all(exp.DPipe)):
        kinds = kind_of(node.this, schema), kind_of(node.expression, schema)
        if "text" not in kinds and kinds[0] is not None:
            node.this.replace(exp.cast(node.this.copy(), "TEXT"))
    for listed in list(tree.find_all(exp.GroupConcat)):
        if kind_of(listed.this, schema) not in ("text", None):
            listed.this.replace(exp.cast(listed.this.copy(), "TEXT"))
    return tree


def numbers_of_truth(tree: exp.Expr, schema: Schema) -> exp.Expr:
    """Keeps truth values and numbers apart, which are the same in SQLite: `is_open = 1`, SUM(age > 30), WHERE is_open.

    >>> from tools.sql.from_sqlite import from_sqlite
    >>> from tools.schema import Column, Schema, Table
    >>> shop = Table("shop", (Column("is_open", "BOOLEAN"), Column("size", "INTEGER")))
    >>> schema = Schema((shop,), "postgres")
    >>> from_sqlite("SELECT SUM(is_open), SUM(size > 3) FROM shop WHERE is_open = 1 AND size", schema)
    'SELECT SUM(CAST(is_open AS INT)), SUM(CASE WHEN size > 3 THEN 1 ELSE 0 END) FROM shop WHERE is_open = TRUE AND size <> 0'
    """
    for node in list(tree.find_all(exp.EQ, exp.NEQ, exp.In, exp.Is)):
        _compared(node, schema)
    for reckoned in list(tree.find_all(*_RECKONING)):
        for operand in (reckoned.args.get("this"), reckoned.args.get("expression")):
            if operand is not None and kind_of(operand, schema) == "boolean":
                operand.replace(_as_number(operand))
    for condition in list(tree.find_all(exp.Where, exp.Having, exp.And, exp.Or, exp.Not, exp.If)):
        for operand in (condition.args.get("this"), condition.args.get("expression")):
            if operand is not None and is_number(kind_of(operand, schema)) and _is_condition(condition):
                operand.replace(exp.NEQ(this=operand.copy(), expression=exp.Literal.number(0)))
    return tree


_RECKONING = (exp.Sum, exp.Avg, exp.Min, exp.Max, exp.Add, exp.Sub, exp.Mul, exp.Div)


def _is_condition(node: exp.Expr) -> bool:
    return not (isinstance(node, exp.If) and isinstance(node.parent, exp.Case) and node.parent.this is not None)


def _compared(node: exp.Expr, schema: Schema) -> None:
    held = node.expressions if isinstance(node, exp.In) else [node.expression]
    for left, right in [(node.this, each) for each in held] + [(each, node.this) for each in held]:
        if right is None or left is None:
            continue
        if right.is_number and right.name in ("0", "1") and kind_of(left, schema) == "boolean":
            right.replace(exp.Boolean(this=right.name == "1"))
        elif isinstance(right, exp.Boolean) and is_number(kind_of(left, schema)):
            right.replace(exp.Literal.number(int(right.this)))


def _as_number(truth: exp.Expr) -> exp.Expr:
    if isinstance(truth, exp.Column):
        return exp.cast(truth.copy(), "INT")
    yes = exp.If(this=truth.unnest().copy(), true=exp.Literal.number(1))
    return exp.Case(ifs=[yes], default=exp.Literal.number(0))
