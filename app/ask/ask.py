"""`sqlagent ask` and `sqlagent chat`: questions from the command line, from a pipe, or in a dialogue.

`chat` keeps its conversations on disk, so that they survive a restart. Besides questions it takes commands with a slash, and
words with which people leave or look around.
"""

import gc
import signal
import sqlite3
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Thread, current_thread, main_thread
from typing import TYPE_CHECKING, Annotated, Any

import typer

from app.ask.inspect import export_answer, looks_around, print_schema
from app.shared import databases, exit_codes, options, output
from app.shared.options import EXPORTED_ROWS, SHOWN_ROWS, Asking, DatabaseOptions, Decoding, Query, spread_for_people
from app.shared.process import MachineTurn, spare_tracing

if TYPE_CHECKING:
    from langgraph.checkpoint.sqlite import SqliteSaver

    from agent.assemble import ModelChoice
    from agent.context import AgentOptions
    from agent.conversation import Conversation
    from tools.result import Limits


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


DEFAULT_QUESTION = "What is the average list price of the albums?"
Clarify = Annotated[
    bool, typer.Option("--clarify/--no-clarify", help="On a terminal, ask back if the question is unclear.")
]

Steps = Annotated[bool, typer.Option("--steps", help="Show what each step of the agent cost.")]


@spread_for_people
def ask(
    question: Annotated[str | None, typer.Argument(help="The question; read from stdin when it is not given.")] = None,
    source: DatabaseOptions = DatabaseOptions(),
    decoding: Decoding = Decoding(),
    asking: Asking = Asking(),
    query: Query = Query(),
    escalate: options.Escalate = "",
    evidence: Annotated[str, typer.Option("--evidence", help="What words of the question mean in this data.")] = "",
    race: Annotated[
        bool, typer.Option("--race", help="Also decode every step without drafts, to measure the saving.")
    ] = False,
    as_json: options.Json = False,
    sql_only: Annotated[bool, typer.Option("--sql-only", help="Print nothing but the SQL.")] = False,
    steps: Steps = False,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Also write the rows to this file: .csv, .parquet or .xlsx.", dir_okay=False),
    ] = None,
    deadline: options.Deadline = 300.0,
    clarify: Clarify = True,
) -> None:
    """Answer a question about a database."""
    with exit_codes.plain_errors(as_json):
        text = _question(question, source.db)
        asks_back = clarify and _with_a_person(as_json or sql_only)
        agent_options = partial(_agent_options, asking, race, asks_back, deadline)
        most = EXPORTED_ROWS if out else SHOWN_ROWS
        turn = MachineTurn(decoding.runs_here)
        choose = partial(decoding.choice, escalate)
        with _talking(turn, source, choose, agent_options, query.limits(most)) as conversation:
            answer = follow(turn, conversation, text, evidence)
            written, unwritten = _exported(conversation, out) if out and not answer["error"] else ("", None)
    if as_json:
        output.print_json(answer)
    elif sql_only and answer["sql"]:
        from tools.sql.spelling import pretty_sql

        output.exact()
        print(output.for_stdout(pretty_sql(answer["sql"], answer["dialect"], over_lines=sys.stdout.isatty())))
    elif answer["error"]:
        output.report(f"sqlagent: {answer['answer']}")
        which = answer["which_reading"]
        output.print_alternatives(answer, output.shown(which["message"]) if which else "It may mean:")
    else:
        output.print_answer(answer, steps)
    if unwritten:  # the answer is there all the same
        raise exit_codes.fail(*unwritten)
    if written:
        output.report(written)
    if written and answer["truncated"] and not query.limit:
        raise exit_codes.fail(
            f"{out} lacks the rows after the first {most:,}; --limit sets how many", exit_codes.INCOMPLETE
        )
    raise typer.Exit(exit_codes.code_of(answer["error"]["kind"] if answer["error"] else None))


def _exported(conversation: "Conversation", path: Path) -> tuple[str, tuple[str, int] | None]:
    """Write the answer to a file; returns what to tell, or what went wrong with its exit code."""
    try:
        return export_answer(conversation.toolbox, path), None
    except Exception as error:
        return "", exit_codes.told_of(error)


@spread_for_people
def chat(
    source: DatabaseOptions = DatabaseOptions(),
    decoding: Decoding = Decoding(),
    asking: Asking = Asking(),
    query: Query = Query(),
    escalate: options.Escalate = "",
    thread: Annotated[
        str | None, typer.Option("--continue", "-c", help="Continue an earlier conversation, by its name.")
    ] = None,
    as_json: options.Json = False,
    steps: Steps = False,
    deadline: options.Deadline = 300.0,
    clarify: Clarify = True,
) -> None:
    """Ask one question after another; a follow-up may refer to earlier ones. Reads one question per line; /help lists
    commands.
    """
    agent_options = partial(_agent_options, asking, False, clarify and _with_a_person(as_json), deadline)
    turn = MachineTurn(decoding.runs_here)
    with (
        exit_codes.plain_errors(as_json),
        _talking(
            turn,
            source,
            partial(decoding.choice, escalate),
            agent_options,
            query.limits(),
            partial(kept_conversations, thread),
            thread,
        ) as conversation,
    ):
        turn.leave()
        if sys.stdin.isatty():
            asked = conversation.toolbox.database.name
            output.report(
                f"Asking {asked}; /help lists commands, an empty line ends. Conversation: {conversation.thread}"
            )
        commands = ChatCommands(conversation, asking.knowledge)
        for line in _lines():
            try:
                if commands.take(line):
                    continue
                answer = _stoppable(turn, conversation, line)
            except Leave:
                break
            except (BrokenPipeError, typer.Exit):
                raise
            except Exception as error:
                told, code = exit_codes.told_of(error)
                if code == exit_codes.INCOMPLETE:  # nobody reads what is written
                    raise exit_codes.fail(told, code) from error
                output.report(told)
                continue
            finally:
                turn.leave()
            commands.answer = answer
            if answer is None:
                output.report("stopped")
            elif as_json:
                output.print_json(answer)
            else:
                output.print_answer(answer, steps)


