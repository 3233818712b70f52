"""The panel next to the chat: everything about one answer. `show` turns a turn into updates of its components."""

from dataclasses import dataclass
from typing import Any

import gradio as gr

from agent.assemble import DEFAULT_DECODER
from agent.observe.step_record import step_title
from decoding.methods.registry import ready_methods
from tools.sql.spelling import in_words
from ui.session.conversation_view import OWN_QUERY, TurnView
from ui.session.session import Session
from ui.views.charts import KINDS, MOST_BARS, Chart, draw, fitting, picture, suggest
from ui.views.data_html import NO_ROWS, Rows, column_widths, in_order, rows_of, table_of
from ui.views.passes import decoding_html
from ui.views.savings_html import method_name, savings_html
from ui.views.words import counted, fenced, plain

NO_CHART = "**No chart yet.** Where an answer has numbers, they are drawn here."
NO_SQL = "**No SQL yet.** The query behind an answer appears here. You can change it and run it; it only reads."
OWN_SQL = "SQL of your own"
HOW_TO_WRITE = "Tables, columns and keywords are offered while you type, and by Ctrl+Space. It only reads."
NO_RACE = "**No race yet.** Ask a question first: then its steps can be decoded again, by methods side by side."
NOTHING_TO_RACE = "**Nothing to race.** No model was needed for this answer."
AS_WRITTEN, AS_SHOWN = "As the model wrote it", "As it is shown"
FIRST_METHODS = ("plain", "prompt_lookup", DEFAULT_DECODER)
Updates = dict[Any, Any]


@dataclass(slots=True, eq=False)
class Panel:
    """The components, in the order of the page."""

    turn: gr.Dropdown
    tabs: gr.Tabs
    caption: gr.Markdown
    table: gr.Dataframe
    exports: gr.Row
    export_kind: gr.Dropdown
    export: gr.Button
    download: gr.DownloadButton
    chart_choices: gr.Row
    chart_kind: gr.Dropdown
    chart_x: gr.Dropdown
    chart_y: gr.Dropdown
    chart_every: gr.Checkbox
    plot: gr.Plot
    chart_note: gr.Markdown
    sql_parts: gr.Column
    sql: gr.Code
    run: gr.Button
    halt: gr.Button
    own: gr.Button
    written: gr.Button
    words: gr.Markdown
    trouble: gr.Markdown
    savings: gr.HTML
    measure: gr.Button
    step: gr.Dropdown
    decoding: gr.HTML
    race_parts: gr.Column
    no_race: gr.Markdown
    race_step: gr.Dropdown
    race_methods: gr.CheckboxGroup
    race_more: gr.CheckboxGroup
    race: gr.Button
    race_view: gr.HTML

    @property
    def of_a_turn(self) -> list[Any]:
        """What `show` updates."""
        sql = [self.sql_parts, self.sql, self.own, self.written, self.words, self.trouble]
        race = [self.race_parts, self.race_step, self.no_race, self.race_view]
        return [self.turn, *self.of_rows, *sql, self.savings, self.measure, self.step, self.decoding, *race]

    @property
    def of_rows(self) -> list[Any]:
        """What `show_rows` updates."""
        return [self.caption, self.table, self.exports, self.download, *self.of_a_chart]

    @property
    def of_a_chart(self) -> list[Any]:
        return [
            self.chart_choices,
            self.chart_kind,
            self.chart_x,
            self.chart_y,
            self.chart_every,
            self.plot,
            self.chart_note,
        ]


