"""`sqlagent ask` and `sqlagent chat`: questions from the command line, from a pipe, or in a dialogue."""

import gc
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Thread, current_thread, main_thread
from typing import TYPE_CHECKING, Annotated, Any

import typer

from app.ask.chat_commands import ChatCommands, Leave, kept_conversations
from app.ask.inspect import export_answer
from app.ask.spare_tracing import spare_tracing
from app.shared import databases, exit_codes, options, output, streams
from app.shared.option_groups import (
    EXPORTED_ROWS,
    SHOWN_ROWS,
    Asking,
    DatabaseOptions,
    Decoding,
    Query,
    spread_for_people,
)
from app.shared.process import MachineTurn

if TYPE_CHECKING:
    from agent.context import AgentOptions
    from agent.conversation import Conversation
    from tools.result import Limits


DEFAULT_QUESTION = "What is the average list price of the albums?"
Clarify = Annotated[
    bool, typer.Option("--clarify/--no-clarify", help="On a terminal, ask back where the question is unclear.")
]

Steps = Annotated[bool, typer.Option("--steps", help="Show what each step of the agent cost.")]


@spread_for_people
def ask(
    question: Annotated[str | None, typer.Argument(help="The question; read from stdin when it is not given.")] = None,
    source: DatabaseOptions = DatabaseOptions(),
    decoding: Decoding = Decoding(),
    asking: Asking = Asking(),
    query: Query = Query(),
    evidence: Annotated[str, typer.Option("--evidence", help="What words of the question mean in this data.")] = "",
    race: Annotated[
        bool, typer.Option("--race", help="Also decode every step plainly, to measure the saving.")
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
        with _talking(turn, source, decoding, agent_options, query.limits(most)) as conversation:
            answer = follow(turn, conversation, text, evidence)
            written, unwritten = _exported(conversation, out) if out and not answer["error"] else ("", None)
    if as_json:
        output.print_json(answer)
    elif sql_only and answer["sql"]:
        from tools.sql.rendering import pretty_sql

        streams.exact()
        print(output.for_stdout(pretty_sql(answer["sql"], answer["dialect"], over_lines=sys.stdout.isatty())))
    elif answer["error"]:
        output.report(f"sqlagent: {answer['answer']}")
        output.print_alternatives(answer, "It may mean:")
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
    thread: Annotated[
        str | None, typer.Option("--continue", "-c", help="Go on with an earlier conversation, by its name.")
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
            turn, source, decoding, agent_options, query.limits(), partial(kept_conversations, thread), thread
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
    from agent.observe.node_table import step_title

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
    decoding: Decoding,
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

        toolbox = any_model(replace(decoding.choice(), keep_prompts=source.is_kept)).toolbox(
            database, agent_options(), limits
        )
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