def _stoppable(turn: MachineTurn, conversation: "Conversation", question: str) -> dict[str, Any] | None:
    """The answer; None where Ctrl+C stopped it. A second Ctrl+C ends the program."""
    from decoding.serving.model_queue import Stopped

    toolbox = conversation.toolbox

    def stop(number: int, frame: Any) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        toolbox.stop.stop()
        Thread(target=toolbox.database.interrupt, daemon=True).start()

    former = signal.signal(signal.SIGINT, stop) if current_thread() is main_thread() else None
    try:
        answer = follow(turn, conversation, question)
        return None if toolbox.stop.is_set() and answer["error"] else answer
    except Stopped:
        return None
    finally:
        toolbox.stop.clear()
        if former is not None:
            signal.signal(signal.SIGINT, former)


def follow(turn: MachineTurn, conversation: "Conversation", question: str, evidence: str = "") -> dict[str, Any]:
    """Ask the question and show progress on stderr; if it is unclear, let the person choose what is meant. Returns the answer
    as a dict.

    It takes the machine's turn, and keeps it with the answer; while a person chooses a meaning, others may have it.
    """
    from agent.observe.events import Answered, Started, Unclear
    from agent.observe.step_record import step_title

    answer: dict[str, Any] = {}
    meanings: Mapping[str, str] = {}
    turn.take()
    with output.stderr.status("Reading the question") as status:
        for event in conversation.events(question, evidence):
            match event:
                case Started():
                    status.update(step_title(event.step))
                case Unclear():
                    meanings = event.options
                case Answered():
                    answer = event.answer
    if not meanings:
        return answer
    turn.leave()
    if not (chosen := _chosen(answer["answer"], meanings)):
        conversation.toolbox.options = replace(conversation.toolbox.options, clarify=False)
    return follow(turn, conversation, question, chosen)


def _with_a_person(machine_readable: bool) -> bool:
    return not machine_readable and sys.stdin is not None and sys.stdin.isatty() and output.stderr.is_terminal


def _chosen(question: str, meanings: Mapping[str, str]) -> str:
    """The evidence for the meaning whose number is typed; empty if the question is to be answered as it is."""
    from rich.prompt import IntPrompt

    output.report(question)
    for number, label in enumerate([*meanings, "answer it as it stands, and do not ask back"], 1):
        output.report(f"  {number}  {label}")
    numbers = [str(number) for number in range(1, len(meanings) + 2)]
    number = IntPrompt.ask("which", choices=numbers, default=len(numbers), console=output.stderr)
    return [*meanings.values(), ""][number - 1]


@contextmanager
def _talking(
    turn: MachineTurn,
    source: DatabaseOptions,
    choose: Callable[[], "ModelChoice"],
    agent_options: Callable[[], "AgentOptions"],
    limits: "Limits",
    saver: Callable[[], Any] = lambda: None,
    thread: str | None = None,
) -> Iterator["Conversation"]:
    """A conversation with a model that is loaded in the machine's turn; its database is closed at the end.

    The database is opened first, so that a wrong path is reported before a model is loaded. Everything that takes much memory
    is imported in the turn.
    """
    gc.disable()  # what is loaded stays, and looking through it again and again takes longer than the answer
    database = source.open()
    try:
        turn.take()
        database.prepare()
        spare_tracing()
        from agent.assemble import any_model
        from agent.conversation import Conversation

        toolbox = any_model(replace(choose(), keep_prompts=source.is_kept)).toolbox(database, agent_options(), limits)
        kept = saver()
        toolbox.trail = databases.trail("chat" if kept else "ask")
        conversation = Conversation(toolbox, kept, thread)
        gc.freeze()
        gc.enable()
        yield conversation
    finally:
        gc.unfreeze()
        gc.enable()
        database.close()
        turn.leave()


def _agent_options(asking: Asking, race: bool, clarify: bool, deadline_s: float) -> "AgentOptions":
    return replace(asking.agent_options(race, present=True, deadline_s=deadline_s), clarify=clarify)


def _question(given: str | None, db: list[str] | None) -> str:
    """The question given, otherwise the one on stdin, otherwise, for the example database, an example question."""
    at_terminal = sys.stdin is None or sys.stdin.isatty()
    text = (given if given is not None and given != "-" else "" if at_terminal else sys.stdin.read()).strip()
    if text:
        return text
    if given is None and db is None and at_terminal:
        print(f"Asking the example database: {DEFAULT_QUESTION}", file=sys.stderr)
        return DEFAULT_QUESTION
    raise exit_codes.fail('no question; try: sqlagent ask "How many customers are there?"', exit_codes.USAGE)


def _lines() -> Any:
    """Questions, one per line, until an empty line or the end of input."""
    while True:
        try:
            line = input("? " if sys.stdin.isatty() else "").strip()
        except EOFError:
            return
        if not line and sys.stdin.isatty():
            return
        if line:
            yield line
