"""Guards the views of a turn: what they show is what the records say.

Guards the page against files from strangers: an event is refused, or everything that is shown of it can be shown.

Guards that text can be read: contrast after WCAG 2, AA, of the theme's colours and of the page's own, light and dark.

Guards the small line in an answer: drawn where it says more than rows, in order, never through what is missing.
"""

import json
import random
import re
from collections import Counter
from typing import Any

import pytest

from agent.observe.events import Event, EventError, Failed, Finished, from_json, to_json
from agent.observe.step_record import savings
from agent.race import Lane
from decoding.engine.rounds import Round, origins
from tests.ui.conftest import recorded
from tools.schema import Column, ForeignKey, Schema, Table
from ui.page.page import FOLDER, theme
from ui.session.conversation_view import ConversationView, StepView, TurnView
from ui.session.run import remembered
from ui.views.card import LEAST_POINTS, line_html, series_of
from ui.views.charts import MOST_BARS, NO_VALUE, draw, fitting, picture, suggest
from ui.views.data_html import Rows, column_widths, schema_html
from ui.views.messages import messages, turn_messages
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
    assert race_html(done, tokens=4).count('style="width:100.0%"') == 1  # now they are times
    assert "one token at a time" in race_html(done, tokens=4)
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


def test_a_wrong_guess_stands_in_the_cell_of_what_took_its_place() -> None:
    """A guess for a position that the grammar filled was printed over the filled token; those that came back were purple in the
    text and green in the grid."""
    first = Round(0, 0, 1, 1, (5, 6, 2, 3), (-1, 0, -1, 2), (), (1,), (2,), 0, 1, 0)
    again = Round(1, 0, 1, 1, (3,), (-1,), (0,), (3, 9), (), 0, 1, 0)
    view = passes_html([first, again], {1: "SELECT", 2: " (", 3: " a", 5: "<mask>", 6: "x", 9: " b"})
    places = re.findall(r'data-at="(\d+)" style="(grid-row:\d+;grid-column:\d+)"', view)
    assert len(places) == len(set(places))
    assert '<s class="guess">▢</s><b>SELECT</b>' in view and '<s class="guess">x</s><b>(</b>' in view
    assert 'class="guess kept recycled"' in view


def test_counters_stand_on_one_scale_of_time() -> None:
    plain = Round(0, 0, 1, 1, (), (), (), (7,), (), 0, 10, 0)
    record = {"plain_ms": 40.0, "plain_ms_source": "measured"}
    view = decoding_html(StepView("plan", rounds=[plain], record=record))
    assert 'data-track="ours" style="width:25.0%"' in view and 'data-track="plain" style="width:100.0%"' in view
    assert "40 ms" in view
    estimated = decoding_html(StepView("plan", rounds=[plain], record=record | {"plain_ms_source": "estimated"}))
    assert "40 ms" not in estimated and "data-time" not in estimated


def test_a_replay_lasts_as_long_on_a_busy_machine_and_races_no_estimate() -> None:
    """An estimate for an idle machine once raced passes of a busy one, and plain decoding won."""
    views = []
    for ms in (10, 1000):
        rounds = [Round(index, 0, 1, 1, (), (), (), (7,), (), 0, ms, 0) for index in range(4)]
        record = {"plain_ms": 20.0, "plain_ms_source": "estimated"}
        views.append(decoding_html(StepView("plan", rounds=rounds, record=record)))
    for view in views:
        assert 'data-plain-ms="300.0"' in view
        assert re.findall(r'data-end-ms="(\d+)"', view) == ["300", "600", "900", "1200"]


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
    for record in turns[0].records:
        if record["decoder"]:
            one = savings([record])
            assert one.fewer_forwards == record["plain_forwards"] / record["target_forwards"]
            assert f"{one.fewer_forwards:.2f} ×" in view


def test_an_unknown_plain_time_is_not_called_a_saving() -> None:
    step = {"name": "plan", "decoder": "x", "wall_ms": 5.0, "plain_ms": None, "plain_ms_source": None, "new_tokens": 3,
            "target_forwards": 3, "plain_forwards": 3, "prompt_tokens": 9, "cached_tokens": 0}  # fmt: skip
    assert savings([step]).speedup is None


