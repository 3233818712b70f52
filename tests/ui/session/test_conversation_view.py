"""Guards the chat's messages: all of them come from event records, live or recorded, and data never becomes markup."""

from typing import Any

import pytest

from agent.observe.events import Answered, Asked, Event, Failed, Judged, Started, Unclear, Waiting, Wrote
from agent.observe.step_record import step_title
from tools.sql.spelling import pretty_sql
from ui.session.conversation_view import ConversationView
from ui.views.card import CARD_ROWS
from ui.views.messages import (
    AS_IT_STANDS,
    ASK_AFRESH,
    chosen_label,
    chosen_reading,
    message_turn,
    messages,
    offered,
)
from ui.views.words import inert

ANSWER: dict[str, Any] = {
    "question": "q", "sql": "SELECT 1", "dialect": "duckdb", "columns": ["a"], "rows": [[1]], "truncated": False,
    "answer": "a: 1.", "attempts": [], "steps": [], "total_ms": 1.0, "plain_total_ms": None, "error": None,
}  # fmt: skip


def answered(**changes: Any) -> Answered:
    answer = ANSWER | changes
    return Answered(answer, len(answer["rows"]))


def test_a_recorded_conversation_makes_question_steps_and_answer(albums: list[Event]) -> None:
    turns = ConversationView(albums).turns
    shown = messages(turns)
    assert [message["role"] for message in shown] == ["user", "assistant"] * 2
    assert inert(pretty_sql(turns[0].sql, "duckdb")) in shown[1]["content"]
    assert all(f"**{step_title(step.name)}**" in shown[1]["content"] for step in turns[0].steps)
    assert "passes of the model instead of 29" in shown[1]["content"]
    assert [message_turn(turns, i) for i in range(4)] == [0, 0, 1, 1]
    assert message_turn(turns, 4) is None


def test_every_moment_of_a_recording_can_be_shown(albums: list[Event]) -> None:
    """A step is pending until its record comes; SQL grows and never shrinks."""
    view, written = ConversationView(), 0
    for event in albums:
        view.apply(event)
        shown = messages(view.turns)
        assert all(message["content"] for message in shown)
        if isinstance(event, Wrote):
            assert '<span class="now">' in shown[-1]["content"] and '<pre class="written">' in shown[-1]["content"]
            length = len(view.turns[-1].steps[-1].text)
            assert length >= written or len(view.turns[-1].steps[-1].rounds) == 1
            written = length


def test_who_waits_is_told_so() -> None:
    view = ConversationView([Asked("q"), Waiting("plan", 3)])
    assert "Waiting for the model: 3 others first" in messages(view.turns)[-1]["content"]
    view.apply(Started("plan"))
    assert len(view.turns[0].steps) == 1
    assert '<span class="now">Planning</span>' in messages(view.turns)[-1]["content"]


def test_a_step_that_starts_anew_forgets_what_it_wrote() -> None:
    view = ConversationView(
        [Asked("q"), Started("generate"), Wrote("generate", "SELECT x"), Started("generate"), Wrote("generate", "S")]
    )
    assert [step.text for step in view.turns[0].steps] == ["S"]


@pytest.mark.parametrize(
    "evil", ["![x](http://evil.example/p.png)", "<img src=http://evil.example>", "**b** `c` [l](http://e)"]
)
def test_cells_never_become_markup(evil: str) -> None:
    view = ConversationView([Asked("q"), answered(columns=["a", evil], rows=[[1, evil], [2, "x"]], answer=evil)])
    content = messages(view.turns)[-1]["content"]
    for raw in ("![", "<img", "](", "**b**"):
        assert raw not in content


def test_sql_cannot_leave_its_code_block() -> None:
    sql = "SELECT '\n```\n<script>'"
    content = messages(ConversationView([Asked("q"), answered(sql=sql)]).turns)[-1]["content"]
    assert inert(pretty_sql(sql, "sqlite")) in content and "```" not in content and "<script>" not in content


def test_an_unknown_name_becomes_options() -> None:
    error = {
        "kind": "unknown_column",
        "message": "no column nam",
        "name": "nam",
        "position": 7,
        "candidates": ["name", "title"],
    }
    view = ConversationView(
        [Asked("q"), answered(sql=None, columns=[], rows=[], error=error, answer="No working SQL.")]
    )
    options = offered(view.turns[-1])
    assert [option["label"] for option in options] == ["nam means name", "nam means title"]


