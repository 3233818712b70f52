"""A decoding as cells in their places: what each is called, and that text and figure show every one of them.

Fast-forwarded and stationary tokens, on a decoding written down by hand.
"""

import io
import json
import sqlite3
from pathlib import Path
from xml.etree import ElementTree

import pytest
from rich.console import Console
from typer.testing import CliRunner, Result

from app.cli import app
from app.shared import exit_codes
from decoding.engine.draft import Draft
from decoding.engine.rounds import Round
from eval.speed.agent_calls import (
    Cell,
    JacobiCounts,
    StepTrajectory,
    count,
    print_trajectory,
    svg,
    trajectory,
    write_figure,
)
from tests.decoding.models.tiny_models import tiny_checkpoint


def make(draft: Draft, accepted: tuple[int, ...], committed: tuple[int, ...], forced: tuple[int, ...] = ()) -> Round:
    return Round(0, 0, 1, 1, draft.tokens, draft.parents, accepted, committed, forced, 0.0, 0.0, 0.0)


@pytest.fixture
def step() -> StepTrajectory:
    """The text is 10 11 12 13 14 15 16.

    First forward: 10 is accepted, 13 right below a wrong guess, 14 15 misplaced, 9 beyond the end. In the second a candidate
    wins, then the grammar adds 14.
    """
    own = Draft.chain([10, 0, 0, 13, 0, 14, 15, 9])
    tree = Draft.trie([(0, 13, 8), (12, 8), (12, 13, 0)])
    rounds = [make(own, (0,), (10, 11)), make(tree, (3, 5), (12, 13, 14), (15,)), make(Draft(), (), (16,))]
    return trajectory("generate", "jacobi_forcing", "the text", rounds, str)


def kinds(cells: tuple[Cell, ...]) -> list[str]:
    return [f"{cell.text} {cell.kind}" for cell in cells]


def test_every_token_is_called_what_it_is(step: StepTrajectory) -> None:
    first, second, third = step.iterations
    assert [kinds(lane.cells) for lane in first] == [
        ["10 accepted", "11 bonus", "0 wrong", "13 stationary", "0 wrong", "14 misplaced", "15 misplaced", "9 past"]
    ]
    assert [(lane.start, lane.own, kinds(lane.cells)) for lane in second] == [
        (2, True, ["0 wrong", "13 stationary", "8 wrong"]),
        (2, False, ["12 accepted", "8 wrong"]),
        (3, False, ["13 accepted", "14 bonus", "15 forced"]),
    ]
    assert [kinds(lane.cells) for lane in third] == [["16 bonus"]]
    assert (step.recycled, step.counts.fast_forwarded, step.metrics.tokens) == (2, 3, 6)


def test_the_first_branch_that_is_accepted_in_part_goes_on_with_the_models_token() -> None:
    rounds = [make(Draft.trie([(1, 2, 7), (1, 5)]), (0, 1), (1, 2, 3)), make(Draft(), (), (4,))]
    lanes = trajectory("plan", "jacobi_forcing", "", rounds, str).iterations[0]
    assert [(lane.start, kinds(lane.cells)) for lane in lanes] == [
        (0, ["1 accepted", "2 accepted", "3 bonus"]),
        (1, ["5 wrong"]),
    ]


def test_what_the_text_has_behind_it_is_not_misplaced() -> None:
    rounds = [make(Draft(), (), (token,)) for token in (1, 2, 3, 4, 5)]
    rounds[2] = make(Draft.chain([1, 2, 9]), (), (3,))
    [lane] = trajectory("plan", "jacobi", "", rounds, str).iterations[2]
    assert kinds(lane.cells) == ["3 bonus", "2 wrong", "9 wrong"]


def test_the_terminal_shows_signs_where_there_are_no_colours(step: StepTrajectory) -> None:
    plain, coloured = io.StringIO(), io.StringIO()
    print_trajectory([step], Console(file=plain, width=40))
    lines = plain.getvalue().splitlines()
    assert lines[1].split() == ["1", "@0", "+10", "!11", "-0", "=13", "-0", "~14", "~15", "/9"]
    assert lines[4].split() == ["pool", "@3", "+13", "!14", "*15"]
    assert "6 tokens in 3 forwards, 2.00 a forward; 3 fast-forwarded (2 of them from candidates)" in plain.getvalue()
    print_trajectory([step], Console(file=coloured, width=200, force_terminal=True, color_system="standard"))
    assert "\x1b[" in coloured.getvalue() and "+10" not in coloured.getvalue()


