"""Recognises a request to change data: it is told that only reading is done, and gets no answer to something else."""

import re

_COURTESY = r"(?:please|can you|could you|would you|now|just|then|and|,|\s)*"
_DONE = {
    "delete": "deleted", "erase": "deleted", "wipe": "deleted", "destroy": "deleted", "truncate": "deleted", "drop": "deleted",
    "insert": "inserted", "update": "updated", "rename": "renamed", "alter": "altered", "overwrite": "overwritten",
}  # fmt: skip
_REQUEST = re.compile(
    rf"{_COURTESY}(?P<verb>delete|erase|wipe|destroy|truncate|insert|overwrite|rename|alter|update(?! (?:me|us)\b)|"
    r"drop(?= (?:all|every|the tables?|the database|table|database|index|view)\b))\b",
    re.IGNORECASE,
)


def write_request(question: str) -> str | None:
    """What is told to someone who asks to change data; None for a question.

    >>> write_request("Please delete all albums")
    'Nothing was deleted, and nothing will be: data are only read here.'
    >>> write_request("Which albums were deleted?"), write_request("Update me on sales"), write_request("drop the city")
    (None, None, None)
    """
    found = _REQUEST.match(question.strip())
    if found is None:
        return None
    return f"Nothing was {_DONE[found['verb'].lower()]}, and nothing will be: data are only read here."
