"""`sqlagent eval file`: accuracy on one's own questions and one's own database."""

import csv
from dataclasses import asdict, fields
from pathlib import Path
from typing import Annotated

import typer

from app.shared import exit_codes, options, output
from app.shared.option_groups import Asking, DatabaseOptions, Decoding, Query, spread


@spread
def file(
    questions: Annotated[
        Path, typer.Argument(help="CSV with the columns question and sql, and perhaps evidence.", dir_okay=False)
    ],
    source: DatabaseOptions = DatabaseOptions(),
    decoding: Decoding = Decoding(),
    asking: Asking = Asking(),
    query: Query = Query(),
    out: Annotated[
        Path | None, typer.Option("--out", help="CSV for the verdicts, one a question.", dir_okay=False)
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Ask your own questions, each by itself, and compare the rows with those of your SQL."""
    from eval.accuracy.own_questions import OwnVerdict, judge, read_questions, summary

    with exit_codes.plain_errors(as_json):
        asked = read_questions(questions)
        choice = decoding.choice()
        from agent.assistant import Assistant

        with Assistant(source.open(), choice, asking.agent_options(), query.limits()) as assistant:
            found = []
            with output.stderr.status("asking") as status:
                for verdict in judge(asked, assistant.database, query.limits(), assistant.ask):
                    found.append(verdict)
                    status.update(f"{len(found)} of {len(asked)}")
        if out:
            with out.open("w", newline="", encoding="utf-8") as opened:
                writer = csv.DictWriter(opened, [field.name for field in fields(OwnVerdict)])
                writer.writeheader()
                writer.writerows(map(asdict, found))
        totals = summary(found)
        if as_json:
            output.print_json(asdict(totals) | {"verdicts": [asdict(each) for each in found]})
            return
        rows = [[each.line, "right" if each.right else "wrong", each.question, each.answer] for each in found]
        output.print_table(["line", "verdict", "question", "answer"], rows)
        low, high = (f"{100 * end:.1f}" for end in totals.ci95)
        print(f"{totals.right} of {totals.questions} right: {100 * totals.share:.1f} % (95 % CI {low} to {high})")
