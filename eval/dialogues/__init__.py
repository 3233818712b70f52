"""Written dialogues as a test of whole conversations: `read` (the file) -> `ask` (turn by turn) -> `summary`.

`record_shops.jsonl` is bundled: dialogues about the example database.
"""
