"""The grammar of one SELECT statement. `notation` explains the signs, `terminals` the <names>, `actions` the {actions}.

Operators have one precedence, because a mask need not know how an expression groups. What matters is how an expression
starts: a bare number in ORDER BY is a position, a bare column in SELECT is exported under its name. An action that may
fail comes before the word that leads to it, so that no word leads to a dead end. Repetitions that people keep short have
a limit (sources of FROM, conditions joined by AND, terms of a sum): a small model that has lost its way would otherwise
repeat itself up to the length limit.
"""

COMMON = """
statement = query ';'? <end>
query = ({deeper} WITH cte ({room} ',' cte)*)? arm (order? limit? | compound compound* output_order? limit?)
cte = <cte_name> AS {cte_query} '(' query ')' {close} {bind_cte}
arm = SELECT {arm} DISTINCT? item ({another} ',' item)* {listed} (FROM source join* {joined} where? group? | {no_from})
compound = {room} (UNION ALL? {compound} | (INTERSECT | EXCEPT) {alike}) arm

item = {item} ({star} '*' | <starred> | <new_starred> | entry {about} item_rest | other {silent} tail named?)
entry = <entry_column> | <entry_qualifier> | <new_entry_qualifier>
item_rest = named | {name_column} | more named?
named = AS <output_alias>

source = <table> | {from_query} '(' query ')' {close} <placed>
join = {join} ({product} (',' {comma} source | CROSS JOIN source) | joined)
join_kind = (INNER | LEFT OUTER? | RIGHT OUTER? | FULL OUTER?)?
condition = ON {on} <join_on> | {sharing} USING '(' <shared> ')'
more_conditions = ({further} AND expr)?

where = {where} WHERE expr
group = GROUP BY {group} group_key ({room} ',' group_key)* {grouped} ({having} HAVING expr)?
group_key = <position> | sortable
order = {order} ORDER BY order_key ({room} ',' order_key)*
order_key = (<position> | sortable) direction
output_order = {room} ORDER BY output_key ({room} ',' output_key)*
output_key = (<output_position> | <output>) direction
direction = (ASC | DESC)? (NULLS (FIRST | LAST))?

expr = {room} NOT expr | operand tail
tail = more?
more = {further} calc operand {silent} tail | {compared} compared joint? | joint
compared = compare arith | IS NOT? NULL | negatable | NOT negatable
joint = {further} (AND | OR) expr
negatable = {measured} BETWEEN arith AND arith | IN members | matching
arith = (column | <told>) ({further} calc operand)*
text = (column | <pattern>) ({further} calc operand)*
compare = '=' | '!=' | '<>' | {measured} ('<' | '<=' | '>' | '>=')
members = {member_query} '(' query ')' {close} | '(' arith ({room} ',' arith)* ')'
tested = {room} column {about} compared joint?
operand = column {about} | other {silent}
column = <column> | <qualifier> | <new_qualifier>
other = literal | keyed | '-' (<number> | column | keyed)
computed = keyed | NULL | CURRENT_DATE | CURRENT_TIMESTAMP | TRUE | FALSE
keyed = <function> | case | cast | {any_query} EXISTS '(' query ')' {close} | subquery | {enter} '(' expr ')' {leave}
subquery = {one_column} '(' query ')' {close}
sortable = column {about} tail | sorted {silent} tail
sorted = <function> | case | cast | subquery | {enter} '(' sortable ')' {leave}
case = {enter} CASE expr? when ({room} when)* (ELSE expr)? END {leave}
when = WHEN expr THEN expr
cast = {enter} CAST '(' argument AS type ')' {leave}
argument = {room} expr | {brief} operand

window = OVER '(' (PARTITION BY expr ({room} ',' expr)*)? (ORDER BY frame_key ({room} ',' frame_key)*)? ')'
filter = FILTER '(' WHERE expr ')'
frame_key = expr direction
"""

SQLITE = """
joined = join_kind JOIN source ({unbound} | condition)
limit = {room} LIMIT <number> (OFFSET <number> | ',' <number>)?
literal = <number> | <string> | NULL | TRUE | FALSE | CURRENT_DATE | CURRENT_TIMESTAMP
type = INTEGER | INT | REAL | TEXT | FLOAT | DOUBLE | NUMERIC | BIGINT | DATE | DATETIME | (DECIMAL | VARCHAR) precision?
precision = '(' <number> (',' <number>)? ')'
matching = LIKE text (ESCAPE <escape>)? | GLOB {silent} arith
calc = '+' | '-' | '*' | '/' | '%' | '||'
"""

DUCKDB = """
joined = join_kind JOIN source condition
limit = {room} LIMIT <number> (OFFSET <number>)?
literal = <number> | <string> | NULL | TRUE | FALSE | CURRENT_DATE | CURRENT_TIMESTAMP | (DATE | TIMESTAMP) <string> | interval
typed = '::' type
interval = INTERVAL (<string> unit? | <number> unit)
unit = SECOND | MINUTE | HOUR | DAY | WEEK | MONTH | QUARTER | YEAR
type = INTEGER | INT | BIGINT | DOUBLE | REAL | FLOAT | TEXT | VARCHAR | DATE | TIMESTAMP | TIME | BOOLEAN | DECIMAL precision?
precision = '(' <number> ',' <number> ')'
matching = (LIKE | ILIKE) text (ESCAPE <escape>)?
calc = '+' | '-' | '*' | '/' | '//' | '%' | '||'
operand = (column {about} | other {silent}) ({room} {silent} typed)*
more = ({room} {silent} typed | {further} calc operand {silent}) tail | {compared} compared joint? | joint
cast = {enter} ((CAST | TRY_CAST) '(' argument AS type | EXTRACT '(' unit FROM expr) ')' {leave}
"""
