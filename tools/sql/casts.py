"""Types in SQL: casts, and arithmetic as SQLite does it.

SQLite's rule (datatype3.html, section 4.2) is: compared with a numeric column, text is read as a number; compared with a text
column, a value that is no column is converted to text; a column or a CAST has a type, any other expression has none.
"""

from sqlglot import exp
from sqlglot.dialects.dialect import Dialect

from tools.schema import Schema
from tools.sql.scope import Kind, first_select, is_number, kind_of

_COMPARISONS = (exp.EQ, exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE, exp.NullSafeEQ, exp.NullSafeNEQ)
_ON_NUMBERS = (exp.Sum, exp.Avg, exp.Abs, exp.Round, exp.Neg)
_ON_TEXT = (exp.Like, exp.Substring, exp.Lower, exp.Upper, exp.Trim, exp.Length, exp.StrPosition)


def cast_comparisons(tree: exp.Expr, schema: Schema) -> exp.Expr:
    """Adds casts in `a = b`, `a BETWEEN b AND c`, `a IN (b, c)` and `a IN (SELECT b ...)`.

    A text column is compared with a number, and a number with text:

    >>> from tools.schema import Column, Schema, Table
    >>> from tools.sql.from_sqlite import from_sqlite
    >>> singer = Table("singer", (Column("year", "VARCHAR"), Column("age", "INTEGER")))
    >>> schema = Schema((singer,), "duckdb")
    >>> from_sqlite("SELECT age FROM singer WHERE year = 2014 AND age > '30'", schema)
    "SELECT age FROM singer WHERE year = '2014' AND age > 30"
    """
    for node in list(tree.find_all(*_COMPARISONS)):
        if not _settle_words(node, schema):
            _align(node.this, node.expression, schema)
    for between in list(tree.find_all(exp.Between)):
        _align(between.this, between.args["low"], schema)
        _align(between.this, between.args["high"], schema)
    for membership in list(tree.find_all(exp.In)):
        query = membership.args.get("query")
        for element in [_output(query)] if query else list(membership.expressions):
            if element is not None:
                _align(membership.this, element, schema)
    return tree


def _settle_words(node: exp.Expr, schema: Schema) -> bool:
    """Decide a comparison of a number with a text literal, `id <> 'null'`: SQLite sorts every number before every text."""
    for number, word, true_for in (
        (node.this, node.expression, (exp.NEQ, exp.LT, exp.LTE)),
        (node.expression, node.this, (exp.NEQ, exp.GT, exp.GTE)),
    ):
        if word.is_string and not _is_decimal(word.name) and is_number(kind_of(number, schema)):
            present = exp.Not(this=exp.Is(this=number.copy(), expression=exp.Null()))
            node.replace(present if isinstance(node, true_for) else exp.false())
            return True
    return False


def _output(query: exp.Expr) -> exp.Expr | None:
    """The one column that a sub-query returns."""
    select = first_select(query)
    return select.expressions[0].unalias() if select and len(select.expressions) == 1 else None


def _align(left: exp.Expr, right: exp.Expr, schema: Schema) -> None:
    """Give the two sides of a comparison the same type, as SQLite would."""
    if isinstance(right, exp.Subquery):
        right = _output(right) or right
    kinds = (kind_of(left, schema), kind_of(right, schema))
    if kinds[0] == "text" and is_number(kinds[1]):
        _text_with_number(left, right)
    elif kinds[1] == "text" and is_number(kinds[0]):
        _text_with_number(right, left)
    elif kinds[0] == "time" and kinds[1] is not None:
        _time_with(left, right, kinds[1])
    elif kinds[1] == "time" and kinds[0] is not None:
        _time_with(right, left, kinds[0])


def _typed(node: exp.Expr) -> bool:
    """Whether SQLite gives this expression a type of its own (an affinity)."""
    return isinstance(node.unnest(), exp.Column | exp.Cast)


def _text_with_number(text: exp.Expr, number: exp.Expr) -> None:
    if _typed(text) and not _typed(number):
        _to_text(number)
    else:
        to_number(text)


def _time_with(time: exp.Expr, other: exp.Expr, kind: Kind) -> None:
    """Align a time with another value. SQLite stores dates as text, so a part of one, such as '2009', is compared as text."""
    if is_number(kind) or (kind == "text" and not (other.is_string and _is_moment(other.name))):
        _to_text(time)
        if is_number(kind):
            _to_text(other)


def _is_moment(text: str) -> bool:
    """Whether DuckDB reads the text as a date, a time or both."""
    digits = "".join("9" if letter.isdigit() else letter for letter in text.strip())
    return digits.startswith("9999-99-99") or digits in ("99:99:99", "99:99")


def to_number(node: exp.Expr) -> None:
    """Read text as a number: a literal becomes one; other text that is no number becomes NULL, not an error."""
    if node.is_string and _is_decimal(node.name):
        node.replace(exp.Literal.number(node.name.strip()))
    else:
        node.replace(exp.TryCast(this=node.copy(), to=exp.DataType.build("DOUBLE")))


def _is_decimal(text: str) -> bool:
    whole, _, fraction = text.strip().removeprefix("-").partition(".")
    return (whole + fraction).isascii() and (whole + fraction).isdigit() and bool(whole)


def _to_text(node: exp.Expr) -> None:
    if node.is_number:
        node.replace(exp.Literal.string(node.sql()))
    else:
        node.replace(exp.Cast(this=node.copy(), to=exp.DataType.build("VARCHAR")))


