"""Records the agent's calls to the decoder, to decode them again with other methods or to inspect them round by round.

Describes a decoding, iteration by iteration: as data, in a terminal, as a figure.

Explains why a Jacobi decoding was fast: the fast-forwarded and stationary tokens of CLLM's Table 3 (arXiv 2403.00835).

They are computed from the rounds of one sequence. The guess is the draft's first branch, which is a Jacobi method's own.

Describes a decoding, iteration by iteration, as tokens at positions, for figures. Needs no model and draws nothing.

An iteration is a round. Its first lane is the method's own guess (the draft's first branch); each further lane is another
branch of the draft, from where it leaves the lanes before it, with candidates from the n-gram pool, the prompt or the recall.

Prints a trajectory in a terminal, with colours or, if there are none, with marks before the tokens.

Draws a trajectory as a self-contained SVG, or as an HTML page around it.

The generated positions are divided into panels of one block's width. In a panel, every column is a position and every row
an iteration, so that a stationary token shows as a coloured column that waits for those on its left, and a block in flight
shows in all panels that it reaches. Because fonts differ between machines, texts are centred in cells that are slightly
wider than necessary.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from itertools import accumulate, pairwise
from pathlib import Path
from textwrap import wrap
from typing import Any, Literal

from rich.console import Console
from rich.text import Text

from agent.assemble import LoadedModel, ModelChoice, load_model
from agent.context import AgentOptions
from decoding.engine.draft import ROOT
from decoding.engine.rounds import Metrics, Round, measure
from decoding.methods.jacobi_window import following
from decoding.serving.model_queue import never
from decoding.serving.text_decoder import Completion, SamplingParams, TextDecoder, TextDelta
from decoding.tokenizer import Tokenizer
from eval.accuracy.predict import AgentPredict, FirstTurn
from eval.accuracy.record import Prediction
from eval.datasets.official import Example
from tools.result import Limits


@dataclass(frozen=True, slots=True)
class Call:
    """One text of one of the agent's steps. `settings`: those used, without likelihoods, and with the
    recall as it was when decoding began."""

    step: str  # "plan", "generate" or "refine"
    prompt: str
    settings: SamplingParams
    generation: Completion


class CallRecorder(TextDecoder):
    """Decodes like `inner` and records every finished text; a dead end of the grammar leaves no record."""

    def __init__(self, inner: TextDecoder) -> None:
        super().__init__(inner.target, inner.tokenizer, inner.name, inner.adapter, batcher=inner.batcher)
        self.inner = inner
        self._calls: list[Call] = []

    def stream(
        self, prompt: str, settings: Sequence[SamplingParams], cancelled: Callable[[], bool] = never
    ) -> Iterator[TextDelta | Completion]:
        kept = [replace(each, recall=each.recall.copy(), likelihood=False) for each in settings]
        ended = 0
        for piece in super().stream(prompt, settings, cancelled):
            if isinstance(piece, Completion):
                sequence = piece.rounds[0].sequence if piece.rounds else ended
                self._calls.append(Call("", prompt, kept[sequence], piece))
                ended += 1
            yield piece

    def take(self, steps: Sequence[Mapping[str, Any]]) -> list[Call]:
        """Return the calls of the latest question, named by its answer's step records, and forget all since the last `take`.

        Each step with a model must be one call, so it must have asked for one sample. Raises ValueError otherwise.
        """
        names = [step["name"] for step in steps if step["decoder"]]
        calls = self._calls[len(self._calls) - len(names) :]
        self._calls = []
        if len(names) != len(calls):
            raise ValueError(f"{len(calls)} texts for {len(names)} steps")
        return [replace(call, step=name) for call, name in zip(calls, names, strict=True)]


def recording(loaded: LoadedModel) -> tuple[LoadedModel, CallRecorder]:
    """The same model with a recorder in front of its decoder, and that recorder."""
    recorder = CallRecorder(loaded.decoder)
    return replace(loaded, decoder=recorder), recorder


def plain_model(choice: ModelChoice) -> LoadedModel:
    """The model with plain decoding. What rows cost is measured, as it is for users, and told to methods from then on."""
    loaded = load_model(replace(choice, decoder="plain", decoder_options={}))
    loaded.plain_cost.step_cost()
    return loaded


def agent_calls(
    model: LoadedModel,
    examples: Iterable[Example],
    agent: AgentOptions,
    timeout_s: float,
    first_turn: FirstTurn = "own",
) -> Iterator[tuple[CallRecorder, Example, Prediction, list[Call]]]:
    """Let the agent answer on SQLite; yields for each question its prediction and the calls to the decoder."""
    loaded, recorder = recording(model)
    predict = AgentPredict(lambda: loaded, "sqlite", agent, Limits(deadline_s=timeout_s), first_turn)
    try:
        for example in examples:
            prediction = predict(example)
            yield recorder, example, prediction, recorder.take(prediction.steps)
    finally:
        predict.close()


@dataclass(frozen=True, slots=True)
class JacobiCounts:
    """Counts of one sequence, or summed over several."""

    forwards: int = 0
    fast_forwarded: int = 0  # tokens that a forward committed beyond its first
    stationary: int = 0  # tokens guessed correctly while one before them was wrong, and kept from then on

    def __add__(self, other: "JacobiCounts") -> "JacobiCounts":
        return JacobiCounts(
            self.forwards + other.forwards,
            self.fast_forwarded + other.fast_forwarded,
            self.stationary + other.stationary,
        )


def count(rounds: Iterable[Round]) -> JacobiCounts:
    """The counts of one sequence from its rounds, in order. Forced tokens do not count as fast-forwarded.

    CLLM's script averages the correct tokens gained per forward, which is 1 + fast_forwarded / forwards.
    """
    rounds = list(rounds)
    text = [token for one in rounds for token in one.text_tokens]
    stationary = start = 0
    kept: set[int] = set()  # positions that the previous round guessed correctly after a wrong guess
    for one in rounds:
        end = start + len(one.text_tokens)
        right = {at for at, token in _own_guess(one, start) if text[at : at + 1] == [token]}
        stationary += sum(at < end for at in kept & right)
        kept = {at for at in right if at >= end}
        start = end
    return JacobiCounts(len(rounds), sum(len(one.committed) - 1 for one in rounds), stationary)


def _own_guess(one: Round, start: int) -> Iterable[tuple[int, int]]:
    """(position, token) down the first branch of the round's draft."""
    return enumerate((one.draft_tokens[node] for node in following(one.draft_parents, ROOT)), start)


