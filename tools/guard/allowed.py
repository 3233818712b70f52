"""Which functions a query may call, and which tables and types it may name.

`ORDINARY` are functions without a class in sqlglot that compute from their arguments alone. They were taken from each engine's
own catalogue (duckdb 2.0, SQLite 3.40, PostgreSQL 17, MySQL 8.4) and leave out whatever reads a file, a setting, a variable,
a catalogue or another server, runs SQL given as text, waits, writes or takes a lock.

A table that the schema does not list is left to the engine, which knows candidates; a system catalogue, a file, a table
function that does more than make rows, or what lies outside the database is refused here.
"""

import re
from difflib import get_close_matches
from functools import cache

from sqlglot import exp

from tools.result import QueryError
from tools.schema import Schema, Table, words_of


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_DUCKDB = _names("""
    add age aggregate ago alias arbitrary arg_max_null arg_max_nulls_last arg_min_null arg_min_nulls_last array_aggr
    array_aggregate array_apply array_cosine_distance array_cosine_similarity array_cross_product array_distance
    array_dot_product array_extract array_grade_up array_has_any array_indexof array_inner_product
    array_negative_dot_product array_negative_inner_product array_pop_back array_pop_front array_push_back
    array_push_front array_reduce array_resize array_reverse_sort array_select array_sort array_to_json
    array_transform array_unique array_value array_where array_zip bar base64 bin bit_count bit_position bitstring
    bitstring_agg cardinality century combine count_star damerau_levenshtein date_part date_sub datepart datesub
    days_in_month decade divide element_at entropy enum_code enum_first enum_last enum_range enum_range_boundary
    epoch_ns epoch_us equi_width_bins era even favg fdiv fill fmod format_bytes formatreadabledecimalsize
    formatreadablesize from_binary from_json_strict fsum gamma gcd generate_subscripts geomean geometric_mean
    get_current_timestamp grade_up greatest_common_divisor hamming hash histogram histogram_exact isfinite isoyear
    jaccard jaro_similarity json_array_length json_contains json_deep_merge json_exists json_group_array
    json_group_object json_group_structure json_insert json_merge_patch json_normalize json_pretty json_quote
    json_replace json_structure json_transform json_transform_strict json_valid json_value julian kahan_sum
    kurtosis_pop lcm least_common_multiple left_grapheme length_grapheme lgamma list_aggr list_aggregate
    list_any_value list_apply list_approx_count_distinct list_avg list_bit_and list_bit_or list_bit_xor list_bool_and
    list_bool_or list_cat list_cosine_similarity list_count list_dot_product list_element list_entropy list_extract
    list_first list_grade_up list_has_all list_histogram list_indexof list_inner_product list_intersect list_kurtosis
    list_kurtosis_pop list_last list_mad list_median list_mode list_negative_dot_product list_negative_inner_product
    list_pack list_position list_product list_reduce list_resize list_reverse list_reverse_sort list_select list_sem
    list_skewness list_slice list_sort list_stddev_pop list_stddev_samp list_string_agg list_sum list_unique
    list_var_pop list_var_samp list_where list_zip lttb mad make_timestamp_ms make_timestamp_ns make_timestamptz
    map_concat map_contains map_contains_entry map_contains_value map_entries map_extract map_extract_value map_values
    md5_number md5_number_lower md5_number_upper mean microsecond millennium millisecond mismatches multiply
    nanosecond nextafter nfc_normalize normalized_interval now octet_length ord parse_dirname parse_dirpath
    parse_filename parse_formatted_bytes parse_path path_join pg_typeof prefix printf product rank_dense regexp_escape
    regexp_split_to_array regexp_split_to_table reservoir_quantile right_grapheme round_even roundbankers row
    row_to_json sem set_bit signbit strip_accents strlen struct_concat struct_contains struct_extract_at struct_has
    struct_indexof struct_insert struct_keys struct_position struct_update struct_values substring_grapheme subtract
    suffix sum_no_overflow sumkahan switch timezone timezone_hour timezone_minute to_base to_centuries to_decades
    to_hours to_json to_microseconds to_millennia to_milliseconds to_minutes to_months to_quarters to_seconds to_weeks
    to_years transaction_timestamp try_strptime unbin union_extract union_tag union_value unpivot_list url_decode
    url_encode uuid_extract_timestamp uuid_extract_version uuidv4 uuidv7 wavg weekday weighted_avg yearweek
""")

