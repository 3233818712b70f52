"""Guards the views of a turn: what they show is what the records say."""

import re
from collections import Counter
from typing import Any

import pytest

from agent.observe.events import Event, Failed
from agent.observe.step_record import savings
from agent.race import Lane
from decoding.engine.rounds import Round, origins
from tests.ui.conftest import recorded
from tools.schema import Column, ForeignKey, Schema, Table
from ui.session.conversation_view import ConversationView, StepView, TurnView
from ui.views.charts import ACROSS, MOST_BARS, NO_VALUE, draw, fitting, picture, suggest
from ui.views.data_html import schema_html
from ui.views.messages import messages
from ui.views.passes import Guess, decoding_html, passes, passes_html, tokens_html, tree_svg
from ui.views.savings_html import race_html, savings_html
from ui.views.words import counted


def text_of(html: str) -> str:
    import html as escapes

    return escapes.unescape(re.sub("<[^>]+>", "", html)).replace("⏎", "")


def test_the_tokens_spell_the_text(albums: list[Event]) -> None:
    """Every step that was decoded; the stop token at the end may follow."""
    steps = [step for turn in ConversationView(albums).turns for step in turn.steps if step.rounds]
    assert len(steps) >= 4
    for step in steps:
        assert text_of(tokens_html(step.rounds, step.spelling)).startswith(step.text)


def test_a_race_says_when_others_shared_its_forwards() -> None:
    def lane(batch: int) -> Lane:
        return Lane("plain", rounds=[Round(0, 0, batch, 1, (), (), (), (5,), (), 0.1, 2.5, 0.2)])

    assert "shared" not in race_html([lane(1), lane(1)])
    assert "1 of 2 passes shared their forward" in race_html([lane(1), lane(2)])


def test_a_lane_is_full_at_its_end_only() -> None:
    """Before, the leading lane was always full, as if it had come to the end."""
    run = [Round(0, 0, 1, 1, (), (), (), (5,), (), 0.1, 2.5, 0.2)]
    assert 'style="width:25.0%"' in race_html([Lane("plain", rounds=run), Lane("lookahead")], tokens=4)
    done = [Lane("plain", rounds=run, done=True), Lane("lookahead", rounds=[*run, *run], done=True)]
    assert race_html(done, tokens=4).count('style="width:100.0%"') == 2
    assert '<b class="lost">0.50 ×</b>' in race_html(done, tokens=4)


def test_the_decoding_view_has_every_round_and_a_legend() -> None:
    (turn,) = ConversationView(recorded("artists")).turns
    step = next(step for step in turn.steps if step.rounds)
    view = decoding_html(step)
    assert view.count("<li data-round=") == len(step.rounds)
    counts = Counter(placed.origin for placed in origins(step.rounds))
    assert len(counts) >= 3
    for origin, count in counts.items():
        assert f'<span class="tok {origin}">{counted(count, "token")}</span>' in view
    assert "Choose a step" in decoding_html(StepView("plan"))


def test_passes_place_every_guess_under_the_position_that_it_was_made_for() -> None:
    """Two guesses stand, the third is replaced by the model's own token; a second branch is only counted."""
    drafted = Round(0, 0, 1, 1, (1, 2, 3, 4, 8), (-1, 0, 1, 2, -1), (0, 1), (1, 2, 9), (6,), 0, 1, 0)
    plain = Round(1, 0, 1, 1, (), (), (), (7,), (), 0, 1, 0)
    first, second = passes([drafted, plain])
    assert first.guesses == (Guess(0, 1, True), Guess(1, 2, True), Guess(2, 3, False), Guess(3, 4, False))
    assert (first.own, list(first.forced), first.others) == (2, [3], 1)
    assert (second.number, second.start, second.guesses, second.own) == (2, 4, (), 4)


def test_a_guess_with_which_the_text_ends_was_right() -> None:
    """The engine counts a stop token as the model's own even where it was guessed; it was drawn as wrong, under itself."""
    (only,) = passes([Round(0, 0, 1, 1, (1, 2), (-1, 0), (0,), (1, 2), (), 0, 1, 0)])
    assert only.guesses == (Guess(0, 1, True), Guess(1, 2, True))
    view = passes_html([Round(0, 0, 1, 1, (1, 2), (-1, 0), (0,), (1, 2), (), 0, 1, 0)], {1: "a", 2: ""})
    assert view.count("guess kept") == 2 and "<s" not in view.replace("<span", "").replace("<small", "")


