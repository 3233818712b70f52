"""A chart as Vega-Lite draws it, in colours that hold on light and dark."""

from collections.abc import Callable
from typing import Any

import altair as alt

from ui.views.charts import Chart

ACROSS = 6  # bars that stand upright; more lie, longest first, with room for their labels
_COLOUR, _INK = "#0d9488", "#64748b"
_HEIGHT, _BAR_HEIGHT = 300, 20
_AXIS: dict[str, Any] = {
    "labelColor": _INK,
    "titleColor": _INK,
    "gridColor": _INK,
    "gridOpacity": 0.18,
    "domainColor": _INK,
    "tickColor": _INK,
}
_EXPORTS = {"export": {"svg": True, "png": True}, "source": False, "compiled": False, "editor": False}
_EMBEDDED = {"actions": _EXPORTS, "renderer": "svg"}  # its texts are coloured by the page, for light and for dark


def picture(chart: Chart) -> alt.Chart | None:
    """The picture, with a menu to save it as SVG or PNG; None where there is nothing to draw."""
    if chart.kind == "none" or chart.frame.empty:
        return None
    bars = len(dict.fromkeys(chart.frame[chart.x]))
    height = _BAR_HEIGHT * bars if _lies(chart) else _HEIGHT
    drawn: Any = _MARKS[chart.kind](alt.Chart(chart.frame)).encode(**_axes(chart), tooltip=_told(chart))
    sized = drawn.properties(width="container", height=height, usermeta={"embedOptions": _EMBEDDED})
    clear: alt.Chart = sized.configure(background="transparent").configure_view(stroke=None).configure_axis(**_AXIS)
    return clear


def _lies(chart: Chart) -> bool:
    """Whether the bars lie: more than fit side by side, and in no order of their own."""
    return chart.kind == "bar" and not chart.in_order and len(dict.fromkeys(chart.frame[chart.x])) > ACROSS


def _axes(chart: Chart) -> dict[str, Any]:
    """The two axes, by their names in Vega-Lite."""
    numbers = alt.Axis(format=_format(chart))
    free = alt.Undefined if chart.kind == "bar" else alt.Scale(zero=False)  # bars begin at nought
    if _lies(chart):
        names = alt.Axis(labelLimit=180, title=None)
        return {"y": alt.Y(f"{chart.x}:N", sort="-x", axis=names), "x": alt.X(f"{chart.y}:Q", axis=numbers)}
    up = alt.Y(f"{chart.y}:Q", axis=numbers, scale=free)
    if chart.kind == "bar":
        bars = list(dict.fromkeys(chart.frame[chart.x]))
        names = alt.Axis(labelAngle=0, labelLimit=80) if len(bars) <= ACROSS else alt.Axis()
        return {"x": alt.X(f"{chart.x}:N", sort=bars, axis=names), "y": up}
    if str(chart.frame[chart.x].dtype).startswith("datetime"):
        return {"x": alt.X(f"{chart.x}:T"), "y": up}
    years = alt.Axis(format="d") if chart.in_order else alt.Axis()
    return {"x": alt.X(f"{chart.x}:Q", axis=years, scale=free), "y": up}


def _told(chart: Chart) -> list[alt.Tooltip]:
    return [alt.Tooltip(chart.x), alt.Tooltip(f"{chart.y}:Q", format=_format(chart))]


def _format(chart: Chart) -> str:
    """Whole numbers grouped; others with two decimals at most."""
    return ",d" if (chart.frame[chart.y] % 1 == 0).all() else ",.2~f"


_MARKS: dict[str, Callable[[alt.Chart], alt.Chart]] = {
    "bar": lambda made: made.mark_bar(color=_COLOUR),
    "line": lambda made: made.mark_line(color=_COLOUR, point={"color": _COLOUR}),
    "scatter": lambda made: made.mark_circle(color=_COLOUR, opacity=0.7),
}