_SQLITE = _names("""
    bm25 char concat concat_ws date datetime format glob highlight ifnull iif instr json json_array json_array_insert
    json_array_length json_error_position json_extract json_group_array json_group_object json_insert json_object
    json_patch json_pretty json_quote json_remove json_replace json_set json_type json_valid jsonb jsonb_array
    jsonb_extract jsonb_group_array jsonb_group_object jsonb_insert jsonb_object jsonb_patch jsonb_remove
    jsonb_replace jsonb_set julianday likelihood likely match matchinfo median mod octet_length offsets percentile
    percentile_cont percentile_disc pow printf quote randomblob rank regexp snippet strftime string_agg subtype time
    timediff total unhex unicode unistr unixepoch unlikely zeroblob
""")

_POSTGRES = _names("""
    age array_agg array_dims array_fill array_length array_lower array_ndims array_positions array_replace array_upper
    bit_count bool_and bool_or btrim cardinality char_length clock_timestamp convert_from convert_to date_bin
    date_part daterange decode div encode every format gcd get_byte int4range int8range isempty isfinite json_agg
    json_array_elements json_array_elements_text json_array_length json_build_array json_build_object json_each
    json_each_text json_extract_path json_extract_path_text json_object_agg json_object_keys json_populate_record
    json_typeof jsonb_agg jsonb_array_elements jsonb_array_elements_text jsonb_array_length
    jsonb_build_array jsonb_build_object jsonb_each jsonb_each_text jsonb_extract_path jsonb_extract_path_text
    jsonb_object_agg jsonb_object_keys jsonb_path_query jsonb_path_query_array jsonb_path_query_first jsonb_pretty
    jsonb_set jsonb_strip_nulls jsonb_typeof justify_days lcm log10 lower_inc make_date make_interval make_time
    make_timestamp make_timestamptz min_scale mod now num_nonnulls num_nulls numnode numrange octet_length
    percentile_cont percentile_disc pg_typeof phraseto_tsquery plainto_tsquery quote_ident quote_literal
    quote_nullable range_agg range_merge regexp_count regexp_instr regexp_match regexp_matches regexp_split_to_array
    regexp_split_to_table regexp_substr row row_to_json scale set_byte similarity starts_with statement_timestamp
    string_to_table strip timeofday timezone to_json to_jsonb to_tsquery to_tsvector transaction_timestamp trim_scale
    trunc ts_headline ts_rank ts_rank_cd tsrange tstzrange unaccent upper_inc websearch_to_tsquery width_bucket
    word_similarity
""")

_MYSQL = _names("""
    addtime any_value bin bin_to_uuid bit_count char conv crc32 curdate curtime date_format datediff elt export_set
    field find_in_set format from_days from_unixtime inet6_aton inet6_ntoa inet_aton inet_ntoa insert interval is_ipv4
    is_ipv6 is_uuid json_arrayagg json_contains json_contains_path json_depth json_insert json_length json_merge_patch
    json_merge_preserve json_objectagg json_overlaps json_pretty json_quote json_replace json_schema_valid json_search
    json_unquote json_valid json_value locate make_set makedate maketime microsecond mid mod name_const now oct
    octet_length ord period_add period_diff pow quote regexp_instr regexp_like row sec_to_time soundex std str_to_date
    strcmp subdate subtime sysdate time_format time_to_sec timediff timestamp to_days to_seconds truncate
    unix_timestamp utc_date utc_time utc_timestamp uuid uuid_to_bin weekday yearweek
""")

_COMMON = _names("""
    abs avg cardinality ceil char_length coalesce concat concat_ws count date_part floor greatest ifnull iif initcap
    instr isnull least length lower lpad ltrim max median min mod now nullif nvl octet_length power replace round rpad
    rtrim sign sqrt stddev string_agg substr sum to_char to_date to_number to_timestamp trim trunc upper variance
""")

_BY_DIALECT = {"duckdb": _DUCKDB, "sqlite": _SQLITE, "postgres": _POSTGRES, "mysql": _MYSQL}

TABLE_FUNCTIONS = _names("""
    generate_series generate_subscripts json_array_elements json_array_elements_text json_each json_each_text
    json_object_keys json_to_record json_to_recordset json_tree jsonb_array_elements jsonb_array_elements_text jsonb_each
    jsonb_each_text jsonb_object_keys jsonb_to_record jsonb_to_recordset range regexp_matches regexp_split_to_table
    string_to_table unnest
""")
"""What may stand in FROM besides a table: functions that make rows from their arguments alone."""

_DECLARED = re.compile(r"^jsonb?_to_record(?:set)?$")
_OF_A_TYPE = re.compile(r"^jsonb?_populate_record(?:set)?$")