@pytest.mark.parametrize(
    ("columns", "rows", "kind", "x", "y"),
    [
        (["country", "n"], [["France", 3], ["Spain", 1]], "bar", "country", "n"),
        (["year", "n"], [[2014, 3], [2015, 1], [2016, 4]], "line", "year", "n"),
        (["day", "sold"], [["2024-01-01", 3.5], ["2024-01-02", 1.0], ["2024-01-03", 2.0]], "line", "day", "sold"),
        (["age", "price"], [[1, 2.0], [3, 4.0]], "scatter", "age", "price"),
        (["genre_id", "n"], [[1, 9], [2, 24]], "bar", "genre_id", "n"),
        (["id", "name", "price"], [[1, "a", 2.0], [2, "b", 3.0]], "bar", "name", "price"),
        (["genre", "albums", "genre id"], [["Jazz", 24, 2], ["Soul", 22, 8]], "bar", "genre", "albums"),
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


def test_bars_lie_and_are_sorted_unless_they_have_an_order() -> None:
    """The labels of five bars that stood were printed over each other, and those of many times too."""
    drawn = picture(draw("bar", ["city", "n"], [[f"c{i}", i] for i in range(5)], 0, 1))
    assert drawn is not None
    made = drawn.to_dict()
    assert (made["encoding"]["y"]["type"], made["encoding"]["y"]["sort"]) == ("nominal", "-x")
    assert made["title"]["text"] == "n by city"
    years = picture(draw("bar", ["year", "n"], [[2000 + i, i] for i in range(20)], 0, 1))
    assert years is not None
    across = years.to_dict()["encoding"]["x"]
    assert (across["type"], across["axis"]["labelAngle"]) == ("nominal", -45)
    assert years.to_dict()["config"]["axis"]["labelOverlap"] is True


def test_points_over_dates_stand_on_an_axis_of_time() -> None:
    """They were an empty chart: "36 rows without a number are left out"."""
    chart = draw("scatter", ["day", "n"], [["2024-01-01", 1], ["2024-01-05", 3]], 0, 1)
    assert len(chart.frame) == 2 and not chart.note
    drawn = picture(chart)
    assert drawn is not None and drawn.to_dict()["encoding"]["x"]["type"] == "temporal"


def test_rows_of_several_series_have_a_colour_each() -> None:
    rows = [[f"2024-0{month}", genre, month] for month in (1, 2, 3) for genre in ("Jazz", "Rock")]
    chart = suggest(["month", "genre", "n"], rows)
    assert (chart.kind, chart.series, list(chart.frame.columns)) == ("line", "genre", ["month", "n", "genre"])
    drawn = picture(chart)
    assert drawn is not None and drawn.to_dict()["encoding"]["color"]["field"] == "genre"
    bars = picture(draw("bar", ["month", "genre", "n"], rows, 1, 2))
    assert bars is not None and "color" not in bars.to_dict()["encoding"]
    assert suggest(["city", "country", "n"], [["Porto", "PT", 1], ["Rome", "IT", 2], ["Oslo", "NO", 3]]).series == ""


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


def test_a_wide_table_has_widths_and_keeps_its_first_column_in_sight() -> None:
    """Of 40 columns all were as narrow, and the first was gone at once."""
    note, id = "x" * 500, 1
    assert column_widths(Rows(["id", "a note"], [[id, note], [20, None]], 2, False, "")) == [72, 320]
    assert column_widths(Rows(["a note", "id"], [[note, id], [None, 20]], 2, False, "")) == [170, 72]
    assert column_widths(Rows(["id", "n"], [[1, 2]], 1, False, "")) == [], "they fit"


def test_the_schema_browser_escapes_and_shows_keys() -> None:
    album = Table("albums", (Column("<id>", "INTEGER", True, samples=("<b>",)), Column("artist", "INTEGER")),
                  (ForeignKey(("artist",), "artists", ("id",)),), row_count=1200)  # fmt: skip
    view = schema_html(Schema((album,), "duckdb"), "music")
    for part in ("albums", "1,200 rows", "→ artists", "&lt;b&gt;", "primary key"):
        assert part in view
    assert "<b>&lt;" not in view and "<id>" not in view


ODD: list[Any] = [None, "", "x", -1, 0, 10**400, 1e308, True, [], ["x"], {}, {"a": 1}, [[1], [2, 3]]]


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of every value inside a JSON value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, each in items for place in places(each, (*path, key)))]