def test_the_figure_holds_every_cell_once_and_panels_do_not_overlap(step: StepTrajectory, tmp_path: Path) -> None:
    tree = ElementTree.fromstring(svg([step], "a < b & c", block_size=4))
    boxes = [
        (title.text, *(float(rect.attrib[name]) for name in ("x", "y", "width", "height")))
        for group in tree.iter("{http://www.w3.org/2000/svg}g")
        for title, rect in [(group[0], group[1])]
    ][7:]  # the legend is first
    shown = [cell for lanes in step.iterations for lane in lanes for cell in lane.cells]
    assert sorted(str(box[0]).split(":")[0] for box in boxes) == sorted(cell.text for cell in shown)
    for index, (_, x, y, width, height) in enumerate(boxes):
        assert x + width <= float(tree.attrib["width"]) and y + height <= float(tree.attrib["height"])
        for _, x2, y2, width2, height2 in boxes[index + 1 :]:
            assert x + width <= x2 or x2 + width2 <= x or y + height <= y2 or y2 + height2 <= y
    write_figure([step], "a < b & c", tmp_path / "new" / "page.html")
    page = (tmp_path / "new" / "page.html").read_text()
    assert (
        page.startswith("<!doctype html>")
        and "a &lt; b &amp; c" in page
        and "http" not in page.replace("http://www.w3.org", "")
    )


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tiny_checkpoint(Path(tmp_path_factory.mktemp("model")) / "tiny", max_position_embeddings=4096))


def run(tiny: str, folder: Path, *more: str) -> Result:
    connection = sqlite3.connect(folder / "t.sqlite")
    connection.execute("CREATE TABLE IF NOT EXISTS t (a INTEGER)")
    connection.close()
    arguments = (
        "How many?",
        "--db",
        str(folder / "t.sqlite"),
        "--model",
        tiny,
        "--profile",
        "compact",
        "--attempts",
        "1",
    )
    return CliRunner().invoke(app, ["bench", "trajectory", *arguments, *more])


def test_the_command_shows_the_agents_steps(tiny: str, tmp_path: Path) -> None:
    figure = tmp_path / "figure.svg"
    result = run(tiny, tmp_path, "--out", str(figure), "-o", "block_size=5", "--no-constrain")
    assert result.exit_code == exit_codes.OK, result.output
    assert (
        result.stdout.startswith("plan: ") and "\ngenerate: " in result.stdout and "jacobi_forcing: " in result.stdout
    )
    assert ElementTree.parse(figure).getroot().tag.endswith("svg")


def test_what_cannot_be_is_one_line(tiny: str, tmp_path: Path) -> None:
    for arguments, says in (
        (("--out", "figure.gif"), "neither in .svg nor in .html"),
        (("-o", "wings=2"), "has no option wings"),
    ):
        result = run(tiny, tmp_path, *arguments)
        assert result.exit_code == exit_codes.USAGE and says in result.stderr, json.dumps(result.stderr)


def make_jacobi_counts(
    guess: Draft, accepted: tuple[int, ...], committed: tuple[int, ...], forced: tuple[int, ...] = ()
) -> Round:
    return Round(0, 0, 1, 1, guess.tokens, guess.parents, accepted, committed, forced, 0.0, 0.0, 0.0)


def chain(*tokens: int) -> Draft:
    return Draft.chain(tokens)


def test_counts_of_a_hand_made_decoding() -> None:
    """The text is 10 11 12 13 14 15 16 17.

    Positions 3 and 5 are right below wrong guesses; 3 is kept until it is accepted, 5 is lost again. Position 6 is right
    and kept, 7 is right but never below a wrong guess.
    """
    rounds = [
        make_jacobi_counts(chain(10, 0, 0, 13, 0, 15), (0,), (10, 11)),
        make_jacobi_counts(chain(0, 13, 0, 0, 16), (), (12,)),
        make_jacobi_counts(chain(13, 0, 0, 16), (0,), (13, 14)),
        make_jacobi_counts(chain(15, 16, 17), (0, 1), (15, 16, 17)),
    ]
    assert count(rounds) == JacobiCounts(forwards=4, fast_forwarded=4, stationary=2)
    assert count(rounds[:1]) == JacobiCounts(1, 1, 0)
    assert count(rounds) + count(rounds[:1]) == JacobiCounts(5, 5, 2)


def test_forced_tokens_move_positions_and_another_branch_may_win() -> None:
    """The text is 1 2 3 4 5 6; 2 3 are forced; the candidate 4 beats the own guess 9, below which 5 is right and kept."""
    rounds = [
        make_jacobi_counts(chain(0, 2, 3, 9, 5), (), (1,), forced=(2, 3)),
        make_jacobi_counts(Draft.trie([(9, 5), (4, 5)]), (2, 3), (4, 5, 6)),
    ]
    assert count(rounds) == JacobiCounts(forwards=2, fast_forwarded=2, stationary=1)
    plain = [make_jacobi_counts(Draft(), (), (token,)) for token in (1, 2, 3)]
    assert count(plain) == JacobiCounts(forwards=3)