_NEVER = re.compile(
    r"""^(?:
      read_\w+ | write_\w+ | \w*_scan(?:_\w+)? | scan_\w+ | parquet_\w+ | sniff_csv | glob_files | copy_\w+ | query |
      query_table | sql_auto_complete | json_execute_serialized_sql | json_serialize_(?:sql|plan) |
      json_deserialize_sql | which_secret | summary | duckdb_\w+ | pragma_\w+ | pg_(?!typeof$)\w+ | has_\w+_privilege
      | inet_(?:client|server)_\w+ | \w*_description | getvariable | getenv | current_setting | set_config |
      current_query | nextval | setval | currval | lastval | setseed | sleep | sleep_ms | benchmark | error |
      write_log | invoke | test_\w+ | __internal_\w+ | force_checkpoint | checkpoint | load_extension | readfile |
      writefile | edit | fts3_tokenizer | fts3tokenize | fsdir | lsmode | sqlite_\w+ | dbstat | changes |
      total_changes | last_insert_rowid | eval | sqlar_\w+ | zipfile | raise | icu_load_collation | lo_\w+ | dblink\w*
      | query_to_xml\w* | table_to_xml\w* | cursor_to_xml\w* | schema_to_xml\w* | database_to_xml\w* | txid_\w+ |
      load_file | get_lock | release_lock | release_all_locks | is_free_lock | is_used_lock | master_pos_wait |
      source_pos_wait | wait_for_\w+ | gtid_\w+ | sys_exec | sys_eval | last_insert_id | row_count | found_rows |
      updatexml | extractvalue | xp_\w+ | sp_\w+ | openrowset | opendatasource | openquery | utl_\w+ | dbms_\w+ | url
      | file | remote\w* | s3\w* | postgres_\w+ | mysql_\w+ | iceberg_\w+ | delta_\w+ | st_read\w* | st_drivers |
      http_\w+ | arrow_\w+ | python_\w+ | \w*external_resource\w* | \w+_logging | \w+_profiling | truncate_duckdb_logs
      | get_ddl | identifier | system\$\w+
    )$""",
    re.VERBOSE,
)

GROWING = _names("repeat space pad lpad rpad zeroblob randomblob")
"""Functions whose result is as long as a number says. Engines do not count that memory (duckdb 2.0: `repeat` of 1e8
characters over 100 rows took 6 GB under a 512 MiB limit and ignored the interrupt for 15 s), so the guard counts it."""


@cache
def ordinary(dialect: str) -> frozenset[str]:
    """Lower-case names of the functions without a sqlglot class that a query in `dialect` may call."""
    return _BY_DIALECT.get(dialect, frozenset()) | _COMMON


def never(name: str) -> bool:
    """True when no query may call the function of this lower-case name, in any dialect and any position."""
    return _NEVER.match(name) is not None


_SYSTEM_SCHEMAS = {
    "information_schema", "mysql", "performance_schema", "pg_catalog", "pg_toast", "sys", "system", "temp"
}  # fmt: skip
_SYSTEM_TABLES = re.compile(r"^(?:sqlite_|pg_|duckdb_|pragma_|information_schema|(?:dbstat|fts3tokenize|bytecode)$)")
_OWN_SCHEMAS = {"duckdb": {"main"}, "sqlite": {"main"}, "postgres": {"public"}, "tsql": {"dbo"}}
_LOOKS_LIKE_A_FILE = re.compile(r"[./\\:*?\[\]~]|^$")


def refused(message: str, name: str | None = None) -> QueryError:
    """The error of a statement that may not run; `name` is the table, function or type at fault."""
    return QueryError("refused", f"refused: {message}", name)


def function_name(function: exp.Func) -> str:
    """The name as written where sqlglot has no class for it, else sqlglot's own; lower case."""
    if isinstance(function, exp.Anonymous | exp.AnonymousAggFunc):
        return function.name.lower()
    return function.sql_name().lower()


def written_name(function: exp.Func, text: str) -> str:
    """The name as the engine reads it, which sqlglot may call otherwise: `sqlite_version` has its class CurrentVersion."""
    start, end = function.meta.get("start"), function.meta.get("end")
    return "" if start is None or end is None else text[start : end + 1].strip('"`[]').lower()


