"""Keeps the conversations of `sqlagent chat` on disk, so that they survive a restart."""

import sqlite3
from typing import TYPE_CHECKING

from app.shared import exit_codes, output

if TYPE_CHECKING:
    from langgraph.checkpoint.sqlite import SqliteSaver


def kept_conversations(thread: str | None) -> "SqliteSaver":
    """A SQLite file in the user's cache, which only this user can read.

    If it cannot be used, a line on stderr says so, and the conversation is kept until the program ends; if an earlier one was
    to be continued (`thread`), the program ends instead.
    """
    from langgraph.checkpoint.sqlite import SqliteSaver

    from decoding.checkpoints.fetch.cache_folder import cache_root, private_file

    path = cache_root() / "conversations.sqlite"
    try:
        connection = sqlite3.connect(private_file(path), check_same_thread=False)
        connection.execute("BEGIN IMMEDIATE")  # fails now if the file is read-only
        connection.rollback()
        saver = SqliteSaver(connection)
        saver.setup()
        return saver
    except (OSError, sqlite3.Error) as error:
        trouble = f"{path} cannot be used ({error}): make it writable, or move it away if it is damaged"
        if thread is not None:
            raise exit_codes.fail(trouble, exit_codes.USAGE) from error
        output.report(f"sqlagent: this conversation is not kept, {trouble}")
        return SqliteSaver(sqlite3.connect(":memory:", check_same_thread=False))
