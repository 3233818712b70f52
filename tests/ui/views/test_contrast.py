"""Guards that text can be read: contrast after WCAG 2, AA, of the theme's colours and of the page's own, light and dark."""

import re
from typing import Any

import pytest

from ui.page.page import FOLDER
from ui.page.serve import theme

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
