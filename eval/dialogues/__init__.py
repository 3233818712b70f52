"""Tests whole conversations with prepared dialogues: `read` (the file) -> `ask` (turn by turn) -> `summary`.

Start at `ask`. The bundled `record_shops*.jsonl` hold dialogues about the example database.
"""