def test_a_stopped_question_says_so_and_judgements_find_their_turn() -> None:
    view = ConversationView(
        [Asked("q"), Failed("Stopped.", True), Asked("r"), answered(), Judged(0, False), Judged(7, True)]
    )
    assert "Stopped" in messages(view.turns)[1]["content"]
    assert [turn.liked for turn in view.turns] == [False, None]


def test_events_without_a_question_change_nothing() -> None:
    assert ConversationView([answered(), Judged(0, True), Started("plan")]).turns == []


def test_what_continues_a_question_says_so_and_can_be_asked_afresh() -> None:
    """The switch is on the chip itself, and stays when other questions follow."""
    view = ConversationView([Asked("And in France?"), answered(continues=2), Asked("How many?"), answered()])
    first, second = messages(view.turns)[1::2]
    assert 'class="chip" id="say-0-0"' in first["content"] and "continues question 2 ✕</button>" in first["content"]
    assert [each["value"] for each in offered(view.turns[0])] == [ASK_AFRESH]
    assert "chip" not in second["content"] and offered(view.turns[1]) == []


def test_what_is_probably_wrong_says_so_and_offers_other_readings() -> None:
    """Guards against a reply that chooses SQL by its own text: only the answer's own alternatives can be chosen."""
    others = [
        {"sql": "SELECT 2", "words": "Takes 2. " * 40, "confidence": 0.2, "votes": 1},
        {"sql": "SELECT 3", "words": "", "confidence": 0.1, "votes": 1},
    ]
    doubts = ['It reads "a" as <b>.']
    event = answered(probably_wrong=True, doubts=doubts, alternatives=others)
    shown = messages(ConversationView([Asked("How many?"), event]).turns)[-1]
    assert (
        "<b>Probably wrong</b>" in shown["content"]
        and "as <b>" not in shown["content"]
        and "**" not in shown["content"]
    )
    assert "<li>It reads &quot;a&quot; as &lt;b&gt;.</li>" in shown["content"]
    turn = ConversationView([Asked("How many?"), event]).turns[0]
    labels = [option["label"] for option in offered(turn)]
    assert labels[0].startswith("Rather: Takes 2. Takes 2.") and len(labels[0]) < 140
    assert labels[1] == "Rather: SELECT 3"
    replies = [option["value"] for option in offered(turn)]
    assert [chosen_reading(turn, reply) for reply in replies] == ["SELECT 2", "SELECT 3"]
    for other in ("other reading 2", "other reading -1", "SELECT 2", ASK_AFRESH):
        assert chosen_reading(turn, other) == ""
    assert chosen_reading(ConversationView([Asked("How many?")]).turns[0], replies[0]) == ""
    sure = messages(ConversationView([Asked("How many?"), answered(confidence=0.9)]).turns)[-1]
    assert "chip" not in sure["content"] and "replies" not in sure["content"]


def test_what_a_person_chose_is_what_they_said() -> None:
    """The choice once left the same question in the chat a second time, with the evidence in the schema's words."""
    meaning, error = "Home refers to artists.name", {"kind": "unclear", "message": "?", "candidates": []}
    asked_back = [Asked("Home?"), Unclear("Home", {"the artist's name": meaning}), answered(sql=None, error=error)]
    turn = ConversationView(asked_back).turns[0]
    assert [chosen_label(turn, value) for value in (meaning, AS_IT_STANDS, "x")] == [
        "the artist's name", "Answer it as it stands", "x"
    ]  # fmt: skip
    settled = [*asked_back, Asked("Home?", meaning, reply="the artist's name"), answered()]
    shown = messages(ConversationView(settled).turns)
    said = [each["content"].partition("</span>")[0] for each in shown if each["role"] == "user"]
    assert said == ['<span class="said">Home?', '<span class="said">the artist&#x27;s name']
    assert meaning not in shown[-1]["content"]


