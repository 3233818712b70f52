"""SQL taken as text: what is dropped, what is kept."""

import pytest

from eval.scoring.rules import first_statement, one_line, without_distinct


@pytest.mark.parametrize(
    ("sql", "line"),
    [
        ("SELECT a\nFROM t", "SELECT a FROM t"),
        ("SELECT a --the name\nFROM t", "SELECT a   FROM t"),
        ("SELECT '-- kept'\tFROM t", "SELECT '-- kept' FROM t"),
        ("SELECT 'a\nb'", "SELECT 'a b'"),
        ("SELECT 'two  spaces' /* kept */", "SELECT 'two  spaces' /* kept */"),
        ("-- nothing else", ""),
        ("\n \n", ""),
    ],
)
def test_one_line(sql: str, line: str) -> None:
    """Guards against a line comment that swallows the rest once line breaks are spaces."""
    assert one_line(sql) == line


@pytest.mark.parametrize(
    ("sql", "first"),
    [
        ("SELECT 1; SELECT 2", "SELECT 1;"),
        ("SELECT ';' ; SELECT 2", "SELECT ';' ;"),
        ('SELECT "a;b" /* ; */ FROM t', 'SELECT "a;b" /* ; */ FROM t'),
        ("SELECT `a;b`, [c;d]; x", "SELECT `a;b`, [c;d];"),
    ],
)
def test_first_statement(sql: str, first: str) -> None:
    """Guards against cutting a statement at a semicolon inside a literal, a name or a comment."""
    assert first_statement(sql) == first


@pytest.mark.parametrize(
    ("sql", "kept"),
    [
        ("SELECT DISTINCT a", "SELECT  a"),
        ("SELECT count(distinct a)", "SELECT count( a)"),
        (
            "SELECT 'distinct', \"distinct\", `distinct`, [distinct]",
            "SELECT 'distinct', \"distinct\", `distinct`, [distinct]",
        ),
        ("SELECT distinctive, is_distinct", "SELECT distinctive, is_distinct"),
        ("SELECT 'it''s' , DISTINCT a", "SELECT 'it''s' ,  a"),
    ],
)
def test_without_distinct(sql: str, kept: str) -> None:
    """Guards against dropping the word where it is data or part of a name."""
    assert without_distinct(sql) == kept
