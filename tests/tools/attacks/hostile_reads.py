"""Statements that read what they must not: files, catalogues, settings; and queries that never end. Data for hostile.py."""

from tests.tools.attacks.hostile_case import BOTH, DUCKDB, SQLITE, both_see, engine_sees, guard_sees, pairs

FILE_READERS = both_see(
    DUCKDB,
    "SELECT * FROM '{secret}'",
    'SELECT * FROM "{secret}"',
    "FROM '{secret}'",
    "TABLE '{secret}'",
    "SELECT * FROM '{folder}/*.csv'",
    "SELECT * FROM 'https://example.org/x.csv'",
    "SELECT * FROM 's3://bucket/x.parquet'",
    "SELECT * FROM read_csv('{secret}')",
    "SELECT * FROM read_csv_auto('{secret}')",
    "SELECT * FROM main.read_csv('{secret}')",
    "SELECT * FROM \"read_text\"('{secret}')",
    "SELECT content FROM read_text('{secret}')",
    "SELECT content FROM read_blob('{secret}')",
    "SELECT * FROM READ_JSON('{secret}')",
    "SELECT * FROM read_ndjson_objects('{secret}')",
    "SELECT * FROM read_parquet('{secret}')",
    "SELECT * FROM parquet_metadata('{secret}')",
    "SELECT * FROM sniff_csv('{secret}')",
    "SELECT * FROM glob('/*')",
    "SELECT * FROM people, read_text('{secret}')",
    "SELECT * FROM people JOIN read_text('{secret}') r ON true",
    "SELECT * FROM people JOIN LATERAL read_text('{secret}') ON true",
    "SELECT (SELECT content FROM read_text('{secret}'))",
    "SELECT * FROM people WHERE name IN (SELECT content FROM read_text('{secret}'))",
    "SELECT CASE WHEN EXISTS (SELECT 1 FROM '{secret}') THEN 1 END",
    "WITH x AS (SELECT * FROM '{secret}') SELECT * FROM x",
    "SELECT * FROM (FROM read_text('{secret}'))",
    "SELECT 1 UNION ALL SELECT content FROM read_text('{secret}')",
    "SELECT name FROM people ORDER BY (SELECT content FROM read_text('{secret}'))",
    "SELECT count(*) FROM people GROUP BY (SELECT content FROM read_text('{secret}'))",
    "SELECT '{secret}'.read_text()",
    "SELECT read_text('{secret}')",
    "SELECT * FROM people POSITIONAL JOIN '{secret}'",
    "VALUES ((SELECT content FROM read_text('{secret}')))",
    "SELECT * FROM query('SELECT * FROM read_text(''{secret}'')')",
    "SELECT * FROM query_table('{secret}')",
    "SELECT * FROM sqlite_scan('{secret}', 't')",
    "SELECT * FROM postgres_scan('host=x', 'public', 't')",
    "SELECT * FROM iceberg_scan('{secret}')",
    "SELECT * FROM duckdb_secrets()",
    "SELECT * FROM which_secret('s3://x', 's3')",
    "SELECT nextval('s')",
    "SELECT getenv('HOME')",
    "SELECT * FROM arrow_scan(1, 2, 3)",
)

CATALOGUES = guard_sees(
    DUCKDB,
    "DuckDB has no right to withhold its catalogue; reading it changes nothing",
    "SELECT * FROM duckdb_settings()",
    "SELECT * FROM duckdb_databases()",
    "SELECT * FROM pragma_database_list",
    "SELECT * FROM information_schema.tables",
    "SELECT * FROM pg_catalog.pg_class",
    "SELECT * FROM sqlite_master",
    "SELECT * FROM people WHERE name IN (SELECT path FROM duckdb_databases())",
    "SELECT getvariable('x')",
    "SELECT current_setting('temp_directory')",
    "SELECT current_query()",
    "SELECT txid_current()",
    "SELECT * FROM query('SELECT 1')",
    "SELECT * FROM query_table('people')",
    "SELECT json_serialize_sql('SELECT 1')",
    "SELECT * FROM json_execute_serialized_sql(json_serialize_sql('SELECT 1'))",
    "SELECT pg_sleep(0.01)",
    "SHOW TABLES",
    "DESCRIBE people",
    "SUMMARIZE people",
    "SELECT * FROM (DESCRIBE people)",
    "PRAGMA database_list",
    "SELECT * FROM people FOR UPDATE",
)