def damaged(line: str, random_: random.Random) -> str:
    body = json.loads(line)
    path = random_.choice(places(body)[1:])
    inside = body
    for key in path[:-1]:
        inside = inside[key]
    inside[path[-1]] = random_.choice(ODD)
    return json.dumps(body)


def show(events: list[Event]) -> None:
    view = ConversationView(events)
    messages(view.turns)
    remembered(view.turns)
    for turn in view.turns:
        savings_html(turn, view.turns)
        answer = turn.answer or {}
        suggest(answer.get("columns", []), answer.get("rows", []))
        for step in turn.steps:
            decoding_html(step)


def test_a_count_that_no_step_can_have_is_refused(albums: list[Event]) -> None:
    """One did not fit a float, and the page could not be drawn."""
    line = next(to_json(event) for event in albums if isinstance(event, Finished))
    body = json.loads(line)
    body["record"]["plain_forwards"] = 10**400
    with pytest.raises(EventError):
        from_json(json.dumps(body))


@pytest.mark.parametrize("seed", range(20))
def test_a_damaged_event_is_refused_or_can_be_shown(albums: list[Event], seed: int) -> None:
    random_ = random.Random(seed)
    lines = [to_json(event) for event in albums]
    refused = 0
    for _ in range(40):
        place = random_.randrange(len(lines))
        line = damaged(lines[place], random_)
        try:
            event = from_json(line)
        except EventError:
            refused += 1
            continue
        try:
            show([*albums[:place], event, *albums[place + 1 :]])
        except Exception as error:
            raise AssertionError(line[:2000]) from error
    assert refused > 5


TEXT, EDGE = 4.5, 3.0
PAIRS = (
    ("body_text_color", "background_fill_primary"),
    ("body_text_color", "background_fill_secondary"),
    ("body_text_color_subdued", "background_fill_primary"),
    ("body_text_color_subdued", "background_fill_secondary"),
    ("button_primary_text_color", "button_primary_background_fill"),
    ("button_primary_text_color", "button_primary_background_fill_hover"),
    ("button_secondary_text_color", "button_secondary_background_fill"),
    ("button_cancel_text_color", "button_cancel_background_fill"),
    ("input_placeholder_color", "input_background_fill"),
    ("block_title_text_color", "block_background_fill"),
    ("block_label_text_color", "block_background_fill"),
    ("checkbox_label_text_color", "checkbox_label_background_fill"),
    ("checkbox_label_text_color_selected", "checkbox_label_background_fill_selected"),
)
OWN = (("accepted", TEXT), ("lost", TEXT), ("edge", EDGE), ("recycled", EDGE), ("bonus", EDGE), ("forced", EDGE))


def colour(name: str, dark: bool, made: Any) -> str:
    """A theme's colour as #rrggbb; a dark one that is not given is the light one."""
    value = (getattr(made, f"{name}_dark", None) if dark else None) or getattr(made, name)
    while value.startswith("*"):
        name = value[1:]
        value = (getattr(made, f"{name}_dark", None) if dark else None) or getattr(made, name)
    return {"white": "#ffffff", "black": "#000000"}.get(value, value)