Kind = Literal["accepted", "bonus", "forced", "stationary", "misplaced", "wrong", "past"]

MEANING: Mapping[Kind, str] = {
    "accepted": "guessed and accepted: fast-forwarded",
    "bonus": "the model's own next token",
    "forced": "the grammar's only way on",
    "stationary": "right in its place while something before it is wrong",
    "misplaced": "part of an n-gram that the text has elsewhere",
    "wrong": "neither",
    "past": "beyond the end of the text",
}


@dataclass(frozen=True, slots=True)
class Cell:
    """A token at a position of the generated text."""

    text: str
    kind: Kind


@dataclass(frozen=True, slots=True)
class Lane:
    """Cells in a row, the first at generated position `start`."""

    start: int
    cells: tuple[Cell, ...]
    own: bool  # the method's own guess, not a candidate

    @property
    def stop(self) -> int:
        return self.start + len(self.cells)


@dataclass(frozen=True, slots=True)
class StepTrajectory:
    """One decoded text. `iterations[i]`: lanes, the own guess first."""

    name: str
    decoder: str
    text: str
    iterations: tuple[tuple[Lane, ...], ...]
    metrics: Metrics
    counts: JacobiCounts
    recycled: int  # accepted tokens that came from a candidate, not from the method's own guess


def of_calls(calls: Iterable[Call], tokenizer: Tokenizer) -> list[StepTrajectory]:
    """The trajectories of the agent's texts, in order."""
    spelled = speller(tokenizer)
    return [
        trajectory(call.step, call.settings.decoder, call.generation.text.strip(), call.generation.rounds, spelled)
        for call in calls
    ]