def type_objection(type_: exp.DataType, schema: Schema | None) -> QueryError | None:
    """PostgreSQL has a type for the rows of each table, with its column names, and types that look names up.

    A type that was made in the database is known where a column has it, as an enumeration; one of rows never is.
    """
    if isinstance(type_, exp.ObjectIdentifier) and str(type_.this).startswith("REG"):
        return refused(f"the type {str(type_.this).lower()} looks into the system catalogue")
    kind = type_.args.get("kind") if type_.this == exp.DType.USERDEFINED else None
    names = [each.name for each in kind.find_all(exp.Identifier)] if isinstance(kind, exp.Expr) else [str(kind or "")]
    own, qualifiers = names[-1].lower().lstrip("_"), {name.lower() for name in names[:-1]}
    rows_of = {table.name.rpartition(".")[2].lower().lstrip("_") for table in schema.tables} if schema else set()
    if own in rows_of or own.startswith("pg_") or qualifiers & _SYSTEM_SCHEMAS:
        return refused(f"the rows of {names[-1]} are no type for a query", names[-1])
    if schema and own in schema.own_types - {word for table in schema.tables for word in _types_of(table)}:
        return refused(f"no column has the type {names[-1]}", names[-1])
    return None


def _types_of(table: Table) -> frozenset[str]:
    return frozenset(word for column in table.columns for word in words_of(column.type))


def table_objection(table: exp.Table, dialect: str, schema: Schema | None) -> QueryError | None:
    """Why this may not stand in FROM."""
    source = table.this
    if isinstance(source, exp.Func):
        name = function_name(source)
        allowed = (
            isinstance(source, exp.GenerateSeries | exp.Unnest) or name in TABLE_FUNCTIONS or _OF_A_TYPE.match(name)
        )
        return rows_objection(table) if allowed else refused(f"{name} cannot be read like a table", name)
    if not isinstance(source, exp.Identifier):
        return refused("FROM may only name tables")
    qualifier, name = ".".join(part for part in (table.catalog, table.db) if part), source.name
    if schema is not None and in_schema(schema, qualifier, name, dialect):
        return None
    return _foreign(qualifier, name, dialect, schema)


def rows_objection(source: exp.Expr) -> QueryError | None:
    """Why a function may not stand in FROM, or after LATERAL, like this: what columns it gives has to be written there."""
    name = function_name(source.this) if isinstance(source.this, exp.Func) else ""
    listed = (source.args.get("alias") or exp.TableAlias()).args.get("columns") or ()
    advice = f"write {name.replace('populate', 'to')}(...) AS t(name type, ...)"
    if _OF_A_TYPE.match(name):
        return refused(f"{name} gives the columns of a type; {advice}", name)
    if _DECLARED.match(name) and not (listed and all(isinstance(each, exp.ColumnDef) for each in listed)):
        return refused(f"{name} does not say which columns it gives; {advice}", name)
    return None


def in_schema(schema: Schema, qualifier: str, name: str, dialect: str) -> Table | None:
    """The table that a statement means by this name; `qualifier`: the schema that stands before it, or ""."""
    if not qualifier or qualifier.lower() in _OWN_SCHEMAS.get(dialect, set()):
        return schema.table(name)
    return schema.table(f"{qualifier}.{name}")


def unknown_table(found: exp.Expr, schema: Schema | None) -> QueryError:
    """The error of a name that is no table."""
    by_key = {table.name.casefold(): table.name for table in schema.tables} if schema else {}
    close = get_close_matches(found.name.casefold(), by_key, n=3)
    candidates = tuple(by_key[key] for key in close)
    return QueryError("unknown_table", f"no such table: {found.name}", found.name, None, candidates)


def _foreign(qualifier: str, name: str, dialect: str, schema: Schema | None) -> QueryError | None:
    """Why a table that the schema does not list may not even be tried; None leaves it to the engine."""
    if _SYSTEM_TABLES.match(name.lower()) or _SYSTEM_SCHEMAS & set(qualifier.lower().split(".")):
        return refused(f"{name} is a system catalogue", name)
    if _LOOKS_LIKE_A_FILE.search(name):
        return refused(f"{name} is no table of this database", name)
    if qualifier and schema is not None and not _harmless(qualifier, dialect, schema):
        return refused(f"{qualifier}.{name} lies outside this database", f"{qualifier}.{name}")
    return None


def _harmless(qualifier: str, dialect: str, schema: Schema) -> bool:
    """A schema that is known, or that cannot exist: DuckDB and SQLite hold one file here and will say, with candidates,
    that they do not know `concert_singer.singer`."""
    if dialect in ("duckdb", "sqlite") and "." not in qualifier:
        return True
    return qualifier.lower() in _known_schemas(schema, dialect)


def _known_schemas(schema: Schema, dialect: str) -> set[str]:
    prefixes = {table.name.rpartition(".")[0].lower() for table in schema.tables}
    return prefixes | _OWN_SCHEMAS.get(dialect, set())