def test_a_preview_has_bars_where_they_say_more() -> None:
    def preview(rows: list[list[Any]], kinds: list[str]) -> str:
        seen = {"headings": ["city", "sold"], "kinds": kinds, "rows": rows}
        event = answered(columns=["city", "sold"], rows=rows, shown=seen)
        return str(messages(ConversationView([Asked("q"), event]).turns)[-1]["content"])

    drawn = preview(
        [["Porto", 1000], ["Rome", 250], ["Oslo", None], *([f"c{i}", 1] for i in range(10))], ["text", "amount"]
    )
    table, _, chart = drawn.partition('<table class="bars">')
    assert '<td>Porto</td><td class="number">1,000</td><td><i class="bar" style="width:100%"></i></td>' in table
    assert "width:25%" in table and '<td>Oslo</td><td class="number">–</td>' in table
    assert table.count("<i class") == CARD_ROWS and "3 more rows" in table and chart.count("<i class") == 13
    for rows in ([["Porto", 1], ["Rome", 2]], [["a", 3], ["b", 3], ["c", 3]], [["a", -1], ["b", 3], ["c", 3]]):
        assert "<i " not in preview(rows, ["text", "amount"])
    assert "<i " not in preview([["a", 1], ["b", 2], ["c", "x"]], ["text", "digits"])


def test_a_reading_that_was_chosen_says_so_and_has_a_way_back() -> None:
    """It once lost its mark: what was probably wrong stood there as if it were sure."""
    others = [{"sql": f"SELECT {n}", "words": f"Takes {n}.", "confidence": n / 10, "votes": 1} for n in (2, 3)]
    events: list[Event] = [Asked("How many?"), answered(probably_wrong=True, doubts=[], alternatives=others)]

    def click(label: str) -> tuple[str, list[str]]:
        turn = ConversationView(events).turns[-1]
        (value,) = [each["value"] for each in offered(turn) if each["label"] == label]
        events.extend([Asked("How many?", reply=label), answered(sql=chosen_reading(turn, value), doubts=[])])
        turns = ConversationView(events).turns
        return messages(turns)[-1]["content"], [each["label"] for each in offered(turns[-1])]

    chosen, labels = click("Rather: Takes 2.")
    assert "You chose this reading · right in about 20 of 100" in chosen
    assert labels == ["Back to the first reading", "Rather: Takes 3."]
    chosen, labels = click("Rather: Takes 3.")
    assert "20 of 100" not in chosen and "30 of 100" in chosen
    assert labels == ["Back to the first reading", "Rather: Takes 2."]
    events.extend([Asked("What else?"), answered()])  # another question comes between
    events.extend([Asked("How many?", reply="Rather: Takes 2."), answered(sql="SELECT 2", doubts=[])])
    assert "You chose this reading" in messages(ConversationView(events).turns)[-1]["content"]
    chosen, labels = click("Back to the first reading")
    assert "You chose this reading" in chosen and labels == ["Rather: Takes 2.", "Rather: Takes 3."]


def test_what_is_said_is_shown_to_the_letter() -> None:
    """Stars were lost, and an image of a question stood there broken."""
    (question, _) = messages(ConversationView([Asked("show *all* rows of <img src=x> _now_"), answered()]).turns)
    assert "&#42;all&#42; rows of &lt;img src=x&gt; &#95;now&#95;" in question["content"]


def test_rows_are_shown_while_other_readings_are_looked_at() -> None:
    turn = ConversationView([Asked("q"), Started("plan")]).turns[0]
    turn.early = {"columns": ["city", "<b>"], "rows": [["Porto", 1], ["Rome", 2]], "count": 40}
    shown = messages([turn])[-1]["content"]
    assert (
        "<td>Porto</td>" in shown
        and "38 more rows" in shown
        and "Checking other readings" in shown
        and "<b>" not in shown
    )


def test_a_question_that_found_no_sql_says_so_plainly() -> None:
    """Exception and SQL once stood in the bold headline, eight lines of it."""
    error = {
        "kind": "other",
        "message": "Unimplemented type for cast (INTEGER -> TIMESTAMP)",
        "candidates": [],
        "name": None,
    }
    event = answered(error=error, answer=f"No working SQL was found ({error['message']}).", columns=[], rows=[])
    shown = messages(ConversationView([Asked("How many?"), event]).turns)[-1]
    headline, _, rest = shown["content"].partition("\n\n")
    assert headline == "**I could not work this out.**" and rest.startswith("<details>")
    assert ">Try again</button>" in shown["content"]


