"""Queries that the guard must let through, in the words of each dialect. Data for test_guard.py."""

DUCKDB = """
SELECT lpad(name, 10, ' '), repeat('-', 20) FROM t
SELECT a, count(*) FILTER (WHERE b > 1) FROM t GROUP BY ALL ORDER BY ALL
SELECT * EXCLUDE (a) REPLACE (b + 1 AS b) FROM t
SELECT a FROM t QUALIFY row_number() OVER (PARTITION BY b ORDER BY c) = 1
FROM t SELECT a
FROM t
TABLE t
SELECT list_transform([1, 2], x -> x + 1)
SELECT [x + 1 for x in [1, 2] if x > 1]
SELECT {'a': 1}.a, struct_pack(a := 1)
SELECT date '2020-01-01' + INTERVAL 3 DAY, DATE_TRUNC('month', d) FROM t
SELECT year(d), strftime(d, '%Y'), epoch(d), dayname(d), extract('year' FROM d) FROM t
SELECT * FROM t PIVOT (sum(a) FOR b IN ('x', 'y'))
SELECT * FROM (PIVOT t ON b IN ('x', 'y') USING sum(a))
SELECT * FROM t UNPIVOT (v FOR k IN (a, b))
SELECT * FROM t USING SAMPLE 10
SELECT * FROM t TABLESAMPLE 10%
SELECT * FROM range(10) r(i)
SELECT unnest(generate_series(1, 10))
SELECT * FROM t ASOF JOIN u ON t.a >= u.a
SELECT * FROM t POSITIONAL JOIN u
SELECT * FROM t SEMI JOIN u USING (a)
SELECT columns('a.*') FROM t
SELECT a::DECIMAL(10, 2), TRY_CAST(b AS INTEGER), cast(c as timestamp with time zone) FROM t
SELECT arg_max(a, b), mode(a), median(a), quantile_cont(a, 0.5), string_agg(b, ', ' ORDER BY b), list(d) FROM t
SELECT count(DISTINCT a), approx_count_distinct(b), bool_or(c), stddev(d), corr(a, b), histogram(a) FROM t
SELECT regexp_matches(a, 'x'), regexp_extract(a, '(x)', 1), a SIMILAR TO 'x.*', a ILIKE '%x%', a ~ 'x' FROM t
SELECT json_extract(j, '$.a'), j->>'$.a', j->'a' FROM t
SELECT sum(a) OVER (ORDER BY b ROWS BETWEEN 1 PRECEDING AND CURRENT ROW) FROM t
WITH RECURSIVE r(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM r WHERE i < 5) SELECT * FROM r
WITH x AS MATERIALIZED (SELECT 1 AS a) SELECT * FROM x
SELECT CASE WHEN a > 1 THEN 'x' ELSE 'y' END, coalesce(a, b), nullif(a, 1), greatest(a, b), if(a > 1, 2, 3) FROM t
SELECT a FROM t UNION BY NAME SELECT b FROM u
SELECT current_date, now(), today(), age(d) FROM t
SELECT main.t.a FROM main.t
VALUES (1, 'a'), (2, 'b')
(SELECT 1) UNION ALL (SELECT 2) ORDER BY 1 LIMIT 1
SELECT * FROM t, LATERAL (SELECT t.a + 1) AS l(b)
SELECT a FROM t ORDER BY b DESC NULLS LAST LIMIT 10 OFFSET 5
SELECT a, b FROM t GROUP BY GROUPING SETS ((a), (b), ())
SELECT "a b", 'x'[1], [1,2,3][1:2], map{'a': 1}['a'] FROM t
SELECT datediff('day', a, b), date_diff('day', a, b), date_add(a, interval 1 day), a - b FROM t
SELECT a FROM t WHERE (a, b) IN (SELECT a, b FROM u) AND EXISTS (SELECT 1 FROM u) AND a = ANY (SELECT 1)
SELECT printf('%.2f', a), format('{}', a), round(a, 2), a // 2, a % 2, a ** 2 FROM t
SELECT a IS DISTINCT FROM b, a BETWEEN 1 AND 2, a IS NOT NULL, NOT a FROM t
SELECT first(a ORDER BY b), last_value(a IGNORE NULLS) OVER (ORDER BY b) FROM t
SELECT 'it''s; -- not a comment' AS x -- a comment; DROP TABLE t
/* DROP TABLE t; */ SELECT 1;
SELECT 'DELETE FROM t', "drop table", 'read_csv(''x'')' FROM t
""".strip().splitlines()

SQLITE = """
SELECT strftime('%Y', d), julianday(d), date(d, '+1 day'), datetime('now'), unixepoch() FROM t
SELECT group_concat(name, ', '), total(a), printf('%.2f', a), iif(a > 1, 2, 3), ifnull(a, 0) FROM t
SELECT a || b, a COLLATE NOCASE, a GLOB 'x*', a REGEXP 'x', a IS b, CAST(a AS REAL) FROM t LIMIT 5, 10
SELECT * FROM t WHERE name = "France" AND [a b] = `c d`
SELECT json_extract(j, '$.a'), value FROM t, json_each(t.j)
SELECT instr(a, 'x'), substr(a, 1, 2), replace(a, 'x', 'y'), hex(a), typeof(a), quote(a), unicode(a), char(65) FROM t
SELECT count(*) FROM t INDEXED BY i
SELECT * FROM t NATURAL JOIN u
SELECT a FROM t GROUP BY b HAVING max(c)
SELECT row_number() OVER (PARTITION BY a ORDER BY b) FROM t
VALUES (1), (2)
""".strip().splitlines()

POSTGRES = """
SELECT DISTINCT ON (a) a, b FROM t ORDER BY a, b DESC
SELECT to_char(d, 'YYYY-MM'), date_part('year', d), age(d), d AT TIME ZONE 'UTC', extract(epoch FROM d) FROM t
SELECT array_agg(a ORDER BY b), string_agg(a, ','), a->>'x', a#>>'{y}', a @> '{}'::jsonb FROM t
SELECT * FROM generate_series(1, 10) AS g(i)
SELECT * FROM t CROSS JOIN LATERAL jsonb_array_elements(t.j) AS e
SELECT a ~* 'x', a ILIKE '%x%', left(a, 2), split_part(a, ',', 1), regexp_replace(a, 'x', 'y', 'g') FROM t
SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY a), count(*) FILTER (WHERE b) FROM t
SELECT $$a;b$$, E'a\\\\nb' FROM public.t
""".strip().splitlines()

MYSQL = """
SELECT date_format(d, '%Y-%m'), year(d), datediff(a, b), timestampdiff(MONTH, a, b), curdate() FROM t
SELECT group_concat(DISTINCT a ORDER BY b SEPARATOR ', '), ifnull(a, 0), if(a > 1, 2, 3), find_in_set('a', b) FROM t
SELECT `a b`, 'it\\'s', "text" FROM t LIMIT 5, 10
SELECT JSON_EXTRACT(j, '$.a'), j->>'$.a', JSON_UNQUOTE(j) FROM t
""".strip().splitlines()

HARMLESS = {"duckdb": DUCKDB, "sqlite": SQLITE, "postgres": POSTGRES, "mysql": MYSQL}
