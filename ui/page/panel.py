"""The panel beside the chat: everything about one answer. `show` turns a turn into updates of its components."""

from dataclasses import dataclass
from typing import Any

import gradio as gr

from agent.conversation.json_values import plain_rows
from agent.observe.step_titles import step_title
from decoding.methods.registry import ready_methods
from tools.sql.in_words import in_words
from ui.session.conversation_view import TurnView
from ui.session.session import Session
from ui.views.charts import KINDS, Chart, draw, suggest
from ui.views.decoding_html import decoding_html
from ui.views.savings_html import savings_html
from ui.views.words import counted, milliseconds, plain

SHOWN_ROWS = 2000
Updates = dict[Any, Any]


@dataclass(slots=True, eq=False)
class Panel:
    """The components, in the order of the page."""

    turn: gr.Dropdown
    caption: gr.Markdown
    table: gr.Dataframe
    export_kind: gr.Dropdown
    export: gr.Button
    download: gr.DownloadButton
    chart_kind: gr.Dropdown
    chart_x: gr.Dropdown
    chart_y: gr.Dropdown
    plots: dict[str, gr.BarPlot | gr.LinePlot | gr.ScatterPlot]
    sql: gr.Code
    run: gr.Button
    words: gr.Markdown
    trouble: gr.Markdown
    savings: gr.HTML
    step: gr.Dropdown
    decoding: gr.HTML
    race_step: gr.Dropdown
    race_methods: gr.CheckboxGroup
    race: gr.Button
    race_view: gr.HTML

    @property
    def of_a_turn(self) -> list[Any]:
        """What `show` updates."""
        charts = [self.chart_kind, self.chart_x, self.chart_y, *self.plots.values()]
        rest = [self.sql, self.words, self.trouble, self.savings, self.step, self.decoding, self.race_step]
        return [self.turn, self.caption, self.table, self.download, *charts, *rest]

    @property
    def of_a_chart(self) -> list[Any]:
        return [self.chart_kind, self.chart_x, self.chart_y, *self.plots.values()]


def build_panel() -> Panel:
    """Lay the panel out; called inside a `gr.Blocks`."""
    turn = gr.Dropdown(
        label="Answer shown here", choices=[], interactive=True, elem_id="turn", show_label=False, visible=False
    )
    with gr.Tabs(elem_id="tabs"):
        with gr.Tab("Result", id="result"):
            result = _build_result()
        with gr.Tab("Chart", id="chart"):
            chart = _build_chart()
        with gr.Tab("SQL", id="sql"):
            sql = _build_sql()
        with gr.Tab("Savings", id="savings"):
            savings = gr.HTML(savings_html(None, []), elem_id="savings", padding=False)
        with gr.Tab("Decoding", id="decoding"):
            step = gr.Dropdown(label="Step", choices=[], interactive=True, elem_id="step")
            decoding = gr.HTML(decoding_html(None), elem_id="decoding", padding=False)
        with gr.Tab("Race", id="race"):
            race = _build_race()
    views: dict[str, Any] = {"savings": savings, "step": step, "decoding": decoding}
    return Panel(turn=turn, **result, **chart, **sql, **views, **race)


def _build_result() -> dict[str, Any]:
    caption = gr.Markdown("Ask a question: its rows appear here.", elem_id="caption")
    table = gr.Dataframe(
        interactive=False,
        show_search="filter",
        max_height=420,
        show_label=False,
        buttons=["copy", "fullscreen"],
        max_chars=120,
        elem_id="table",
        visible=False,
        show_row_numbers=True,
    )
    with gr.Row(elem_classes="tight"):
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
    return {"caption": caption, "table": table, "export_kind": kind, "export": export, "download": download}


def _build_chart() -> dict[str, Any]:
    with gr.Row(elem_classes="tight"):
        kind = gr.Dropdown(list(KINDS), value="none", label="Kind", elem_id="chart-kind", min_width=100)
        x = gr.Dropdown([], label="Across", elem_id="chart-x", min_width=100)
        y = gr.Dropdown([], label="Up", elem_id="chart-y", min_width=100)
    plots = {
        "bar": gr.BarPlot(visible=False, height=340, x_label_angle=-40, elem_id="bar"),
        "line": gr.LinePlot(visible=False, height=340, elem_id="line"),
        "scatter": gr.ScatterPlot(visible=False, height=340, elem_id="scatter"),
    }
    return {"chart_kind": kind, "chart_x": x, "chart_y": y, "plots": plots}


def _build_sql() -> dict[str, Any]:
    sql = gr.Code(
        language="sql",
        label="SQL: change it and run it",
        wrap_lines=True,
        interactive=True,
        lines=4,
        elem_id="sql",
        max_lines=10,
    )
    run = gr.Button("Run this SQL", variant="primary", elem_id="run")
    words = gr.Markdown(elem_id="words")
    trouble = gr.Markdown(elem_id="trouble")
    return {"sql": sql, "run": run, "words": words, "trouble": trouble}


def _build_race() -> dict[str, Any]:
    gr.Markdown("Decode a step of the newest answer again with two or three methods, side by side.")
    step = gr.Dropdown(label="Step", choices=[], interactive=True, elem_id="race-step")
    ready = ready_methods()
    first = [name for name in ("plain", "prompt_lookup", "jacobi_forcing") if name in ready]
    methods = gr.CheckboxGroup(ready, value=first, label="Methods", elem_id="race-methods")
    race = gr.Button("Start the race", variant="primary", elem_id="race")
    view = gr.HTML(elem_id="race-view", padding=False)
    return {"race_step": step, "race_methods": methods, "race": race, "race_view": view}