def test_a_fault_of_the_program_is_folded() -> None:
    failed = Failed("Something went wrong.\nKeyError: <b>")
    shown = messages(ConversationView([Asked("How many?"), failed]).turns)[-1]
    assert shown["content"].startswith("**Something went wrong\\.**\n\n<details><summary>Details</summary>\n\n```")
    assert ">Try again</button>" in shown["content"]


def content(**answer: Any) -> str:
    return str(messages(ConversationView([Asked("q"), answered(**answer)]).turns)[-1]["content"])


ALBUMS = {"headings": ["title", "reviews"], "kinds": ["text", "amount"], "statement": 'SELECT title, n AS "reviews"',
          "done": "Counted reviews for each album."}  # fmt: skip


def test_an_answer_is_one_card_with_table_chart_and_sql() -> None:
    rows = [[f"<b>*{n}*</b>\n\n# x", n] for n in range(9, 0, -1)]
    card = content(columns=["a", "b"], rows=rows, shown=ALBUMS | {"rows": rows}, sql="SELECT n")
    (line,) = [each for each in card.splitlines() if each.startswith('<div class="card">')]
    assert [f'for="card-0-{tab}"' in line for tab in ("table", "chart", "sql")] == [True] * 3
    assert "&lt;b&gt;&#42;9&#42;&lt;/b&gt; # x" in line and line.count("<tr>") == 1 + 9 + 9
    assert "AS &quot;reviews&quot;" in line and "as the model wrote it" in line
    assert "copy-card" in line and "export-card" in line
    assert '<p class="done">Counted reviews for each album.</p>' in card


def test_a_bar_stands_next_to_its_number() -> None:
    """Bars of the reviews once stood next to the album's id."""
    seen = {"headings": ["album", "reviews", "album id"], "kinds": ["text", "amount", "digits"],
            "rows": [["Up", 4, 7], ["Low", 2, 8], ["Far", 1, 9]]}  # fmt: skip
    card = content(columns=["a", "n", "id"], rows=seen["rows"], shown=seen)
    assert 'number">4</td><td><i class="bar" style="width:100%"></i></td><td class="number">7</td>' in card
    assert 'reviews</th><th></th><th scope="col" class="number">album id' in card


def test_one_value_is_a_big_number_without_a_table() -> None:
    seen = {"headings": ["albums"], "kinds": ["amount"], "rows": [[1200]]}
    card = content(columns=["n"], rows=[[1200]], shown=seen)
    assert '<div class="big">1,200</div>' in card and "<table" not in card


def test_passes_lead_in_the_line_below_an_answer(albums: list[Event]) -> None:
    """The time stood first, and beside it a factor against an estimate."""
    told = messages(ConversationView(albums).turns)[1]["content"]
    summary = told.rpartition("<details><summary>")[2].partition("</summary>")[0]
    assert summary.startswith('<span class="strip"><i style="width:') and " of the model instead of " in summary
    assert summary.endswith(" s") and "slower" not in summary


def test_readings_are_told_apart_by_what_differs_and_what_they_give() -> None:
    """Two labels were cut off before the part in which they differed."""
    others = [{"sql": f"SELECT {n}", "words": "Takes the same from the same. " * 9, "confidence": 0.1, "votes": 1,
               "differs": f"only where year is {n}", "result": f"{n} rows: Ada, Bo …"} for n in (2, 3)]  # fmt: skip
    event = answered(probably_wrong=True, doubts=["It guesses."], alternatives=others)
    turns = ConversationView([Asked("How many?"), event]).turns
    shown = messages(turns)[-1]
    assert [each["label"] for each in offered(turns[0])] == [
        f"Rather: only where year is {n} → {n} rows: Ada, Bo …" for n in (2, 3)
    ]
    assert "Did you mean" in shown["content"]
    which = {"message": "Which do you mean: <b>2</b>, or 3?", "options": []}
    asking = answered(probably_wrong=True, doubts=["It guesses."], alternatives=others, which_reading=which)
    shown = messages(ConversationView([Asked("How many?"), asking]).turns)[-1]
    assert (
        "Which do you mean: &lt;b&gt;2&lt;/b&gt;, or 3?" in shown["content"] and "Did you mean" not in shown["content"]
    )


def test_small_talk_is_told_without_its_time() -> None:
    """ "0.0 ms" stood under "You are welcome."."""
    told = content(sql=None, columns=[], rows=[], answer="You are welcome.", shown=None)
    assert told == "**You are welcome\\.**"
