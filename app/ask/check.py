"""`sqlagent check`: a second opinion on SQL that somebody else wrote.

`sqlagent test`: a file of questions with what is expected of each answer, for continuous integration.
"""

import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from xml.etree import ElementTree

import typer

from app.shared import databases, exit_codes, options, output
from app.shared.databases import files_named, kept, open_named
from app.shared.options import Asking, DatabaseOptions, Decoding, Query, spread_for_people

if TYPE_CHECKING:
    from agent.question_tests import Verdict
    from tools.review import Review


@spread_for_people
def check(
    statement: Annotated[str | None, typer.Argument(help="One SELECT; read from stdin when it is not given.")] = None,
    question: Annotated[
        str, typer.Option("--question", help="The question to answer; the rows are compared with those of our own SQL.")
    ] = "",
    evidence: Annotated[str, typer.Option("--evidence", help="What words of the question mean in this data.")] = "",
    source: DatabaseOptions = DatabaseOptions(),
    decoding: Decoding = Decoding(),
    asking: Asking = Asking(),
    query: Query = Query(),
    as_json: options.Json = False,
) -> None:
    """Say what SQL reads and what the data say against it: repeated rows, wrong joins, NULLs, ties."""
    from agent.assistant import Assistant

    text = statement if statement not in (None, "-") else "" if sys.stdin.isatty() else sys.stdin.read()
    if not text.strip():
        raise exit_codes.fail("no SQL; try: sqlagent check 'SELECT ...'", exit_codes.USAGE)
    with exit_codes.plain_errors(as_json):
        trail = databases.trails("check")
        with Assistant(source.open(), decoding.choice(), asking.agent_options(), query.limits(), trail) as assistant:
            found = assistant.check(text, question, evidence, readings=asking.rerank is True)
    if as_json:
        output.print_json(asdict(found))
    else:
        _print_review(found)
    if found.error:
        raise typer.Exit(exit_codes.REFUSED if found.error.kind == "refused" else exit_codes.DATABASE)
    raise typer.Exit(exit_codes.FOUND if found.is_doubtful else exit_codes.OK)


def _print_review(found: "Review") -> None:
    for each in found.reads:
        print(output.shown(f"reads {each.table}" + (f": {', '.join(each.columns)}" if each.columns else "")))
    for finding in found.findings:
        print(output.shown(f"{finding.severity}: {finding.sentence}"))
        if finding.evidence:
            print(output.shown(f"    {finding.evidence}"))
    if not found.is_doubtful:
        print("No problems were found.")


@spread_for_people
def run_questions(
    file: Annotated[
        Path,
        typer.Argument(help="Questions and what is expected: .yaml, .jsonl or .csv.", dir_okay=False),
    ],
    source: DatabaseOptions = DatabaseOptions(),
    against: Annotated[
        str | None,
        typer.Option("--against", help="Another version of the database; questions whose answers differ are listed."),
    ] = None,
    junit: Annotated[
        Path | None, typer.Option("--junit", help="Write the verdicts to this file as JUnit's XML.", dir_okay=False)
    ] = None,
    decoding: Decoding = Decoding(),
    asking: Asking = Asking(),
    query: Query = Query(),
    as_json: options.Json = False,
) -> None:
    """Ask the questions of a file and hold the answers against what it expects."""
    from agent.assemble import any_model
    from agent.assistant import Assistant
    from agent.question_tests import read_tests, run_tests

    with exit_codes.plain_errors(as_json), ExitStack() as opened:
        tests, choice = read_tests(file), decoding.choice()
        given, model = (asking.agent_options(), query.limits(), databases.trails("test")), any_model(choice)
        names = [source.open()] + ([kept(open_named(against), files_named(against))] if against else [])
        both = [opened.enter_context(Assistant(name, choice, *given, model)) for name in names]
        verdicts: list[Verdict] = []
        with output.stderr.status("asking") as status:
            for verdict in run_tests(tests, both[0], both[1] if against else None):
                verdicts.append(verdict)
                status.update(f"{len(verdicts)} of {len(tests)}")
        if junit:
            write_junit(verdicts, file.name, junit)
    failed = sum(bool(each.failures) for each in verdicts)
    if as_json:
        output.print_json({"tests": len(verdicts), "failed": failed, "verdicts": [asdict(each) for each in verdicts]})
    else:
        rows = [
            [each.place, "failed" if each.failures else "passed", each.question, " ".join(each.failures)]
            for each in verdicts
        ]
        output.print_table(["place", "verdict", "question", "why"], rows)
        print(f"{len(verdicts) - failed} of {len(verdicts)} passed")
    raise typer.Exit(exit_codes.FOUND if failed else exit_codes.OK)


def write_junit(verdicts: "Sequence[Verdict]", name: str, path: Path) -> None:
    """Write JUnit's XML: a suite with a case for each question."""
    failed = sum(bool(each.failures) for each in verdicts)
    seconds = f"{sum(each.seconds for each in verdicts):.3f}"
    suite = ElementTree.Element("testsuite", name=name, tests=str(len(verdicts)), failures=str(failed), time=seconds)
    for each in verdicts:
        case = ElementTree.SubElement(
            suite, "testcase", classname=name, name=_in_xml(each.question), time=f"{each.seconds:.3f}"
        )
        for failure in each.failures:
            ElementTree.SubElement(case, "failure", message=_in_xml(failure)).text = _in_xml(each.sql)
    ElementTree.ElementTree(suite).write(path, encoding="utf-8", xml_declaration=True)


def _in_xml(text: str) -> str:
    """The text without what XML cannot hold."""
    return "".join(letter for letter in output.shown(text) if letter not in "\ufffe\uffff")