def build_panel() -> Panel:
    """Lay the panel out; called inside a `gr.Blocks`."""
    turn = gr.Dropdown(
        label="Answer shown here", choices=[], interactive=True, elem_id="turn", show_label=False, visible=False
    )
    with gr.Tabs(elem_id="tabs") as tabs:
        with gr.Tab("Result", id="result"):
            result = _build_result()
        with gr.Tab("Chart", id="chart"):
            chart = _build_chart()
        with gr.Tab("SQL", id="sql"):
            sql = _build_sql()
        with gr.Tab("Speed", id="speed"):
            savings = gr.HTML(savings_html(None, []), elem_id="savings", padding=False)
            measure = gr.Button("Measure this", elem_id="measure", visible=False)
            step = gr.Dropdown(label="Step", choices=[], interactive=True, elem_id="step", visible=False)
            decoding = gr.HTML("", elem_id="decoding", padding=False)
            with gr.Accordion("Race other methods", open=False, elem_id="races"):
                race = _build_race()
    views: dict[str, Any] = {"tabs": tabs, "savings": savings, "measure": measure, "step": step, "decoding": decoding}
    return Panel(turn=turn, **result, **chart, **sql, **views, **race)


def _build_result() -> dict[str, Any]:
    caption = gr.Markdown(NO_ROWS, elem_id="caption")
    table = gr.Dataframe(
        interactive=False,
        show_search="filter",
        max_height=420,
        show_label=False,
        buttons=["fullscreen"],
        max_chars=120,
        elem_id="table",
        visible=False,
        show_row_numbers=True,
    )
    with gr.Row(elem_classes="tight", visible=False) as exports:
        kind = gr.Dropdown(
            [("CSV", "csv"), ("Parquet", "parquet"), ("Excel", "xlsx")],
            value="csv",
            label="Format",
            show_label=False,
            container=False,
            elem_id="export-kind",
            min_width=110,
        )
        export = gr.Button("Export all rows", elem_id="export", min_width=140)
        download = gr.DownloadButton("Download", visible=False, variant="primary", elem_id="download", min_width=120)
    parts = {"caption": caption, "table": table, "exports": exports, "export_kind": kind, "export": export}
    return parts | {"download": download}


def _build_chart() -> dict[str, Any]:
    with gr.Row(elem_classes="tight", visible=False) as choices:
        kind = gr.Dropdown(list(KINDS), value="none", label="Kind", elem_id="chart-kind", min_width=100)
        x = gr.Dropdown([], label="Across", elem_id="chart-x", min_width=100)
        y = gr.Dropdown([], label="Up", elem_id="chart-y", min_width=100)
    plot = gr.Plot(show_label=False, container=False, elem_id="plot", visible=False)
    note = gr.Markdown(NO_CHART, elem_id="chart-note")
    every = gr.Checkbox(False, label="Show all bars", elem_id="chart-every", visible=False)
    parts = {"chart_choices": choices, "chart_kind": kind, "chart_x": x, "chart_y": y, "chart_every": every}
    return parts | {"plot": plot, "chart_note": note}


def _build_sql() -> dict[str, Any]:
    with gr.Column(visible=False) as parts:
        sql = gr.Code(
            language="sql",
            label="SQL: change it and run it",
            wrap_lines=True,
            interactive=True,
            lines=4,
            elem_id="sql",
            max_lines=10,
        )
        with gr.Row(elem_classes="tight"):
            run = gr.Button("Run this SQL (Ctrl+Enter)", variant="primary", elem_id="run", min_width=140)
            halt = gr.Button("Stop", variant="stop", elem_id="halt", min_width=140, visible=False)
            written = gr.Button(AS_WRITTEN, elem_id="written", min_width=140, visible=False)
            own = gr.Button("Back to the answer's own result", elem_id="own", min_width=140, visible=False)
    words = gr.Markdown(NO_SQL, elem_id="words")
    trouble = gr.Markdown(elem_id="trouble")
    buttons: dict[str, Any] = {"run": run, "halt": halt, "own": own, "written": written}
    return buttons | {"sql_parts": parts, "sql": sql, "words": words, "trouble": trouble}


