"""Runs a superuser's query as a role that reads tables and cannot be left.

A superuser reads files and runs programs even where nothing may be written, and whatever role its session took, by SET ROLE or
by SET SESSION AUTHORIZATION, `set_config` takes it back in the middle of a statement. PostgreSQL forbids both inside a function
that runs as its owner. So the query runs inside one: a temporary function of the role `pg_read_all_data`, made and rolled back
with the transaction that it is called in.
"""

from typing import Any

import sqlalchemy as sa

_READER = """FROM pg_roles reader, pg_roles own
WHERE reader.rolname = 'pg_read_all_data' AND own.rolname = current_user AND own.rolsuper"""
_SPELT = sa.text("""SELECT format_type(CAST(oid AS oid), -1)
FROM unnest(CAST(:types AS bigint[])) WITH ORDINALITY AS t (oid, place) ORDER BY place""")
_DESCRIBING = "psycopg"  # the driver that tells a cursor's columns before it fetches a row
_NAME = "pg_temp.sqlagent_read(text, bigint)"
_FUNCTION = (
    f"""CREATE FUNCTION {_NAME} RETURNS SETOF record LANGUAGE plpgsql SECURITY DEFINER AS '
DECLARE found record; seen bigint := 0;
BEGIN
  FOR found IN EXECUTE $1 LOOP
    RETURN NEXT found; seen := seen + 1;
    EXIT WHEN seen >= $2;
  END LOOP;
END'""",
    f"ALTER FUNCTION {_NAME} OWNER TO pg_read_all_data",
)

WITHOUT_POWERS = f"""SELECT set_config('search_path', (SELECT string_agg(quote_ident(name), ',') FROM
unnest(current_schemas(false)) name), true), set_config('row_security', 'off', true), set_config('role', reader.rolname, true)
{_READER}"""
"""From here to the transaction's end a superuser is a role that reads tables. Names keep their meaning ("$user" is another
now), and rows that the role would not be shown are an error. Outside the function a statement can take its own role back.
"""


def function_made(connection: sa.Connection) -> bool:
    """Make the function, for a superuser and in a transaction that may still write. False where none is needed, or where there
    can be none: on a standby, without PL/pgSQL, before PostgreSQL 14, by another driver. Raises SQLAlchemyError.
    """
    if connection.dialect.driver != _DESCRIBING or connection.exec_driver_sql(f"SELECT 1 {_READER}").scalar() is None:
        return False
    try:
        with connection.begin_nested():
            for statement in _FUNCTION:
                connection.exec_driver_sql(statement)
    except sa.exc.DBAPIError:
        return False
    return True


def run_inside(connection: sa.Connection, sql: str, rows: int) -> tuple[sa.CursorResult[Any], tuple[str, ...]]:
    """The first `rows` rows of the one SELECT `sql`, from inside the function, and the headings of its columns.

    Raises SQLAlchemyError, also for a column of rows without a type, which no function can return.
    """
    declared = connection.exec_driver_sql(sql, execution_options={"no_parameters": True, "stream_results": True})
    headings, description = tuple(declared.keys()), declared.cursor.description if declared.cursor else None
    declared.close()  # a cursor of which nothing was fetched has run nothing
    types = connection.execute(_SPELT, {"types": [entry[1] for entry in description or ()]}).scalars()
    columns = ", ".join(f"c{place} {type_}" for place, type_ in enumerate(types))
    called = sa.text(f"SELECT * FROM pg_temp.sqlagent_read(:sql, :rows) AS inside ({columns})")
    given = {"sql": sql, "rows": rows}
    return connection.execute(called, given, execution_options={"stream_results": True}), headings
