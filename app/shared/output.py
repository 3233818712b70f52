"""Prints answers in a terminal, or as plain text if stdout is not a terminal; rich honours `NO_COLOR`."""

import csv
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from app.shared.terminal_text import in_json, shown

SHOWN_ROWS = 20
stdout = Console()
stderr = Console(stderr=True)


def print_json(value: Any) -> None:
    from agent.conversation.json_values import exact_value

    print(in_json(json.dumps(exact_value(value), ensure_ascii=False)))


def report(line: str) -> None:
    """Print a line of progress on stderr immediately."""
    print(shown(line), file=sys.stderr, flush=True)


def for_stdout(text: str) -> str:
    """Text for stdout: made safe to show in a terminal, but unchanged for another program."""
    return shown(text) if sys.stdout.isatty() else text


def print_rows(columns: Sequence[str], rows: Sequence[Sequence[Any]], truncated: bool = False) -> None:
    """Print the first rows as a table, and how many there are."""
    table = Table(header_style="bold", row_styles=["", "dim"])
    for name in columns:
        table.add_column(_cell(name))
    for row in rows[:SHOWN_ROWS]:
        table.add_row(*map(_cell, row))
    stdout.print(table)
    more = f"; the first {SHOWN_ROWS} are shown" if len(rows) > SHOWN_ROWS else ""
    cut = ", cut off by --limit" if truncated else ""
    stdout.print(f"{len(rows):,} row{'s' * (len(rows) != 1)}{cut}{more}", style="dim")


def _cell(value: Any) -> Text:
    """The value as plain text, without rich's markup and terminal control characters."""
    return Text("" if value is None else shown(str(value)))


def print_csv(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    writer = csv.writer(sys.stdout)
    writer.writerow(map(_csv_cell, columns))
    writer.writerows(map(_csv_cell, row) for row in rows)


def _csv_cell(value: Any) -> Any:
    return value if value is None else for_stdout(str(value))


def print_sql(sql: str, dialect: str) -> None:
    from sqlglot import transpile
    from sqlglot.errors import SqlglotError

    with suppress(SqlglotError):
        sql = transpile(sql, read=dialect, write=dialect, pretty=True)[0]
    stdout.print(Syntax(shown(sql), "sql", background_color="default", word_wrap=True))


def print_answer(answer: Mapping[str, Any]) -> None:
    """Print answer, rows, SQL and the time of each step."""
    continues = f"  [dim](continues question {answer['continues']})[/dim]" if answer.get("continues") else ""
    stdout.print(f"[bold]{escape(shown(answer['answer']))}[/bold]{continues}", highlight=False)
    if answer["columns"]:
        print_rows(answer["columns"], answer["rows"], answer["truncated"])
    if answer["sql"]:
        print_sql(answer["sql"], answer["dialect"])
    print_steps(answer)


def print_steps(answer: Mapping[str, Any]) -> None:
    """Print the latency table: each step, and the total."""
    table = Table(
        title="what each step took", title_justify="left", title_style="dim", box=SIMPLE_HEAD, padding=(0, 1, 0, 0)
    )
    numbers = ("prompt", "cached", "new", "fwd", "tok/fwd", "ms", "plain ms")
    for name in ("step", "decoder", *numbers):
        table.add_column(name, justify="right" if name in numbers else "left", no_wrap=True)
    for step in answer["steps"]:
        table.add_row(*_step_row(step))
    table.add_section()
    table.add_row("total", *[""] * 6, _ms(answer["total_ms"]), _ms(answer["plain_total_ms"]))
    stdout.print(table)
    if answer["plain_total_ms"]:
        sources = {step["plain_ms_source"] for step in answer["steps"] if step["decoder"]} - {"same", None}
        how = f" ({', '.join(sorted(sources))})" if sources else ""
        ratio = answer["plain_total_ms"] / answer["total_ms"]
        stdout.print(f"plain decoding would take {ratio:.2f} x as long{how}", style="dim")


def _step_row(step: Mapping[str, Any]) -> list[str]:
    if not step["decoder"]:
        return [step["name"], "", "", "", "", "", "", _ms(step["wall_ms"]), _ms(step["plain_ms"])]
    tpf = step["tokens_per_forward"]
    counts = [step["prompt_tokens"], step["cached_tokens"], step["new_tokens"], step["target_forwards"]]
    rate = f"{tpf:.2f}" if tpf else ""
    return [step["name"], step["decoder"], *map(str, counts), rate, _ms(step["wall_ms"]), _ms(step["plain_ms"])]


def _ms(value: float | None) -> str:
    return "?" if value is None else f"{value:,.0f}" if value >= 10 else f"{value:.1f}"
