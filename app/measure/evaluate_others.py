"""`sqlagent eval` of conversations, of files of one's own and of text tasks.

`sqlagent eval conversation` and `sqlagent eval dialogues`: measure accuracy on questions asked in a conversation.

`sqlagent eval file`: accuracy on one's own questions and one's own database.

`sqlagent eval humaneval` and `eval gsm8k`: accuracy on text that is no SQL, and what each decoder needed for it.
"""

import csv
from contextlib import closing
from dataclasses import asdict, fields
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import typer

from agent.assemble import load_model
from agent.assistant import Assistant
from app.measure.evaluate import AnyData, AnyEngine, OneDatabase, QuestionLimit, Sample
from app.shared import exit_codes, options, output
from app.shared.options import Asking, DatabaseOptions, Decoding, Query, fixed, spread
from decoding.methods.registry import load_method
from decoding.serving.text_decoder import SamplingParams
from eval.accuracy.dialogues import BUNDLED, TurnRecord, ask_dialogues, authored_dialogues, in_short, read_dialogues
from eval.accuracy.own_questions import OwnVerdict, judge, read_questions, summary
from eval.accuracy.predict import ChatPredict
from eval.accuracy.record import Record, read_records
from eval.accuracy.run import evaluate
from eval.accuracy.translation import check_translation
from eval.datasets.selection import SPIDER, in_order, load_dataset
from tools.result import Limits

Chats = Annotated[
    int, typer.Option("--at-once", min=1, help="Chats that are held together and share the model's forwards.")
]


@spread
def conversation(
    data: AnyData,
    out: options.Out,
    engine: Annotated[
        Literal["sqlite", "duckdb"], typer.Option("--engine", help="Engine that runs the SQL.")
    ] = "sqlite",
    order: Annotated[
        Literal["given", "shuffled"], typer.Option("--order", help="Each database's questions; --seed shuffles them.")
    ] = "given",
    limit: QuestionLimit = None,
    sample: Sample = None,
    db_id: OneDatabase = None,
    at_once: Chats = 1,
    decoding: Decoding = Decoding(),
    asking: Asking = Asking(),
    timeout: options.Timeout = 30.0,
) -> None:
    """Ask Spider's executable questions, all those of a database in one chat, and score them by Spider's rules.

    In the summary, `continued` counts the answers that say that they continue an earlier question.
    """
    with exit_codes.plain_errors():
        examples = [e for e in load_dataset("spider", data, limit=limit, sample=sample, db=db_id) if e.executable]
        choice = decoding.choice()
        settings = asdict(decoding) | asdict(asking) | {"order": order, "at_once": at_once}
        settings |= {"profile": choice.profile_name}
        load, limits = partial(load_model, choice), Limits(deadline_s=timeout)
        with closing(ChatPredict(load, engine, asking.agent_options(), limits)) as predict:
            summary = evaluate(
                in_order(examples, order, asking.seed),
                predict,
                engine,
                out,
                dataset="conversation",
                rules=SPIDER.rules,
                model=decoding.model,
                decoder=choice.decoder_name,
                settings=settings,
                timeout_s=timeout,
                at_once=at_once,
                recall=predict.recall,
            )
        output.print_json(summary)


@spread
def translation(
    data: AnyData,
    engine: AnyEngine,
    written: Annotated[
        Path | None,
        typer.Option(
            "--written", help="records.jsonl of a run on SQLite, whose SQL is taken; default: gold.", exists=True
        ),
    ] = None,
    limit: QuestionLimit = None,
    sample: Sample = None,
    db_id: OneDatabase = None,
    timeout: options.Timeout = 30.0,
) -> None:
    """Translate SQL that was written for SQLite, run it by --engine, and count the statements that return SQLite's rows, and
    the others by how they differ. Needs no model.
    """
    with exit_codes.plain_errors():
        examples = [e for e in load_dataset("spider", data, limit=limit, sample=sample, db=db_id) if e.executable]
        if written is None:
            statements = [(example, example.gold) for example in examples]
        else:
            own = {record.id: record.sql for record in read_records(written, Record)}
            statements = [(example, own[example.id]) for example in examples if own.get(example.id)]
        output.print_json(asdict(check_translation(statements, engine, timeout_s=timeout)))