def trajectory(
    name: str, decoder: str, text: str, rounds: Sequence[Round], spelled: Callable[[int], str]
) -> StepTrajectory:
    """The trajectory of one sequence from its `rounds`. `spelled`: the text shown for a token."""
    tokens = [token for one in rounds for token in one.text_tokens]
    iterations, start = [], 0
    for one in rounds:
        iterations.append(tuple(_lanes(one, start, tokens, spelled)))
        start += len(one.text_tokens)
    recycled = sum(len(set(one.accepted) - set(following(one.draft_parents, ROOT))) for one in rounds)
    return StepTrajectory(name, decoder, text, tuple(iterations), measure(rounds), count(rounds), recycled)


def speller(tokenizer: Tokenizer) -> Callable[[int], str]:
    """A function that spells tokens for a figure: blanks and line ends become visible, special tokens show their names."""

    def spelled(token: int) -> str:
        text = tokenizer.decode([token], special=True)
        return text.replace(" ", "·").replace("\n", "⏎").replace("\t", "⇥")

    return spelled


def _lanes(one: Round, start: int, tokens: Sequence[int], spelled: Callable[[int], str]) -> Iterable[Lane]:
    """The lanes of a round whose first guess is at position `start`; its committed tokens are in the lane that won."""
    pairs = set(pairwise(tokens[start:]))
    branches = list(_branches(one))
    winner = next((i for i, (_, nodes) in enumerate(branches) if one.accepted and one.accepted[-1] in nodes), 0)
    for index, (depth, nodes) in enumerate(branches or [(0, [])]):
        guess = [one.draft_tokens[node] for node in nodes]
        kinds = _kinds(guess, start + depth, tokens, pairs)
        kinds = ["accepted" if node in one.accepted else kind for node, kind in zip(nodes, kinds, strict=True)]
        cells = [Cell(spelled(token), kind) for token, kind in zip(guess, kinds, strict=True)]
        if index == winner:
            added = [Cell(spelled(one.committed[-1]), "bonus"), *(Cell(spelled(t), "forced") for t in one.forced)]
            at = len(one.committed) - 1 - depth
            cells[at : at + len(added)] = added
        yield Lane(start + depth, tuple(cells), own=index == 0)


def _branches(one: Round) -> Iterable[tuple[int, list[int]]]:
    """(depth before it, nodes) per branch. A branch follows first children from the root, or from a node that is not one."""
    parents, seen = one.draft_parents, set[int]()
    depths = {ROOT: 0}
    for node, parent in enumerate(parents):
        depths[node] = depths[parent] + 1
        if node not in seen:
            branch = [node, *following(parents, node)]
            seen.update(branch)
            yield depths[parent], branch


def _kinds(guess: Sequence[int], start: int, tokens: Sequence[int], pairs: set[tuple[int, int]]) -> list[Kind]:
    """Classify the guesses, given the whole text. `pairs`: pairs of adjacent tokens in the text not committed yet."""
    found = [pair in pairs for pair in pairwise(guess)]
    near = [left or right for left, right in zip([False, *found], [*found, False], strict=True)] if guess else []
    return [_kind(token, at, tokens, known) for at, (token, known) in enumerate(zip(guess, near, strict=True), start)]


def _kind(token: int, at: int, tokens: Sequence[int], in_a_pair: bool) -> Kind:
    if at >= len(tokens):
        return "past"
    if token == tokens[at]:
        return "stationary"
    return "misplaced" if in_a_pair else "wrong"


_STYLE: Mapping[Kind, str] = {
    "accepted": "black on green",
    "bonus": "black on cyan",
    "forced": "black on blue",
    "stationary": "black on yellow",
    "misplaced": "black on magenta",
    "wrong": "dim",
    "past": "dim strike",
}
_SIGN: Mapping[Kind, str] = {
    "accepted": "+", "bonus": "!", "forced": "*", "stationary": "=", "misplaced": "~", "wrong": "-", "past": "/"
}  # fmt: skip


