"""Written dialogues, which test whole conversations: `read` (the file) -> `ask` (turn by turn) -> `summary`.

Start at `ask`. The bundled `record_shops*.jsonl` hold dialogues about the example database.
"""
