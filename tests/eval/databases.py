"""Three small invented databases, in Spider's layout, for the pairs whose official verdicts are recorded.

They hold what scorers trip over: ties, duplicates, NULL, numbers as text, whole floats, 0.1 + 0.2, an empty table, a
column called value, bytes that are not UTF-8.
"""

import json
import sqlite3
from pathlib import Path
from typing import Any

_LIBRARY = """
CREATE TABLE author (author_id INTEGER PRIMARY KEY, name TEXT, country TEXT, born INTEGER);
CREATE TABLE book (book_id INTEGER PRIMARY KEY, title TEXT, author_id INTEGER REFERENCES author(author_id),
                   pages INTEGER, price REAL, code TEXT, value INTEGER);
CREATE TABLE member (member_id INTEGER PRIMARY KEY, name TEXT, town TEXT, fee REAL);
CREATE TABLE loan (loan_id INTEGER PRIMARY KEY, book_id INTEGER REFERENCES book(book_id),
                   member_id INTEGER REFERENCES member(member_id), days INTEGER, returned TEXT);
CREATE TABLE note (note_id INTEGER PRIMARY KEY, body TEXT);
INSERT INTO author VALUES (1, 'Ada Fern', 'Norway', 1950), (2, 'Bo Lind', 'Sweden', 1961),
                          (3, 'Cy Marsh', 'Norway', NULL), (4, 'Di Moss', NULL, 1950);
INSERT INTO book VALUES (1, 'Moss', 1, 200, 10.0, '007', 5), (2, 'Fjord', 1, 320, 12.5, '12', 7),
                        (3, 'Lake', 2, 200, 10.0, '7', 5), (4, 'Reed', 3, 150, NULL, '40', NULL),
                        (5, 'Fen', 2, 411, 30.33, '5', 9), (6, 'Bog', 3, NULL, 8.0, NULL, 5);
INSERT INTO member VALUES (1, 'Eli', 'Oslo', 1.0), (2, 'Fay', 'Bergen', 2.5), (3, 'Gus', 'Oslo', 1.0),
                          (4, 'Eli', 'Bergen', NULL);
INSERT INTO loan VALUES (1, 1, 1, 10, '2024-01-05'), (2, 1, 2, 10, NULL), (3, 2, 1, 21, '2024-02-01'),
                        (4, 3, 3, 3, '2024-02-09'), (5, 5, 1, 10, NULL), (6, 5, 3, 21, '2024-03-01');
"""

_GAUGE = """
CREATE TABLE reading (reading_id INTEGER PRIMARY KEY, whole INTEGER, real REAL, label TEXT, low REAL, high REAL);
CREATE TABLE grid (a INTEGER, b INTEGER, c INTEGER, d INTEGER, e INTEGER);
INSERT INTO reading VALUES (1, 1, 1.0, '1', 0.1, 0.2), (2, 2, 2.0, '2', 0.3, 0.3), (3, 3, 3.5, '3.5', 1.0, 1.5),
                           (4, NULL, NULL, NULL, NULL, NULL), (5, 2, 2.0, '2', 0.3, 0.3);
INSERT INTO grid VALUES (1, 1, 2, 3, 4), (1, 1, 3, 2, 4), (1, 1, 2, 2, 4), (1, 1, 3, 3, 4);
"""

_LEGACY = """
CREATE TABLE item (item_id INTEGER PRIMARY KEY, label TEXT);
INSERT INTO item VALUES (1, CAST(x'636166E9' AS TEXT)), (2, 'caf'), (3, 'tea');
"""

SCRIPTS = {"library": _LIBRARY, "gauge": _GAUGE, "legacy": _LEGACY}


def build(root: Path) -> None:
    """Write database/DB/DB.sqlite for each, and tables.json, below `root`."""
    entries = []
    for db_id, script in SCRIPTS.items():
        folder = root / "database" / db_id
        folder.mkdir(parents=True)
        connection = sqlite3.connect(folder / f"{db_id}.sqlite")
        connection.executescript(script)
        entries.append(_tables_entry(db_id, connection))
        connection.close()
    (root / "tables.json").write_text(json.dumps(entries))


def _tables_entry(db_id: str, connection: sqlite3.Connection) -> dict[str, Any]:
    """The database as an entry of Spider's tables.json: [-1, "*"] first, foreign keys as pairs of column indexes."""
    names = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    columns: list[tuple[int, str]] = [(-1, "*")]
    for index, name in enumerate(names):
        columns += [(index, row[1]) for row in connection.execute(f"PRAGMA table_info({name})")]
    keys = [
        [columns.index((index, key[3])), columns.index((names.index(key[2]), key[4]))]
        for index, name in enumerate(names)
        for key in connection.execute(f"PRAGMA foreign_key_list({name})")
    ]
    return {
        "db_id": db_id,
        "table_names_original": names,
        "column_names_original": columns,
        "foreign_keys": keys,
    }