def print_trajectory(steps: Iterable[StepTrajectory], console: Console) -> None:
    """Print every step, one line per iteration with its candidates below it, and then the legend."""
    colours = console.is_terminal and console.color_system is not None and not console.no_color
    for step in steps:
        console.print(Text(f"{step.name}: {step.text}", style="bold"), soft_wrap=True)
        for index, lanes in enumerate(step.iterations, 1):
            for lane in lanes:
                label = f"{index if lane.own else 'pool':>4} @{lane.start:<3}"
                console.print(_line(label, lane, colours), soft_wrap=True)
        console.print(Text(counts_line(step)), soft_wrap=True)
        console.print()
    for kind, meaning in MEANING.items():
        console.print(Text.assemble(_cell(Cell("token", kind), colours), f"  {meaning}"))


def counts_line(step: StepTrajectory) -> str:
    """The figures below a step."""
    metrics, counts = step.metrics, step.counts
    return (
        f"{step.decoder}: {metrics.tokens} tokens in {metrics.target_forwards} forwards, "
        f"{metrics.tokens_per_forward:.2f} a forward; {counts.fast_forwarded} fast-forwarded ({step.recycled} of them "
        f"from candidates), {counts.stationary} stationary until committed; {metrics.forced_tokens} forced tokens apart"
    )


def _line(label: str, lane: Lane, colours: bool) -> Text:
    line = Text(f"{label} ")
    for cell in lane.cells:
        line.append(_cell(cell, colours))
        line.append(" ")
    return line


def _cell(cell: Cell, colours: bool) -> Text:
    return Text(cell.text, _STYLE[cell.kind]) if colours else Text(_SIGN[cell.kind] + cell.text)


_FILL: Mapping[Kind, tuple[str, str]] = {  # (cell, text); the colours also differ in lightness
    "accepted": ("#1a7f37", "#ffffff"),
    "bonus": ("#0b57a4", "#ffffff"),
    "forced": ("#b6d4f2", "#0b2e55"),
    "stationary": ("#f2c230", "#3d2f00"),
    "misplaced": ("#e7b7e0", "#4a1144"),
    "wrong": ("#eeeeee", "#777777"),
    "past": ("#ffffff", "#bbbbbb"),
}
_CHARACTER, _GAP, _NARROWEST, _MOST_CHARACTERS = 7.0, 3.0, 20.0, 16
_ROW, _CANDIDATE_ROW, _LABEL, _MARGIN, _WIDEST = 22.0, 18.0, 58.0, 16.0, 1100.0


@dataclass(slots=True)
class _Sheet:
    """Collects shapes from top to bottom."""

    y: float = _MARGIN
    width: float = 0.0
    shapes: list[str] = field(default_factory=list)

    def text(
        self, x: float, text: str, size: int = 12, colour: str = "#333333", more: str = "", row: float = _ROW
    ) -> None:
        """Add a text on the baseline of the cells in a row of height `row`."""
        self.shapes.append(
            f'<text x="{x:.1f}" y="{self.y + row - 8:.1f}" font-size="{size}" fill="{colour}"{more}>{_markup(text)}</text>'
        )

    def cell(self, x: float, width: float, height: float, cell: Cell) -> None:
        """Add a token's cell; its tooltip shows a long token in full."""
        fill, colour = _FILL[cell.kind]
        middle, size = x + width / 2, 12 if height == _ROW else 11
        self.shapes.append(
            f'<g><title>{_markup(cell.text)}: {_markup(MEANING[cell.kind])}</title>'
            f'<rect x="{x:.1f}" y="{self.y:.1f}" width="{width:.1f}" height="{height - 3:.1f}" rx="3" fill="{fill}" '
            f'stroke="{"#dddddd" if cell.kind == "past" else fill}"/>'
            f'<text x="{middle:.1f}" y="{self.y + height - 8:.1f}" font-size="{size}" fill="{colour}" '
            f'text-anchor="middle">{_markup(_short(cell.text))}</text></g>'
        )  # fmt: skip

    def down(self, height: float, right: float = 0.0) -> None:
        self.y, self.width = self.y + height, max(self.width, right)


def write_figure(steps: Sequence[StepTrajectory], title: str, file: Path, block_size: int = 16) -> None:
    """Write SVG if the file's name ends in `.svg`, otherwise HTML. block_size: positions per panel."""
    drawing = svg(steps, title, block_size)
    if file.suffix != ".svg":
        drawing = (
            f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{_markup(title)}</title></head>\n'
            f'<body style="margin:1em;overflow-x:auto">\n{drawing}</body></html>\n'
        )
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(drawing, encoding="utf-8")