def _build_race() -> dict[str, Any]:
    ready = ready_methods()
    first = [name for name in FIRST_METHODS if name in ready]
    none = gr.Markdown(NO_RACE, elem_id="no-race")
    with gr.Column(visible=False) as parts:
        gr.Markdown("Decode a step of the newest answer again with two or three methods, side by side.")
        step = gr.Dropdown(label="Step", choices=[], interactive=True, elem_id="race-step")
        methods = gr.CheckboxGroup(
            [(method_name(name), name) for name in first], value=first, label="Methods", elem_id="race-methods"
        )
        with gr.Accordion("More methods", open=False):
            others = [name for name in ready if name not in first]
            more = gr.CheckboxGroup(others, show_label=False, container=False, elem_id="race-more")
        race = gr.Button("Start the race", variant="primary", elem_id="race")
        view = gr.HTML(elem_id="race-view", padding=False)
    chosen: dict[str, Any] = {"race_step": step, "race_methods": methods, "race_more": more}
    return chosen | {"race_parts": parts, "no_race": none, "race": race, "race_view": view}


def show(panel: Panel, session: Session, index: int | None = None) -> Updates:
    """All of the panel for a turn or for OWN_QUERY; by default for the newest turn that is over."""
    view = session.view
    choices = [(f"{i + 1}. {each.said[:70]}", i) for i, each in enumerate(view.turns) if each.is_over]
    if index == OWN_QUERY or view.query.ran:
        choices.append((OWN_SQL, OWN_QUERY))
    places = [place for _, place in choices]
    index = index if index in places else max(places, default=len(view.turns))
    turn = view.turn(index)
    picker = gr.update(choices=choices, value=index if turn else None, visible=turn is not None)
    updates: Updates = {panel.turn: picker}
    updates |= show_rows(panel, session, turn, index)
    updates |= _show_sql(panel, session, turn) | show_savings(panel, session, index)
    return updates | _show_steps(panel, turn)


def show_savings(panel: Panel, session: Session, index: int) -> Updates:
    """What a turn's steps saved; the newest turn's estimates can be measured."""
    turns = session.view.turns
    can = session.can_measure and index == len(turns) - 1
    measure = gr.update(visible=can, value="Measure the time of both", interactive=True)
    shown = turns[index] if 0 <= index < len(turns) else None
    return {panel.savings: savings_html(shown, turns), panel.measure: measure}


def show_rows(panel: Panel, session: Session, turn: TurnView | None, index: int) -> Updates:
    """Table, caption and chart of the rows that a turn's newest SQL gave."""
    own = rows_of(session, turn, index)
    told = own.told
    if own.count > len(own.rows):
        told += f"; the first {len(own.rows):,} are shown, an export has them all"
    seen, widths = bool(own.columns), column_widths(own)
    table = gr.update(value=table_of(own), visible=seen, elem_classes=_sides(own), column_widths=widths)
    chart = show_chart(panel, own, suggest(own.columns, own.rows))
    exports = gr.update(visible=bool(own.columns))
    parts = {panel.caption: told, panel.table: table, panel.exports: exports}
    return parts | {panel.download: gr.update(visible=False)} | chart


def _sides(own: Rows) -> list[str]:
    return [f"right-{place}" for place, right in enumerate(own.at_right) if right]


def sort_rows(panel: Panel, session: Session, index: int, column: int, descending: bool) -> Updates:
    """The table in the order of one of its columns; a class says which."""
    own = rows_of(session, session.view.turn(index), index)
    if not 0 <= column < len(own.columns):
        return {}
    order = f"sorted-{column}-{'descending' if descending else 'ascending'}"
    return {
        panel.table: gr.update(value=table_of(in_order(own, column, descending)), elem_classes=[*_sides(own), order])
    }


def show_chart(panel: Panel, own: Rows, chart: Chart) -> Updates:
    """The picture of a chart, what it leaves out, and the choices for it."""
    choices = [(name, i) for i, name in enumerate(own.columns)]
    x, y = chart.indices or (None, None)
    partial = (
        "The result was cut off by the row limit: the chart is partial." if own.truncated and chart.indices else ""
    )
    more = chart.kind == "bar" and len(own.rows) > MOST_BARS
    kinds = fitting(own.columns, own.rows)
    drawn, note = picture(chart), " ".join(filter(None, (chart.note, partial)))
    return {
        panel.chart_choices: gr.update(visible=kinds != ["none"]),
        panel.chart_kind: gr.update(choices=kinds, value=chart.kind),
        panel.chart_x: gr.update(choices=choices, value=x),
        panel.chart_y: gr.update(choices=choices, value=y),
        panel.chart_every: gr.update(visible=more, value=more and len(chart.frame) > MOST_BARS),
        panel.plot: gr.update(value=drawn, visible=drawn is not None),
        panel.chart_note: f"*{note}*" if note else "" if drawn else NO_CHART,
    }