def test_a_bracket_ends_where_the_columns_do_and_counts_other_branches() -> None:
    far = Round(0, 0, 1, 1, (*range(1, 21), 99), (-1, *range(19), -1), (), (50,), (), 0, 1, 0)
    view = passes_html([far], {})
    assert 'data-span="5"' in view  # one token of text, and four columns beyond it
    assert "21 tokens guessed together, checked in one pass, 1 of them in other branches" in view


def test_counters_stand_on_one_scale_of_time() -> None:
    plain = Round(0, 0, 1, 1, (), (), (), (7,), (), 0, 10, 0)
    record = {"plain_ms": 40.0}
    view = decoding_html(StepView("plan", rounds=[plain], record=record))
    assert 'data-track="ours" style="width:25.0%"' in view and 'data-track="plain" style="width:100.0%"' in view


def test_a_token_tells_the_guesses_that_were_made_for_it() -> None:
    drafted = Round(0, 0, 1, 1, (1, 3), (-1, 0), (0,), (1, 9), (), 0, 1, 0)
    view = tokens_html([drafted], {1: "SELECT", 3: "<b>", 9: " x"})
    assert (
        "“x”: Pass 1 guessed “&lt;b&gt;” here, which did not stand. It is the model&#x27;s own token of pass 1." in view
    )
    assert "“SELECT”: Pass 1 guessed it ahead and confirmed it at once." in view


@pytest.mark.parametrize(("plain_ms", "said"), [(200.0, "2.00 × faster"), (50.0, "2.00 × slower")])
def test_a_loss_that_was_measured_is_drawn_as_a_loss(plain_ms: float, said: str) -> None:
    step = {"name": "plan", "decoder": "x", "wall_ms": 100.0, "plain_ms": plain_ms, "plain_ms_source": "measured",
            "new_tokens": 3, "target_forwards": 3, "plain_forwards": 3, "prompt_tokens": 9, "cached_tokens": 0}  # fmt: skip
    turn = TurnView("?", steps=[StepView("plan", record=step)])
    view = savings_html(turn, [turn])
    assert said in view and ('class="lost"' in view) == (plain_ms < 100)


@pytest.mark.parametrize("source", ["estimated", None])
def test_no_time_is_compared_with_an_estimate(source: str | None) -> None:
    """A busy machine's time beside an estimate for an idle one once called 17 of 39 answers slower."""
    step = {"name": "plan", "decoder": "x", "wall_ms": 100.0, "plain_ms": source and 50.0, "plain_ms_source": source,
            "new_tokens": 3, "target_forwards": 3, "plain_forwards": 12, "prompt_tokens": 9, "cached_tokens": 0}  # fmt: skip
    turn = TurnView("?", steps=[StepView("plan", record=step)])
    view = savings_html(turn, [turn])
    assert "3 passes <small>of the model instead of 12" in view and "12 passes token by token" in view
    assert not any(word in view for word in ("slower", "faster", "lost", "50 ms"))
    turn.failure = Failed("Stopped.", stopped=True)
    assert "12" not in savings_html(turn, [turn]) and "instead" not in messages([turn])[-1]["content"]


def test_a_tree_shows_every_node_and_which_were_accepted() -> None:
    r = Round(0, 0, 1, 1, (1, 2, 3, 4), (-1, -1, 0, 2), (0, 2), (1, 3, 9), (), 0, 1, 0)
    svg = tree_svg(r, {1: "<a>", 2: "b", 3: "c", 4: "d"})
    assert svg.count("<rect") == 4
    assert svg.count('class="accepted"') == 2
    assert "<a>" not in svg
    assert tree_svg(Round(0, 0, 1, 1, (), (), (), (9,), (), 0, 1, 0), {}) == ""


def test_savings_name_their_source_and_add_up(albums: list[Event]) -> None:
    turns = ConversationView(albums).turns
    view = savings_html(turns[0], turns)
    assert "estimated" not in view
    assert "this answer" in view and "All 2 questions" in view
    total = savings(turns[0].records)
    assert total.new_tokens == sum(record["new_tokens"] for record in turns[0].records)
    assert total.wall_ms == pytest.approx(sum(record["wall_ms"] for record in turns[0].records))
    assert total.saved_ms == pytest.approx((total.plain_ms or 0) - total.wall_ms)
    for record in turns[0].records:
        if record["decoder"]:
            one = savings([record])
            assert one.fewer_forwards == record["plain_forwards"] / record["target_forwards"]
            assert f"{one.fewer_forwards:.2f} ×" in view


def test_an_unknown_plain_time_is_not_called_a_saving() -> None:
    step = {"name": "plan", "decoder": "x", "wall_ms": 5.0, "plain_ms": None, "plain_ms_source": None, "new_tokens": 3,
            "target_forwards": 3, "plain_forwards": 3, "prompt_tokens": 9, "cached_tokens": 0}  # fmt: skip
    assert savings([step]).saved_ms is None


