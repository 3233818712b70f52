"""`sqlagent eval conversation` and `sqlagent eval dialogues`: measure accuracy on questions asked in a conversation."""

from contextlib import closing
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import typer

from app.measure.evaluate import AnyData, OneDatabase, QuestionLimit, Sample
from app.shared import exit_codes, options, output
from app.shared.option_groups import Asking, Decoding, spread

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
    from agent.assemble import load_model
    from eval.accuracy.run import evaluate
    from eval.datasets.registry import SPIDER, in_order, load_dataset
    from eval.predict.chat_predict import ChatPredict
    from tools.result import Limits

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
                tables=SPIDER.tables_file(data),
                model=decoding.model,
                decoder=choice.decoder_name,
                settings=settings,
                timeout_s=timeout,
                at_once=at_once,
                recall=predict.recall,
            )
        output.print_json(summary)


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
    from agent.assemble import load_model
    from eval.dialogues.ask import ask_dialogues
    from eval.dialogues.read import BUNDLED, authored_dialogues, read_dialogues
    from eval.dialogues.record import TurnRecord
    from eval.dialogues.summary import in_short
    from eval.predict.record import read_records

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
