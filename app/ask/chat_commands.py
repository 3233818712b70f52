"""What `sqlagent chat` takes besides questions, and the conversations that it keeps.

Keeps the conversations of `sqlagent chat` on disk, so that they survive a restart.

What `sqlagent chat` takes besides questions: commands with a slash, and words with which people leave or look around.
"""

import sqlite3
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from app.ask.inspect import export_answer, looks_around, print_schema
from app.shared import exit_codes, output

if TYPE_CHECKING:
    from langgraph.checkpoint.sqlite import SqliteSaver

    from agent.conversation import Conversation


def kept_conversations(thread: str | None) -> "SqliteSaver":
    """A SQLite file in the user's cache, which only this user can read.

    If it cannot be used, a line on stderr says so, and the conversation is kept until the program ends; if an earlier one was
    to be continued (`thread`), the program ends instead.
    """
    from langgraph.checkpoint.sqlite import SqliteSaver

    from decoding.checkpoints.cache_folder import cache_root, private_file

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


HELP = """/help            this list
/sql             the SQL of the last answer; /sql SELECT ... runs one
/schema [TABLE]  the tables, or one of them; also: show tables, describe TABLE
/other N         the last question again, in its other reading of that number
/undo            forget the last question
/like            keep the last question and its SQL as an example, in the folder of --knowledge
/out FILE        the last answer as .csv, .parquet or .xlsx
/quit            leave; also: exit, quit, an empty line
Ctrl+C stops an answer, and not the chat."""
_LEAVE = frozenset(("exit", "quit", "bye", ":q", "\\q", "/exit", "/quit", "/q"))


class Leave(Exception):
    """The person wants to leave."""


class ChatCommands:
    """The commands of one chat. It remembers the last answer, which most of them are about."""

    def __init__(self, conversation: "Conversation", knowledge: Path | None) -> None:
        self._conversation, self._knowledge = conversation, knowledge
        self.answer: Mapping[str, Any] | None = None
        self._commands: Mapping[str, Callable[[str], None]] = {
            "help": lambda _: print(HELP),
            "sql": self._sql,
            "schema": self._schema,
            "other": self._other,
            "undo": self._undo,
            "like": self._like,
            "out": self._out,
        }

    def take(self, line: str) -> bool:
        """Whether the line was a command, which then is done. Raises Leave."""
        words = line.rstrip(";").split(maxsplit=1)
        if line.casefold() in _LEAVE:
            raise Leave
        if line.startswith("/"):
            run = self._commands.get(words[0][1:].casefold())
            if run:
                run(words[1].strip() if len(words) > 1 else "")
            else:
                output.report(f"there is no {words[0]}; /help lists what there is")
            return True
        plain = " ".join(line.rstrip(";").casefold().split())
        if plain in ("help", "?"):
            print(HELP)
        elif (table := looks_around(line)) == "" or (
            table and self._conversation.toolbox.database.schema().table(table)
        ):
            self._schema(table)
        else:
            return False
        return True

    def _schema(self, table: str) -> None:
        with suppress(typer.Exit):  # what is wrong has been said, and the chat goes on
            print_schema(self._conversation.toolbox.database, table)

    def _sql(self, statement: str) -> None:
        toolbox = self._conversation.toolbox
        if statement:
            from agent.observe.audit import run_sql
            from tools.result import QueryError

            outcome = run_sql(toolbox.trail, toolbox.database, statement, toolbox.limits)
            if isinstance(outcome, QueryError):
                output.report(outcome.message)
            else:
                output.print_rows(outcome.columns, outcome.rows, outcome.truncated)
        elif self.answer and self.answer["sql"]:
            output.print_sql(self.answer["sql"], self.answer["dialect"])
        else:
            output.report("there is no SQL yet")

    def _other(self, number: str) -> None:
        others = self.answer["alternatives"] if self.answer else []
        if self.answer is None or not (number.isdecimal() and 1 <= int(number) <= len(others)):
            output.report(
                f"choose a reading from 1 to {len(others)}" if others else "there is no other reading to choose"
            )
            return
        from agent.conversation import Retry

        again = Retry(chosen=others[int(number) - 1]["sql"])
        question = self.answer["question"]
        self._conversation.undo()
        answer = self._conversation.ask(question, again=again).to_dict()
        output.print_answer(answer)
        self.answer = answer | {"alternatives": others}

    def _undo(self, _: str) -> None:
        question = self._conversation.undo()
        self.answer = None
        output.report(f"forgotten: {question}" if question else "there is nothing to forget")

    def _like(self, _: str) -> None:
        from agent.archive import add_examples
        from agent.prompts.knowledge import KnowledgeError

        if not (self.answer and self.answer["sql"]):
            output.report("there is no answer to keep yet")
        elif self.answer.get("continues"):
            output.report("a question that continues another is no example by itself; ask it in full, then /like")
        elif self._knowledge is None:
            output.report("start the chat with --knowledge FOLDER to keep examples there")
        else:
            try:
                added = add_examples(self._knowledge, [(self.answer["question"], self.answer["sql"])])
                output.report(f"kept in {self._knowledge}" if added else "it is there already")
            except (KnowledgeError, OSError) as error:
                output.report(str(error))

    def _out(self, path: str) -> None:
        if not path:
            output.report("name a file: /out answer.csv")
        else:
            from tools.databases.files.export import ExportError

            try:
                output.report(export_answer(self._conversation.toolbox, Path(path)))
            except ExportError as error:
                output.report(str(error))
