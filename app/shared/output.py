"""What commands print: tables, SQL and answers, on streams that may be closed or full.

Text from databases, models and files is made safe for a terminal: control characters are printed as visible escapes. Tables fit
the terminal they are printed in, and are complete if a program reads them. Answers are plain text if stdout is not a terminal;
rich honours `NO_COLOR`.
"""

import csv
import json
import os
import re
import sys
from codecs import lookup
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from decimal import Decimal
from errno import EBADF, EDQUOT, EFBIG, EIO, ENOSPC
from io import TextIOWrapper
from typing import Any

from rich.cells import cell_len
from rich.console import Console, JustifyMethod
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

_NO_ROOM = {EBADF, EDQUOT, EFBIG, EIO, ENOSPC}


def ready() -> None:
    """Make the streams usable. One that is closed would be None, and its number would go to the next file that is opened:
    reading then finds nothing, and writing to stdout fails. Where stdout's encoding lacks a sign, it is spelled out.
    """
    for number, name, access in ((0, "stdin", os.O_RDONLY), (1, "stdout", os.O_RDONLY), (2, "stderr", os.O_WRONLY)):
        if getattr(sys, name) is None:
            nothing = os.open(os.devnull, access)
            setattr(sys, name, os.fdopen(nothing, "w" if number else "r", encoding="utf-8"))
    if not takes_every_sign():
        _lacking("backslashreplace")


def takes_every_sign() -> bool:
    """Whether stdout's encoding is one of Unicode's."""
    return _encoding().startswith("utf")


def exact() -> None:
    """From here on stdout is for programs: a sign that its encoding lacks is an error, and not spelled out."""
    if not takes_every_sign():
        _lacking("strict")


def _lacking(errors: str) -> None:
    if isinstance(sys.stdout, TextIOWrapper):
        with suppress(OSError):
            sys.stdout.reconfigure(errors=errors)