def svg(steps: Sequence[StepTrajectory], title: str, block_size: int = 16) -> str:
    """The drawing, with a legend above it."""
    sheet = _Sheet()
    sheet.text(_MARGIN, title, size=16, colour="#111111", more=' font-weight="bold"')
    sheet.down(30, _MARGIN + 10 * len(title))
    _legend(sheet)
    for step in steps:
        _step(sheet, step, block_size)
    width, height = sheet.width + _MARGIN, sheet.y + _MARGIN
    font = "DejaVu Sans Mono, Menlo, Consolas, monospace"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.0f} {height:.0f}" font-family="{font}">\n'
        f'<rect width="100%" height="100%" fill="#ffffff"/>\n' + "\n".join(sheet.shapes) + "\n</svg>\n"
    )  # fmt: skip


def _legend(sheet: _Sheet) -> None:
    for kind, meaning in MEANING.items():
        sheet.cell(_MARGIN, 90, _ROW, Cell(kind, kind))
        sheet.text(_MARGIN + 100, meaning)
        sheet.down(_ROW, _MARGIN + 110 + 7.3 * len(meaning))


def _step(sheet: _Sheet, step: StepTrajectory, block_size: int) -> None:
    sheet.down(14)
    for size, weight, text in ((13, "bold", f"{step.name}: {step.text}"), (12, "normal", counts_line(step))):
        for line in _wrapped(text, int(_WIDEST / (0.62 * size))):
            sheet.text(_MARGIN, line, size=size, more=f' font-weight="{weight}"')
            sheet.down(20, _MARGIN + 0.62 * size * len(line))
    end = max((lane.stop for lanes in step.iterations for lane in lanes), default=0)
    for start in range(0, end, block_size):
        _panel(sheet, step, range(start, min(start + block_size, end)))


def _panel(sheet: _Sheet, step: StepTrajectory, positions: range) -> None:
    """Draw the part of every lane that lies in these positions, below the positions' numbers."""
    parts = [
        (number, lane) for number, lanes in enumerate(step.iterations, 1) for lane in lanes if _cut(lane, positions)
    ]
    widths = [_NARROWEST] * len(positions)
    for _, lane in parts:
        for at, cell in _cut(lane, positions):
            place = at - positions.start
            widths[place] = max(widths[place], _CHARACTER * len(_short(cell.text)) + 10)
    edges = list(accumulate((width + _GAP for width in widths), initial=_MARGIN + _LABEL))
    sheet.down(8)
    sheet.text(_MARGIN + _LABEL - 8, "forward", size=10, colour="#999999", more=' text-anchor="end"')
    for at, edge, width in zip(positions, edges, widths, strict=False):
        sheet.text(edge + width / 2, str(at), size=10, colour="#999999", more=' text-anchor="middle"')
    sheet.down(20, edges[-1])
    for number, lane in parts:
        label, colour = (f"{number}", "#333333") if lane.own else (f"{number} pool", "#999999")
        height = _ROW if lane.own else _CANDIDATE_ROW
        sheet.text(_MARGIN + _LABEL - 8, label, size=11, colour=colour, more=' text-anchor="end"', row=height)
        for at, cell in _cut(lane, positions):
            place = at - positions.start
            sheet.cell(edges[place], widths[place], height, cell)
        sheet.down(height)


def _cut(lane: Lane, positions: range) -> list[tuple[int, Cell]]:
    return [(at, cell) for at, cell in enumerate(lane.cells, lane.start) if at in positions]


def _markup(text: str) -> str:
    """The text escaped for markup, without control characters, which XML cannot represent."""
    return escape("".join(character if character.isprintable() else "\ufffd" for character in text))


def _short(text: str) -> str:
    return text if len(text) <= _MOST_CHARACTERS else text[: _MOST_CHARACTERS - 1] + "…"


def _wrapped(text: str, most: int) -> Iterable[str]:
    return wrap(text, most) or [""]