UNUSED_READERS = guard_sees(
    DUCKDB,
    "DuckDB does not look at a CTE that nothing uses",
    "WITH x AS (FROM read_text('{secret}')) SELECT 1",
)

DEEP = guard_sees(
    BOTH,
    "DuckDB 1.5 reads it and answers 1",
    "SELECT " + "(" * 5000 + "1" + ")" * 5000,
)

SQLITE_COMPILED_ONLY = guard_sees(
    SQLITE,
    "it reads what a SELECT may read, and changes nothing",
    "EXPLAIN SELECT 1",
    "EXPLAIN QUERY PLAN SELECT * FROM people",
)

GROWTH = guard_sees(
    DUCKDB,
    "no engine counts one long text against its memory limit",
    "SELECT length(repeat('x', 2000000))",
    "SELECT length(repeat(repeat('x', 2000), 2000))",
    "SELECT length(s) FROM (SELECT lpad('x', 2000000, 'y') AS s)",
    "SELECT length(repeat('x', id * 1000000)) FROM people",
)

BOMBS = engine_sees(
    BOTH,
    "it is a query like any other, only without end",
    "WITH RECURSIVE r(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM r) SELECT count(*) FROM r",
    "WITH RECURSIVE r(i) AS (SELECT 1 UNION ALL SELECT i FROM r) SELECT sum(i) FROM r",
    "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 3000)"
    " SELECT count(*) FROM n a, n b, n c, n d",
) + engine_sees(
    DUCKDB,
    "it is a query like any other, only without end",
    "SELECT count(*) FROM range(1000000000) a, range(1000000000) b",
    "SELECT max(md5(a.range::VARCHAR)) FROM range(10000000000) a",
    "SELECT list(range) FROM range(100000000000)",
)

NEEDLES = pairs(
    DUCKDB,
    ("SELECT * FROM '/etc/passwd'", "SELECT '/etc/passwd' AS path"),
    ("SELECT * FROM read_csv(['{secret}', '/etc/passwd'])", "SELECT unnest(['{secret}', '/etc/passwd']) AS path"),
    ("SELECT * FROM people WHERE EXISTS (FROM read_text('{secret}'))", "SELECT * FROM people WHERE EXISTS (FROM pets)"),
    ("SELECT list_transform([1], x -> (SELECT content FROM read_text('{secret}')))", "SELECT [x + 1 for x in [1]]"),
    ("SELECT name FROM people QUALIFY row_number() OVER (ORDER BY (SELECT content FROM read_text('{secret}'))) = 1",
     "SELECT name FROM people QUALIFY row_number() OVER (ORDER BY id) = 1"),
    ("SELECT * FROM people LIMIT (SELECT count(*) FROM glob('/*'))",
     "SELECT * FROM people LIMIT (SELECT count(*) FROM pets) + 1"),
    ("SELECT max(name) FILTER (WHERE EXISTS (SELECT 1 FROM '{secret}')) FROM people",
     "SELECT max(name) FILTER (WHERE id > 0) FROM people"),
    ("SELECT * FROM (VALUES ((SELECT content FROM read_text('{secret}')))) AS v(x)", "SELECT * FROM (VALUES (1)) AS v(x)"),
    ("SELECT * FROM read_xlsx('{secret}')", "SELECT 'read_xlsx' AS said"),
    ("SELECT * FROM delta_scan('{folder}')", "SELECT name AS delta_scan FROM people"),
    ("SELECT * FROM mysql_scan('host=x', 'db', 't')", "SELECT name AS mysql_scan FROM people"),
    ("SELECT * FROM postgres_query('p', 'SELECT 1')", "SELECT name AS postgres_query FROM people"),
    ("SELECT * FROM st_read('{secret}')", "SELECT name AS st_read FROM people"),
    ("SELECT * FROM json_scan('{secret}')", "SELECT json_extract('{\"a\": 1}', '$.a')"),
    ("SELECT * FROM seq_scan('people')", "SELECT name AS seq_scan FROM people"),
)  # fmt: skip

NAMES_OF_THE_PROGRAM = engine_sees(
    DUCKDB,
    "to the guard it is an unknown table, which is the engine's to report",
    "SELECT * FROM limits",
    "SELECT * FROM cursor",
    "SELECT * FROM duckdb",
)

READS = (
    FILE_READERS + NEEDLES + CATALOGUES + UNUSED_READERS + DEEP + SQLITE_COMPILED_ONLY + GROWTH + BOMBS + NAMES_OF_THE_PROGRAM
)  # fmt: skip
