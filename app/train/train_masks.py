"""`sqlagent train masks`: trains what a frozen target adds at mask tokens, so that it predicts several tokens ahead.

sqlagent train head collect --data GROUPS --out RESPONSES          the target answers its training prompts
sqlagent train masks --data RESPONSES/responses.jsonl --out MASKS --epochs 2
sqlagent train masks --data RESPONSES/responses.jsonl --pairs GROUPS --pack-tokens 16384 --chains 2048 ...       on a GPU

sqlagent train beginnings --data RESPONSES/responses.jsonl --into FOLDER    first tokens of answers, counted for these masks

With --into FOLDER the finished adapter is written next to that of the target, where `--adapter FOLDER` finds both, with what
answers begin with where enough prompts of the responses end alike.
"""

import os
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from agent.prompts.compact import PROMPT_VERSION
from app.shared import exit_codes, options, output
from app.shared.options import spread
from app.train.run_options import PackedAs, PacksOnly, Schedule, StopToken, plain_values, print_outcome, stop_on_signals
from app.train.train_head import Responses, adapter_of
from decoding.checkpoints.identity import target_identity
from decoding.checkpoints.mask_adapter import read_mask_adapter, write_mask_adapter
from training.config import TrainingError
from training.heads.features import groups_of
from training.heads.mask_model import MaskConfig, MaskLesson, frequent_tokens
from training.heads.responses import read_responses
from training.loop import train
from training.packs.bigrams import fitted, foreseen
from training.packs.groups import read_groups, tokenise
from training.packs.groups import stop_token as stop_token_of
from training.run.base import load_base
from training.run.progress import keep_freed_memory

if TYPE_CHECKING:
    from decoding.checkpoints.adapter import Adapter
    from decoding.checkpoints.identity import TargetIdentity
    from decoding.checkpoints.mask_adapter import MaskAdapter
    from training.heads.responses import Response
    from training.packs.groups import TokenPair
    from training.run.base import Base


@spread
def masks(
    how: MaskConfig,
    schedule: Schedule,
    out: Annotated[Path, typer.Option("--out", help="Folder for the adapter, checkpoint and log.")],
    data: Annotated[
        list[Path] | None,
        typer.Option("--data", help="Responses (JSON Lines); repeatable.", exists=True, dir_okay=False),
    ] = None,
    held_out: Annotated[
        list[Path] | None,
        typer.Option("--held-out", help="Responses to measure on; repeatable.", exists=True, dir_okay=False),
    ] = None,
    pairs: Annotated[
        list[Path] | None,
        typer.Option(
            "--pairs",
            help="Groups of training pairs, learnt up to where the target would write something else; repeatable.",
            exists=True,
            dir_okay=False,
        ),
    ] = None,
    stop_token: StopToken = None,
    pack_tokens: Annotated[int, typer.Option("--pack-tokens", min=16, help="Tokens of text per forward.")] = 1024,
    init_masks: Annotated[
        Path | None,
        typer.Option(
            "--init-masks",
            help="Folder of a mask adapter to begin with, or to grow.",
            exists=True,
        ),
    ] = None,
    into: Annotated[
        Path | None, typer.Option("--into", help="Folder of the target's adapter, for the finished one.", exists=True)
    ] = None,
    model: options.Model = "embedded",
    adapter: options.Adapter = "auto",
    packs_only: PacksOnly = False,
) -> None:
    """Train a mask adapter on the target's own answers, on pairs, or on both. Options, signals and output are those of `train
    sft`. With --packs-only and without --data, the packs are for any target.
    """
    if not data and not pairs:
        raise typer.BadParameter("training needs --data or --pairs")
    with exit_codes.plain_errors(), stop_on_signals() as stopped:
        keep_freed_memory()
        base, merged = load_base(model), adapter_of(model, adapter)
        target, listed = (
            read_responses(data) if data else (target_identity(base.sha256, merged, PROMPT_VERSION), iter(()))
        )
        responses, texts = list(listed), _tokenised(base, pairs or (), stop_token)
        lesson = _lesson(how, base, target, responses, texts, init_masks, merged)
        config = replace(schedule.config(), pack_tokens=pack_tokens)
        notes = {"masks": asdict(how)}
        if packs_only:
            learnt = lesson.objective(config, base, responses, read_responses(held_out)[1] if held_out else ())
            known = {
                "like": lesson.like,
                "frequent": lesson.frequent[: how.pair_tokens],
                "target": asdict(target) if data else None,
            }
            PackedAs("masks", {"masks": asdict(how), **known}).write(out, learnt, config, base, notes, PROMPT_VERSION)
            return
        outcome = train(
            config,
            base,
            responses,
            out,
            held_out=read_responses(held_out)[1] if held_out else (),
            objective=lesson.objective,
            subject=lesson.subject,
            resume=schedule.resume,
            stopped=stopped,
            notes=notes | {"recipe": plain_values(asdict(config))},
        )
        if into and outcome.finished and os.environ.get("RANK", "0") == "0":
            written = read_mask_adapter(out / "masks")
            assert written is not None
            write_mask_adapter(_begun(written, responses), into)
        print_outcome({"out": str(out), **asdict(outcome)})