def show(panel: Panel, session: Session, index: int | None = None) -> Updates:
    """All of the panel for a turn; the newest by default."""
    turns = session.view.turns
    index = len(turns) - 1 if index is None or not 0 <= index < len(turns) else index
    turn = turns[index] if turns else None
    choices = [(f"{i + 1}. {each.question[:70]}", i) for i, each in enumerate(turns)]
    picker = gr.update(choices=choices, value=index if turns else None, visible=bool(turns))
    updates: Updates = {panel.turn: picker}
    updates |= show_rows(panel, session, turn, index)
    updates |= _show_sql(panel, session, turn) | {panel.savings: savings_html(turn, turns)}
    return updates | _show_steps(panel, turn)


def show_rows(panel: Panel, session: Session, turn: TurnView | None, index: int) -> Updates:
    """Table, caption and chart of the rows that a turn's newest SQL gave."""
    columns, rows, count, told = _rows(session, turn, index)
    shown = rows[:SHOWN_ROWS]
    if count > len(shown):
        told += f"; the first {len(shown):,} are shown, an export has them all"
    table = gr.update(value={"headers": columns, "data": shown}, visible=bool(columns))
    chart = show_chart(panel, columns, suggest(columns, shown))
    return {panel.caption: told, panel.table: table, panel.download: gr.update(visible=False)} | chart


def _rows(session: Session, turn: TurnView | None, index: int) -> tuple[list[str], list[list[Any]], int, str]:
    """Columns, rows, how many there are in all, and a sentence about them."""
    if turn is None or not turn.is_over:
        return [], [], 0, "Ask a question: its rows appear here."
    result = session.results.get(index)
    ran, answer = turn.ran, turn.answer or {}
    by_hand = ran is not None and ran.error is None
    columns = list(ran.columns if ran and by_hand else answer.get("columns", []))
    stored = list(map(list, ran.rows)) if ran and by_hand else answer.get("rows", [])
    rows = plain_rows(result.rows[:SHOWN_ROWS]) if result else stored
    count = ran.row_count if ran and by_hand else turn.row_count
    truncated = ran.truncated if ran and by_hand else answer.get("truncated", False)
    took = f" in {milliseconds(ran.wall_ms)}, from SQL run by hand" if ran and by_hand else ""
    cut = ", cut off by the row limit" if truncated else ""
    return columns, rows, count, f"{counted(count, 'row')}{took}{cut}" if columns else "This answer has no rows."


def show_chart(panel: Panel, columns: list[str], chart: Chart) -> Updates:
    """The plot of the chart's kind, and the choices for it."""
    choices = [(name, i) for i, name in enumerate(columns)]
    x, y = chart.indices or (None, None)
    updates: Updates = {
        panel.chart_kind: chart.kind,
        panel.chart_x: gr.update(choices=choices, value=x),
        panel.chart_y: gr.update(choices=choices, value=y),
    }
    for kind, plot in panel.plots.items():
        updates[plot] = gr.update(visible=False)
        if kind == chart.kind:
            look: dict[str, Any] = {"x": chart.x, "y": chart.y, "y_lim": chart.y_range, "visible": True}
            order: dict[str, Any] = {"sort": chart.order} if chart.order else {}  # only bars have one
            updates[plot] = gr.update(value=chart.frame, **look, **order)
    return updates


def redraw(panel: Panel, session: Session, index: int, kind: Any, x: int | None, y: int | None) -> Updates:
    """The chart that a person chose."""
    turn = session.view.turns[index] if 0 <= index < len(session.view.turns) else None
    columns, rows, _, _ = _rows(session, turn, index)
    if not columns or (kind != "none" and (x is None or y is None)):
        return show_chart(panel, columns, suggest(columns, rows))
    return show_chart(panel, columns, draw(kind, columns, rows[:SHOWN_ROWS], x or 0, y or 0))


def _show_sql(panel: Panel, session: Session, turn: TurnView | None) -> Updates:
    sql = (turn.ran.sql if turn.ran else turn.sql) if turn else ""
    error = turn.ran.error if turn and turn.ran else None
    return {panel.sql: sql, panel.words: explained(session, sql), panel.trouble: told_error(error)}


def explained(session: Session, sql: str) -> str:
    words = in_words(sql, session.database.dialect) if sql else ""
    return f"*In words:* {plain(words)}" if words else ""


def told_error(error: dict[str, Any] | None) -> str:
    if error is None:
        return ""
    candidates = ", ".join(f"`{name}`" for name in error["candidates"])
    there_is = f" There is: {candidates}." if candidates else ""
    return f"⚠ **{plain(error['message'])}**{there_is}"


def _show_steps(panel: Panel, turn: TurnView | None) -> Updates:
    steps = [(i, step) for i, step in enumerate(turn.steps) if step.rounds] if turn else []
    choices = [(f"{step_title(step.name)} ({counted(len(step.rounds), 'pass', 'passes')})", i) for i, step in steps]
    index, chosen = steps[-1] if steps else (None, None)
    asked = [step.name for step in turn.steps if step.record and step.record["decoder"]] if turn else []
    names = list(dict.fromkeys((step_title(name), name) for name in asked))
    return {
        panel.step: gr.update(choices=choices, value=index),
        panel.decoding: decoding_html(chosen),
        panel.race_step: gr.update(choices=names, value=names[-1][1] if names else None),
    }