def redraw(panel: Panel, session: Session, index: int, kind: Any, x: int | None, y: int | None, every: bool) -> Updates:
    """The chart that a person chose."""
    own = rows_of(session, session.view.turn(index), index)
    if not own.columns or (kind != "none" and (x is None or y is None)):
        return show_chart(panel, own, suggest(own.columns, own.rows))
    return show_chart(panel, own, draw(kind, own.columns, own.rows, x or 0, y or 0, every))


def _show_sql(panel: Panel, session: Session, turn: TurnView | None) -> Updates:
    sql = (turn.ran.sql if turn.ran else turn.statement) if turn else ""
    is_own, error = turn is session.view.query, turn.ran.error if turn and turn.ran else None
    own = gr.update(visible=bool(turn and turn.ran) and not is_own)
    words = (
        explained(session, turn.ran.sql if turn.ran else turn.sql)
        if turn and sql
        else HOW_TO_WRITE
        if is_own
        else NO_SQL
    )
    parts = {panel.sql_parts: gr.update(visible=bool(sql) or is_own), panel.sql: sql, panel.own: own}
    parts |= {panel.written: gr.update(visible=bool(turn and turn.laid_out != turn.statement), value=AS_WRITTEN)}
    return parts | {panel.words: words, panel.trouble: told_error(error, sql)}


def other_sql(panel: Panel, turn: TurnView, now: str) -> Updates:
    """In the editor the query as the model wrote it, or the one that gives the rows on the screen: the one not there."""
    to_written = now != turn.laid_out
    sql = turn.laid_out if to_written else turn.statement
    return {panel.sql: sql, panel.written: gr.update(value=AS_SHOWN if to_written else AS_WRITTEN)}


def explained(session: Session, sql: str) -> str:
    words = in_words(sql, session.database.dialect) if sql else ""
    return f"*In words:* {plain(words)}" if words else ""


def told_error(error: dict[str, Any] | None, sql: str) -> str:
    """What is wrong with a statement, and at which of its lines."""
    if error is None:
        return ""
    candidates = ", ".join(f"`{name}`" for name in error["candidates"])
    there_is = f" There is: {candidates}." if candidates else ""
    return f"⚠ **{plain(error['message'])}**{there_is}{_at_line(sql, error['position'])}"


def _at_line(sql: str, position: int | None) -> str:
    """The line of a 0-based offset, with a mark under it."""
    if position is None or not 0 <= position < len(sql):
        return ""
    before = sql[:position]
    number, column = before.count("\n") + 1, position - (before.rfind("\n") + 1)
    first = max(0, column - 40)
    shown = sql.split("\n")[number - 1][first : first + 80]
    mark = "\n" + " " * (column - first) + "^"
    return f"\n\nLine {number}:\n{fenced(f'{shown}{mark}')}"


def _show_steps(panel: Panel, turn: TurnView | None) -> Updates:
    steps = [(i, step) for i, step in enumerate(turn.steps) if step.rounds] if turn else []
    choices = [(f"{step_title(step.name)} ({counted(len(step.rounds), 'pass', 'passes')})", i) for i, step in steps]
    index, chosen = steps[-1] if steps else (None, None)
    asked = [step.name for step in turn.steps if step.record and step.record["decoder"]] if turn else []
    names = list(dict.fromkeys((step_title(name), name) for name in asked))
    return {
        panel.step: gr.update(choices=choices, value=index, visible=bool(steps)),
        panel.decoding: decoding_html(chosen) if chosen else "",
        panel.race_parts: gr.update(visible=bool(names)),
        panel.no_race: gr.update(value=NOTHING_TO_RACE if turn else NO_RACE, visible=not names),
        panel.race_view: "",
        panel.race_step: gr.update(choices=names, value=names[-1][1] if names else None),
    }