def beginnings(
    data: Responses,
    into: Annotated[
        Path, typer.Option("--into", help="Folder of the mask adapter, to which they are added.", exists=True)
    ],
    held_out: Annotated[
        list[Path] | None,
        typer.Option("--held-out", help="Responses to measure on; repeatable.", exists=True, dir_okay=False),
    ] = None,
    least: Annotated[
        int,
        typer.Option("--least", min=1, help="Fewest answers to prompts with the same end; rarer ends are left out."),
    ] = 32,
    seed: options.Seed = 0,
) -> None:
    """Fit what the target's answers begin with. The last line on stdout has the share of right guesses by position, as JSON."""
    with exit_codes.plain_errors():
        adapter = read_mask_adapter(into)
        if adapter is None or adapter.pairs is None:
            raise TrainingError(f"{into} has no masks with scores of pairs; sqlagent train masks trains them")
        texts = _texts(_answered(adapter, data))
        try:
            found = adapter.with_beginnings(fitted(adapter.pairs, texts, seed, least))
        except ValueError as error:
            raise TrainingError(f"{error}; collect more, or lower --least") from error
        write_mask_adapter(found, into)
        written = read_mask_adapter(into)
        assert written is not None and written.pairs is not None and written.pairs.beginnings is not None
        measured = _texts(_answered(adapter, held_out)) if held_out else texts
        right = [round(share, 4) for share in foreseen(written.pairs, measured)]
        kinds = len(written.pairs.beginnings.ends)
        output.print_json(
            {"into": str(into), "answers": len(texts), "ends": kinds, "measured": len(measured), "right": right}
        )


def _answered(adapter: "MaskAdapter", files: Sequence[Path]) -> "list[Response]":
    """Responses. Raises TrainingError where another target has answered."""
    target, responses = read_responses(files)
    if adapter.target and (difference := adapter.target.difference(target)):
        raise TrainingError(f"the responses are of another target ({difference}): collect them with this one")
    return list(responses)


def _texts(responses: "Sequence[Response]") -> "list[tuple[tuple[int, ...], tuple[int, ...]]]":
    """The prompts and the greedy answers."""
    return [(response.prompt_ids, response.answers[0]) for response in responses]


def _begun(adapter: "MaskAdapter", responses: "Sequence[Response]") -> "MaskAdapter":
    """The adapter with what answers begin with, where that can be learnt."""
    try:
        return adapter.with_beginnings(fitted(adapter.pairs, _texts(responses))) if adapter.pairs else adapter
    except ValueError:  # too few prompts end alike
        return adapter


def _lesson(
    how: MaskConfig,
    base: "Base",
    target: "TargetIdentity",
    responses: "Sequence[Response]",
    pairs: "list[list[TokenPair]]",
    init_masks: Path | None,
    adapter: "Adapter | None",
) -> "MaskLesson":
    """What the responses and the pairs teach. adapter: of the target. Raises TrainingError, ModelError."""
    begin = read_mask_adapter(init_masks) if init_masks else None
    texts = [pair for group in groups_of(responses) or pairs for pair in group]
    like = int(texts[0].tokens[texts[0].prompt_tokens - 1]) if texts else 0
    frequent = frequent_tokens(pair.targets.tolist() for pair in texts)
    return MaskLesson(how, base, adapter, target, begin, like, frequent, pairs)


def _tokenised(base: "Base", files: Sequence[Path], stop_token: str | None) -> "list[list[TokenPair]]":
    """Groups of training pairs. Raises TrainingDataError."""
    if not files:
        return []
    stop = stop_token_of(base.tokenizer, stop_token)
    return [group for path in files for group in tokenise(read_groups(path), base.tokenizer, stop)]