@spread
def dialogues(
    out: options.Out,
    file: Annotated[
        Path | None, typer.Argument(help="Dialogues, one a line. Default: the bundled ones on the example database.")
    ] = None,
    authored: Annotated[
        Path | None, typer.Option("--authored", help="A folder of authored data, whose dialogues are asked instead.")
    ] = None,
    part: Annotated[
        Literal["train", "choosing", "sealed"], typer.Option("--part", help="Which part of the authored data.")
    ] = "choosing",
    first_turns: Annotated[
        Literal["own", "gold"], typer.Option("--first-turns", help="Whose SQL a turn finds in the conversation.")
    ] = "own",
    decoding: Decoding = Decoding(),
    asking: Asking = Asking(),
    timeout: options.Timeout = 30.0,
) -> None:
    """Ask prepared dialogues turn by turn, and score whether each answer is right and continues the right turn.

    A right answer gives the gold query's rows, by Spider's rules. In the summary, `continued_right` is the share of turns that
    were read as continuing the turn that the file names, or none if it names none.
    """
    with exit_codes.plain_errors():
        choice = decoding.choice()
        summary = ask_dialogues(
            authored_dialogues(authored, part) if authored else read_dialogues(file or BUNDLED),
            partial(load_model, choice),
            asking.agent_options(),
            out,
            first_turns=first_turns,
            names={"dataset": "dialogues", "model": decoding.model, "decoder": choice.decoder_name},
            settings=asdict(decoding) | asdict(asking) | {"profile": choice.profile_name},
            timeout_s=timeout,
        )
        for line in in_short(read_records(out / "records.jsonl", TurnRecord), summary["headed"]):
            output.report(line)
        output.print_json(summary)


@spread
def file(
    questions: Annotated[
        Path,
        typer.Argument(help="Questions with their SQL, and perhaps evidence: .csv, .jsonl or .yaml.", dir_okay=False),
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
    with exit_codes.plain_errors(as_json):
        asked = read_questions(questions)
        choice = decoding.choice()
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


Decoders = Annotated[
    str, typer.Option("--decoders", help="Names with commas between; the texts of the first one are judged.")
]
Limit = Annotated[int | None, typer.Option("--limit", min=1, help="Only so many tasks, evenly spaced over the file.")]
Continues = Annotated[
    bool,
    typer.Option("--base/--chat", help="Let the model continue the start of the text instead of answering a chat."),
]
MOST_TOKENS = {"humaneval": 384, "gsm8k": 320}


@spread
def _text_task(
    kind: str,
    data: Annotated[Path, typer.Option("--data", help="The published test set, one task a line.", dir_okay=False)],
    out: options.Out,
    decoding: Decoding = Decoding(),
    decoders: Decoders = "plain,jacobi_forcing",
    limit: Limit = None,
    base: Continues = False,
    max_new_tokens: Annotated[
        int | None, typer.Option("--max-new-tokens", min=1, help="Default: 384 for HumanEval, 320 for GSM8K.")
    ] = None,
    seed: options.Seed = 0,
) -> None:
    from eval.accuracy.text_tasks import read_tasks, solve_all, summary, write_summary

    with exit_codes.plain_errors(), exit_codes.own_heads_only():
        methods = [name.strip() for name in decoders.split(",")]
        for name in methods:
            load_method(name)
        tasks, choice = read_tasks(kind, data, limit), decoding.choice()
        most = max_new_tokens or MOST_TOKENS[kind]
        settings = SamplingParams(temperature=decoding.temperature, seed=seed, max_new_tokens=most)
        asked = {**asdict(choice), "seed": seed, "max_new_tokens": most, "continues": base}
        with output.stderr.status("loading the model") as status:
            decoder = load_model(choice).decoder
            records = solve_all(decoder, tasks, methods, settings, base, out, asked, status.update)
        found = {"task": kind, "model": decoding.model} | summary(records)
        write_summary(out, found)
    rows = [[f"{each:.2f}" if isinstance(each, float) else each for each in row.values()] for row in found["rows"]]
    output.print_table(list(found["rows"][0]), rows)
    low, high = (f"{100 * end:.1f}" for end in found["pass_at_1_ci95"] or (0.0, 1.0))
    output.stdout.print(
        f"pass@1 {100 * found['pass_at_1']:.1f} % (95 % CI {low} to {high}, n = {found['n']})", highlight=False
    )
    output.print_json(found)


humaneval = fixed(_text_task, kind="humaneval")
humaneval.__doc__ = """Let the model write HumanEval's functions, and run their tests: pass@1, and what each decoder needed.

Programs run in processes without network or files. The last line on stdout is the summary as JSON.
"""
gsm8k = fixed(_text_task, kind="gsm8k")
gsm8k.__doc__ = """Let the model solve GSM8K's problems: pass@1 by the last number, and what each decoder needed.

The last line on stdout is the summary as JSON.
"""