def luminance(colour: str) -> float:
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(first: str, second: str) -> float:
    light, dark = sorted((luminance(first), luminance(second)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def test_the_measure_is_the_standards() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize(("text", "behind"), PAIRS)
def test_the_themes_text_can_be_read(text: str, behind: str, dark: bool) -> None:
    made = theme()
    assert contrast(colour(text, dark, made), colour(behind, dark, made)) >= TEXT


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize(("name", "least"), OWN)
def test_the_pages_own_colours_stand_out(name: str, least: float, dark: bool) -> None:
    style = (FOLDER / "style.css").read_text(encoding="utf-8")
    named = re.compile(r"--([\w-]+): (#\w{6})")
    first, second = (
        dict(named.findall(body)) for body in re.findall(r"(?::root|\.dark) \{([^}]*--accepted:[^}]*)\}", style)
    )
    own = {**first, **(second if dark else {})}
    assert contrast(own[name], colour("background_fill_primary", dark, theme())) >= least


YEARS = [[2010 + i, 3 * i % 7] for i in range(8)]


def shown(rows: list[list[Any]], kinds: tuple[str, ...] = ("digits", "amount"), name: str = "year") -> dict[str, Any]:
    return {"headings": [name, "albums", "sales"][: len(kinds)], "rows": rows, "kinds": list(kinds)}


def answer(rows: list[list[Any]], **more: Any) -> dict[str, Any]:
    return {"shown": shown(rows), "columns": ["year", "n"], "rows": rows, "answer": "Told.", "error": None, "sql": "",
            "attempts": [], "doubts": [], "dialect": "duckdb"} | more  # fmt: skip


def test_years_without_an_order_become_a_line_in_the_order_of_time() -> None:
    series = series_of(shown([YEARS[i] for i in (5, 2, 7, 0, 3, 6, 1, 4)]))
    assert series is not None
    assert [point.when for point in series.points] == [str(2010 + i) for i in range(8)]
    drawn = line_html(answer(YEARS), 8)
    across = [float(x) for x in re.findall(r"([0-9.]+),[0-9.]+", drawn.partition("<polyline")[2].partition("/>")[0])]
    assert across == sorted(across) and len(across) == 8
    assert "highest 6 (2012)" in drawn and "figcaption" not in drawn


@pytest.mark.parametrize(
    ("table", "why"),
    [
        (shown(YEARS[: LEAST_POINTS - 1]), "too few"),
        (shown(sorted(YEARS, key=lambda row: -row[1])), "a ranking: which years had most"),
        (shown([*YEARS, [2011, 5]]), "a year twice: several series"),
        (shown([[i, 3] for i in range(8)], name="artist_id"), "keys are no times"),
        (shown([[*row, 1] for row in YEARS], ("digits", "amount", "amount")), "two amounts"),
        (shown([[f"c{i}", i] for i in range(8)], ("text", "amount"), "city"), "names"),
        ({}, "a record without what was shown"),
    ],
)
def test_no_line_is_drawn(table: dict[str, Any], why: str) -> None:
    assert series_of(table) is None, why


def test_months_and_days_are_times() -> None:
    months = [[f"2024-{month:02}", month] for month in range(1, 9)]
    days = [[f"2024-01-0{day} 00:00:00", day % 3] for day in range(1, 8)]
    assert series_of(shown(months, ("text", "amount"), "month")) is not None
    assert series_of(shown(days, ("time", "amount"), "day")) is not None


def test_what_is_missing_is_said_and_no_line_runs_through_it() -> None:
    rows = [*YEARS[:3], [2013, None], *YEARS[4:], [None, 4]]
    drawn = line_html(answer(rows, truncated=True), 30)
    assert drawn.count("<polyline") == 2
    for part in ("1 gap: no number.", "1 row without a year is left out.", "The first 9 of 30 rows are drawn.",
                 "cut off by the row limit: the line is partial"):  # fmt: skip
        assert part in drawn


def test_headings_and_cells_stay_text() -> None:
    rows = [[f"2024-01-0{day}", day] for day in range(1, 8)]
    table = {"headings": ["<day>", "<b>sold</b>"], "rows": rows, "kinds": ["time", "amount"]}
    drawn = line_html({"shown": table}, 7)
    assert drawn and "<b>" not in drawn and "<day>" not in drawn


def test_a_line_takes_the_place_of_bars_in_the_answer() -> None:
    told = turn_messages(TurnView("?", answer=answer(YEARS), row_count=8), 0)[-1]["content"]
    assert "<polyline" in told and 'class="bars"' not in told and "more rows in the result" not in told
    assert 'id="card-0-chart" value="Chart" checked' in told
    few = turn_messages(TurnView("?", answer=answer(YEARS[:4]), row_count=4), 0)[-1]["content"]
    assert "<polyline" not in few and 'class="bar"' in few


def test_an_answer_says_that_the_row_limit_cut_its_rows_off() -> None:
    told = turn_messages(TurnView("?", answer=answer(YEARS, truncated=True), row_count=8), 0)[-1]["content"]
    assert '<p class="more">cut off by the row limit</p>' in told