@pytest.mark.parametrize(
    ("columns", "rows", "kind", "x", "y"),
    [
        (["country", "n"], [["France", 3], ["Spain", 1]], "bar", "country", "n"),
        (["year", "n"], [[2014, 3], [2015, 1], [2016, 4]], "line", "year", "n"),
        (["day", "sold"], [["2024-01-01", 3.5], ["2024-01-02", 1.0], ["2024-01-03", 2.0]], "line", "day", "sold"),
        (["age", "price"], [[1, 2.0], [3, 4.0]], "scatter", "age", "price"),
        (["genre_id", "n"], [[1, 9], [2, 24]], "bar", "genre_id", "n"),
        (["id", "name", "price"], [[1, "a", 2.0], [2, "b", 3.0]], "bar", "name", "price"),
        (["n"], [[5]], "none", "", ""),
        (["a", "b"], [["x", "y"], ["z", "w"]], "none", "", ""),
        ([], [], "none", "", ""),
    ],
)
def test_the_chart_follows_the_shape(columns: list[str], rows: list[list[Any]], kind: str, x: str, y: str) -> None:
    chart = suggest(columns, rows)
    assert (chart.kind, chart.x, chart.y) == (kind, x, y)
    if kind != "none":
        assert list(chart.frame.columns) == [x, y]
        assert len(chart.frame) == len(rows)


def test_a_plot_gets_names_that_it_cannot_take_for_paths() -> None:
    chart = suggest(["genre_id", "count_star()"], [[2, 9], [1, 24], [10, 3]])
    assert (chart.x, chart.y, list(chart.frame["genre_id"])) == ("genre_id", "count_star", ["2", "1", "10"])


def test_a_chart_stays_small_and_takes_what_is_no_number() -> None:
    many = [[i, i] for i in range(1000)]
    assert len(draw("bar", ["a", "b"], many, 0, 1).frame) == MOST_BARS
    assert len(draw("bar", ["a", "b"], many, 0, 1, every=True).frame) == 1000
    chart = draw("scatter", ["a", "a"], [["x", 1], [2, None]], 0, 1)
    assert len(set(chart.frame.columns)) == 2


def test_a_chart_says_what_it_leaves_out() -> None:
    chart = draw("bar", ["city", "n"], [*([f"c{i}", i] for i in range(50)), [None, 7], ["x", None]], 0, 1)
    assert chart.note == "40 of 51 bars are shown. 1 row without a number is left out."
    assert NO_VALUE in set(draw("bar", ["city", "n"], [["Lyon", 1], [None, 7]], 0, 1).frame["city"])


@pytest.mark.parametrize(("count", "lies"), [(ACROSS, False), (ACROSS + 1, True)])
def test_many_bars_lie_and_are_sorted(count: int, lies: bool) -> None:
    drawn = picture(draw("bar", ["city", "n"], [[f"c{i}", i] for i in range(count)], 0, 1))
    assert drawn is not None
    made = drawn.to_dict()["encoding"]
    assert (made["y"]["type"] == "nominal") == lies
    assert made["y" if lies else "x"]["sort"] == ("-x" if lies else [f"c{i}" for i in range(count)])
    years = picture(draw("bar", ["year", "n"], [[2000 + i, i] for i in range(20)], 0, 1))
    assert years is not None and years.to_dict()["encoding"]["x"]["type"] == "nominal"


@pytest.mark.parametrize(
    ("columns", "rows", "kinds"),
    [
        (["city", "n"], [["a", 1], ["b", 2]], ["bar", "none"]),
        (["year", "n"], [[2001, 1], [2002, 2]], ["bar", "line", "scatter", "none"]),
        (["n"], [[1], [2]], ["none"]),
        (["a", "b"], [["x", "y"], ["z", "w"]], ["none"]),
    ],
)
def test_only_kinds_that_fit_are_offered(columns: list[str], rows: list[list[Any]], kinds: list[str]) -> None:
    assert fitting(columns, rows) == kinds


def test_the_schema_browser_escapes_and_shows_keys() -> None:
    album = Table("albums", (Column("<id>", "INTEGER", True, samples=("<b>",)), Column("artist", "INTEGER")),
                  (ForeignKey(("artist",), "artists", ("id",)),), row_count=1200)  # fmt: skip
    view = schema_html(Schema((album,), "duckdb"), "music")
    for part in ("albums", "1,200 rows", "→ artists", "&lt;b&gt;", "primary key"):
        assert part in view
    assert "<b>&lt;" not in view and "<id>" not in view