def finish() -> str:
    """Write what is still to be written; returns what is told where not all can be, and drops it."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        drop()
    except OSError as error:
        drop()
        return _not_all(error)
    return ""


def drop() -> None:
    """Nobody reads our output any more: what Python still flushes at its end goes nowhere, without a complaint on stderr."""
    with suppress(OSError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def trouble(error: Exception) -> str:
    """What is told where an error is about what stdout takes; nothing where it is not."""
    if isinstance(error, UnicodeEncodeError):
        own, lacks = _encoding(), ascii(error.object[error.start : error.end])
        told = f"stdout takes only {own}, which has no {lacks}: set PYTHONIOENCODING=utf-8"
        return told if lookup(error.encoding).name == own else ""
    if isinstance(error, OSError) and error.filename is None and error.errno in _NO_ROOM:
        return _not_all(error)  # of a file that is named, the message says which
    return ""


def _not_all(error: OSError) -> str:
    return f"not all could be written: {error.strerror or error}"


def _encoding() -> str:
    return lookup(getattr(sys.stdout, "encoding", None) or "utf-8").name


# Control characters (C0 except line ends and tabs, DEL, C1), lone surrogates, line and paragraph separators, bidi marks, and
# invisible tags.
_STEERING = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\U000e0000-\U000e007f]"
)


def shown(text: str) -> str:
    """The text with control characters spelled out, an escape character as \\x1b; line ends and tabs stay.

    >>> print(shown("a red \x1b[31mname"))
    a red \\x1b[31mname
    """
    return _STEERING.sub(_spelt, text)


def in_json(text: str) -> str:
    """JSON with the same meaning, in which such characters are written as \\u and four digits."""
    return _STEERING.sub(lambda found: "".join(f"\\u{unit:04x}" for unit in _utf_16(found[0])), text)


def _spelt(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _utf_16(character: str) -> list[int]:
    data = character.encode("utf-16-be", errors="surrogatepass")
    return [int.from_bytes(data[i : i + 2], "big") for i in range(0, len(data), 2)]


NARROWEST = 12
"""Characters to which a column of text may shrink before others are left out."""
_BESIDE = 3  # characters between two columns
_UNBOUNDED = 100_000


def console() -> Console:
    """stdout; without a width where it is no terminal."""
    return Console() if sys.stdout.isatty() else Console(width=_UNBOUNDED)


def print_table(columns: Sequence[str], rows: Sequence[Sequence[Any]], right: Sequence[bool] = ()) -> None:
    """Print every row. `right`: which columns are aligned at the right; by default those that hold numbers alone. Text is
    wrapped; columns for which the terminal is too narrow are left out, and a line says which.
    """
    out = console()
    texts = [[shown(name) for name in columns], *([cell_of(cell) for cell in row] for row in rows)]
    at_right = list(right) or [_is_numeric([row[place] for row in rows]) for place in range(len(columns))]
    kept = _fitting(texts, at_right, out.width)
    table = Table(header_style="bold", row_styles=["", "dim"])
    for place in range(kept):
        whole = at_right[place] or _widest(texts, place) <= NARROWEST
        justify: JustifyMethod = "right" if at_right[place] else "left"
        table.add_column(Text(texts[0][place]), justify=justify, no_wrap=whole, overflow="fold")
    for row in texts[1:]:
        table.add_row(*map(Text, row[:kept]))
    out.print(table)
    if kept < len(columns):
        left_out = ", ".join(texts[0][kept:])
        told = f"{len(columns) - kept} of {len(columns)} columns do not fit here: {left_out} (--json prints all)"
        out.print(Text(told), style="dim", highlight=False)


def cell_of(value: Any) -> str:
    """A cell as plain text, without terminal control characters."""
    return "" if value is None else shown(str(value))


def _is_numeric(cells: Sequence[Any]) -> bool:
    known = [cell for cell in cells if cell is not None]
    return bool(known) and all(isinstance(cell, int | float | Decimal) and not isinstance(cell, bool) for cell in known)


def _fitting(texts: Sequence[Sequence[str]], at_right: Sequence[bool], width: int) -> int:
    """How many columns, from the left, fit when texts are wrapped; one at least."""
    used = 1
    for place in range(len(texts[0])):
        widest = _widest(texts, place)
        used += _BESIDE + (widest if at_right[place] else min(widest, NARROWEST))
        if used > width:
            return max(1, place)
    return len(texts[0])


def _widest(texts: Sequence[Sequence[str]], place: int) -> int:
    return max(cell_len(line) for row in texts for line in row[place].split("\n"))


SHOWN_ROWS = 20
LONGEST_BAR = 12  # characters
stdout = Console()
stderr = Console(stderr=True)


def print_json(value: Any) -> None:
    from agent.observe.events import exact_value

    print(in_json(json.dumps(exact_value(value), ensure_ascii=not takes_every_sign())))


def report(line: str) -> None:
    """Print a line of progress on stderr immediately, without the passwords of URLs."""
    from tools.result import without_passwords

    print(shown(without_passwords(line)), file=sys.stderr, flush=True)


def for_stdout(text: str) -> str:
    """Text for stdout: made safe to show in a terminal, but unchanged for another program."""
    return shown(text) if sys.stdout.isatty() else text


def print_rows(columns: Sequence[str], rows: Sequence[Sequence[Any]], truncated: bool = False) -> None:
    """Print the first rows of a query as a table, and how many there are; all of them where stdout is no terminal."""
    most = SHOWN_ROWS if sys.stdout.isatty() else len(rows)
    numeric = [_is_numeric([row[place] for row in rows]) for place in range(len(columns))]
    print_table(columns, [[_exact(cell) for cell in row] for row in rows[:most]], numeric)
    _print_count(len(rows), most, truncated)


def _exact(cell: Any) -> str:
    return "–" if cell is None else cell_of(cell)


def _print_count(count: int, most: int, truncated: bool) -> None:
    more = f"; the first {most} are shown" if count > most else ""
    cut = ", cut off by --limit" if truncated else ""
    console().print(f"{count:,} row{'s' * (count != 1)}{cut}{more}", style="dim", highlight=False)


def print_csv(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    from tools.databases.files.export import spelt

    exact()
    writer = csv.writer(sys.stdout)
    for row in (columns, *rows):
        writer.writerow([cell if cell is None else for_stdout(str(spelt(cell))) for cell in row])


def print_sql(sql: str, dialect: str) -> None:
    """Print a statement laid out over lines; coloured on a terminal."""
    from tools.sql.spelling import pretty_sql

    text = shown(pretty_sql(sql, dialect))
    if sys.stdout.isatty():
        console().print(Syntax(text, "sql", background_color="default", word_wrap=True))
    else:
        print(text)


def print_answer(answer: Mapping[str, Any], steps: bool = False) -> None:
    """Print the sentence, the rows, the SQL and how long it took; with `steps` a table of what each step cost."""
    out = console()
    sentence = Text(shown(answer["answer"]), style="bold")
    if answer.get("probably_wrong"):
        sentence = Text.assemble(("Probably wrong: ", "bold yellow"), sentence)
    if answer.get("continues"):
        sentence.append(f"  (continues question {answer['continues']})", style="not bold dim")
    if answer.get("example"):
        sentence.append(f"  (by the stored example “{shown(answer['example'])}”)", style="not bold dim")
    out.print(sentence, highlight=False)
    for said in answer["doubts"] if answer.get("probably_wrong") else ():
        out.print(Text(f"  {shown(said)}"), style="dim", highlight=False)
    _print_shown(answer)
    if answer["sql"]:
        print_sql(answer["sql"], answer["dialect"])
    if answer.get("plans", 0) > 1:
        out.print(Text(f"{answer['votes']} of {answer['plans']} readings give this."), style="dim", highlight=False)
    which = answer.get("which_reading") if answer.get("probably_wrong") else None
    print_alternatives(answer, shown(which["message"]) if which else "Other readings:")
    if steps:
        print_steps(answer)
    out.print(Text(timing(answer)), style="dim", highlight=False)
    if answer.get("escalated"):
        from agent.observe.audit import Escalation

        out.print(Text(shown(Escalation(**answer["escalated"]).in_words())), style="dim", highlight=False)


def print_alternatives(answer: Mapping[str, Any], heading: str) -> None:
    """Other readings of the question under a heading, numbered: what each does otherwise, its rows in short, and its SQL."""
    from tools.sql.spelling import pretty_sql

    for number, other in enumerate(answer.get("alternatives") or (), 1):
        if number == 1:
            console().print(Text(heading), style="bold", highlight=False)
        told = shown(other.get("differs") or other["words"])
        result = f" → {shown(other['result'])}" if other.get("result") else ""
        console().print(Text(f"  {number}  {told}{result}"), highlight=False)
        one_line = pretty_sql(other["sql"], answer["dialect"], over_lines=False)
        console().print(Text(f"     {shown(one_line)}"), style="dim", highlight=False)


def _print_shown(answer: Mapping[str, Any]) -> None:
    """The rows as people read them; none where the sentence says all."""
    seen = answer.get("shown")
    if not seen or not seen["rows"] or (len(seen["rows"]) == 1 and len(seen["headings"]) == 1):
        return
    from agent.presentation.shown import in_column

    rows = seen["rows"][: SHOWN_ROWS if sys.stdout.isatty() else None]
    columns = [in_column([row[place] for row in rows], kind) for place, kind in enumerate(seen["kinds"])]
    right = [kind in ("amount", "digits") for kind in seen["kinds"]]
    headings = list(seen["headings"])
    if bars := _bars(rows, seen["kinds"]) if sys.stdout.isatty() else ():
        headings, columns, right = [*headings, ""], [*columns, bars], [*right, False]
    print_table(headings, list(zip(*columns, strict=True)), right)
    if len(seen["rows"]) > len(rows) or answer["truncated"]:
        _print_count(len(seen["rows"]), len(rows), answer["truncated"])


def _bars(rows: Sequence[Sequence[Any]], kinds: Sequence[str]) -> list[str]:
    from agent.presentation.shown import bar_lengths

    eighths = [round(8 * LONGEST_BAR * length) for length in bar_lengths(rows, kinds)]
    return ["█" * (each // 8) + "▏▎▍▌▋▊▉"[each % 8 - 1 : each % 8] for each in eighths]


def timing(answer: Mapping[str, Any]) -> str:
    """How long the answer took, and the model's passes next to those that plain decoding takes for the same text.

    >>> step = {"decoder": "adaptive", "target_forwards": 15, "plain_forwards": 57}
    >>> timing({"total_ms": 310.0, "steps": [step]}), timing({"total_ms": 20.0, "steps": []})
    ('0.3 s, 15 passes instead of 57', '0.0 s')
    """
    decoded = [step for step in answer["steps"] if step["decoder"]]
    passes, plain = (sum(step[name] for step in decoded) for name in ("target_forwards", "plain_forwards"))
    told = f", {passes:,} pass{'' if passes == 1 else 'es'} instead of {plain:,}" if passes < plain else ""
    return f"{answer['total_ms'] / 1e3:.1f} s{told}"


def print_steps(answer: Mapping[str, Any]) -> None:
    """Print the latency table: each step, and the total."""
    numbers = ["ms", "plain ms", "new", "fwd", "plain fwd", "prompt", "cached"]
    rows = [_step_row(step) for step in answer["steps"]]
    total = ["total", _ms(answer["total_ms"]), _ms(answer["plain_total_ms"]), *[""] * 5, ""]
    print_table(["step", *numbers, "decoder"], [*rows, total], [False, *[True] * 7, False])


def _step_row(step: Mapping[str, Any]) -> list[str]:
    times = [step["name"], _ms(step["wall_ms"]), _ms(step["plain_ms"])]
    if not step["decoder"]:
        return [*times, *[""] * 6]
    names = ("new_tokens", "target_forwards", "plain_forwards", "prompt_tokens", "cached_tokens")
    return [*times, *(f"{step[name]:,}" for name in names), step["decoder"]]


def _ms(value: float | None) -> str:
    return "?" if value is None else f"{value:,.0f}" if value >= 10 else f"{value:.1f}"