def cast_arguments(tree: exp.Expr, schema: Schema) -> exp.Expr:
    """Adds casts of text in arithmetic, SUM and AVG, and of numbers and dates in LIKE and the text functions.

    The query has a sum of text, and a pattern for numbers:

    >>> from tools.schema import Column, Schema, Table
    >>> from tools.sql.from_sqlite import from_sqlite
    >>> singer = Table("singer", (Column("year", "VARCHAR"), Column("age", "INTEGER")))
    >>> schema = Schema((singer,), "duckdb")
    >>> from_sqlite("SELECT SUM(year) FROM singer WHERE age LIKE '3%'", schema)
    "SELECT SUM(TRY_CAST(year AS DOUBLE)) FROM singer WHERE CAST(age AS TEXT) ILIKE '3%'"
    """
    for average in list(tree.find_all(exp.Avg)):
        if kind_of(average.this, schema) == "text":
            _average_of_text(average, schema)
    for operation in list(tree.find_all(*_ON_NUMBERS, exp.Add, exp.Sub, exp.Mul, exp.Div, exp.Mod)):
        for operand in filter(None, (operation.args.get("this"), operation.args.get("expression"))):
            if kind_of(operand, schema) == "text":
                to_number(operand)
    for function in list(tree.find_all(*_ON_TEXT)):
        if kind_of(function.this, schema) not in ("text", None):
            _to_text(function.this)
    return tree


def _average_of_text(average: exp.Avg, schema: Schema) -> None:
    """Average as SQLite does: text that is no number counts as 0, and NULL is left out, both of which MySQL's cast does."""
    if schema.dialect == "mysql":
        to_number(average.this)
        return
    text = average.this.copy()
    number = exp.TryCast(this=text, to=exp.DataType.build("DOUBLE"))
    average.set("this", exp.Coalesce(this=number, expressions=[exp.Literal.number(0)]))
    present = exp.Not(this=exp.Is(this=text.copy(), expression=exp.Null()))
    average.replace(exp.Filter(this=average.copy(), expression=exp.Where(this=present)))


_DECIMAL = r"^\s*[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?\s*$"
_DATE, _TIME = r"^\s*[0-9]{4}-[0-9]{2}-[0-9]{2}", r"^\s*[0-9]{1,2}:[0-9]{2}"


def looked_at_casts(tree: exp.Expr, schema: Schema) -> exp.Expr:
    """Looks at a text before it is cast, in PostgreSQL, where a cast of what is no number or no date ends the query.

    >>> from tools.sql.from_sqlite import from_sqlite
    >>> from tools.schema import Column, Schema, Table
    >>> song = Table("song", (Column("released", "TEXT"),))
    >>> print(from_sqlite("SELECT DATE(released) FROM song", Schema((song,), "postgres")))
    SELECT CASE WHEN released ~ '^\\s*[0-9]{4}-[0-9]{2}-[0-9]{2}' THEN CAST(released AS DATE) END FROM song
    """
    for node in reversed(list(tree.find_all(exp.Cast))):
        kind, target = kind_of(node.this, schema), kind_of(node, schema)
        is_tried = isinstance(node, exp.TryCast)
        pattern = _pattern(node.to, target)
        is_doubtful = kind == "text" or (kind is None and is_tried)
        if not (pattern and is_doubtful) or node.this.is_string:
            if is_tried:
                node.replace(exp.Cast(this=node.this.copy(), to=node.to.copy()))
            continue
        read: exp.Expr = exp.Cast(this=node.this.copy(), to=node.to.copy())
        if target == "integer":
            double = exp.cast(node.this.copy(), "DOUBLE")
            read = exp.cast(exp.Trunc(this=double), "BIGINT")
        looks_right = exp.RegexpLike(this=node.this.copy(), expression=exp.Literal.string(pattern))
        node.replace(exp.Case(ifs=[exp.If(this=looks_right, true=read)]))
    return tree


def _pattern(to: exp.DataType, target: Kind | None) -> str:
    """What a text looks like that can be cast so; empty where every text can."""
    if is_number(target):
        return _DECIMAL
    if target == "time":
        return _TIME if to.this == exp.DType.TIME else _DATE
    return ""


def kinds_alike(tree: exp.Expr, schema: Schema) -> exp.Expr:
    """Casts to text what stands together with texts in COALESCE, CASE, or one column of a set operation.

    >>> from tools.sql.from_sqlite import from_sqlite
    >>> from tools.schema import Column, Schema, Table
    >>> team = Table("team", (Column("won", "INTEGER"),))
    >>> from_sqlite("SELECT IFNULL(won, 'none') FROM team", Schema((team,), "postgres"))
    "SELECT COALESCE(CAST(won AS TEXT), 'none') FROM team"
    """
    for node in list(tree.find_all(exp.Coalesce, exp.Case, exp.SetOperation)):
        for together in _together(node):
            kinds = [kind_of(each, schema) for each in together]
            if "text" in kinds:
                for each, kind in zip(together, kinds, strict=True):
                    if kind not in ("text", None):
                        each.replace(exp.cast(each.copy(), "TEXT"))
    return tree


def _together(node: exp.Expr) -> list[list[exp.Expr]]:
    """Expressions that must have one kind of value."""
    if isinstance(node, exp.Coalesce):
        return [[node.this, *node.expressions]]
    if isinstance(node, exp.Case):
        results = [each.args["true"] for each in node.args["ifs"]]
        return [[*results, *filter(None, [node.args.get("default")])]]
    first, second = first_select(node.this), first_select(node.expression)
    if first is None or second is None or any(item.is_star for item in (*first.expressions, *second.expressions)):
        return []
    pairs = zip(first.expressions, second.expressions, strict=False)
    return [[one.unalias(), other.unalias()] for one, other in pairs]


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
