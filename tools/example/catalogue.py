"""Genres, artists, albums and tracks of the example database."""

from datetime import date
from decimal import Decimal
from typing import Any

from tools.example.dice import Dice
from tools.example.words import (
    BAND_ADJECTIVES,
    BAND_NOUNS,
    CITIES,
    FIRST_NAMES,
    GENRES,
    LABELS,
    LAST_NAMES,
    TITLE_ENDS,
    TITLE_STARTS,
    TRACK_NOUNS,
    TRACK_VERBS,
)

Row = tuple[Any, ...]
N_ARTISTS = 52
N_ALBUMS = 150


def genres() -> list[Row]:
    """(genre_id, name, family)"""
    return [(index, name, family) for index, (name, family) in enumerate(GENRES, 1)]


def _artist_names(dice: Dice) -> list[tuple[str, str]]:
    bands = [(f"The {adjective} {noun}", "band") for adjective in BAND_ADJECTIVES for noun in BAND_NOUNS]
    duos = [(f"{adjective} {noun[:-1]}", "duo") for adjective in BAND_ADJECTIVES for noun in BAND_NOUNS]
    solo = [(f"{first} {last}", "solo") for first in FIRST_NAMES for last in LAST_NAMES]
    chosen = dice.shuffled(bands)[:26] + dice.shuffled(duos)[:8] + dice.shuffled(solo)[: N_ARTISTS - 34]
    return dice.shuffled(chosen)


def artists(dice: Dice) -> list[Row]:
    """(artist_id, name, kind, city, country, formed_year, website)"""
    rows: list[Row] = []
    for artist_id, (name, kind) in enumerate(_artist_names(dice), 1):
        city, country, _ = dice.weighted(CITIES, [weight for _, _, weight in CITIES])
        formed_year = None if dice.chance(0.1) else dice.between(1978, 2019)
        letters = "".join(letter for letter in name.lower() if letter.isascii() and letter.isalnum())
        website = None if dice.chance(0.25) else f"https://{letters}.example"
        rows.append((artist_id, name, kind, city, country, formed_year, website))
    return rows


def _price(dice: Dice) -> Decimal:
    return Decimal(dice.pick((1990, 2290, 2490, 2490, 2790, 2990, 3490))) / 100


def albums(dice: Dice, artist_rows: list[Row]) -> list[Row]:
    """(album_id, title, artist_id, genre_id, release_date, label, list_price); an artist keeps to one or two genres"""
    titles = dice.shuffled([f"{start} {end}" for start in TITLE_STARTS for end in TITLE_ENDS])
    # Two artists have no album yet, so that outer joins have something to show.
    owners = [row for row in artist_rows if row[0] not in (17, 41)]
    main_genre = {row[0]: dice.between(1, len(GENRES)) for row in owners}
    rows: list[Row] = []
    for album_id in range(1, N_ALBUMS + 1):
        artist = owners[album_id - 1] if album_id <= len(owners) else dice.weighted(owners, _productivity(owners))
        genre_id = main_genre[artist[0]] if dice.chance(0.8) else dice.between(1, len(GENRES))
        released = dice.day(date(max(1982, (artist[5] or 1995) + 1), 1, 1), date(2025, 9, 26))
        label = None if dice.chance(0.15) else LABELS[(artist[0] + (1 if dice.chance(0.2) else 0)) % len(LABELS)]
        rows.append((album_id, titles[album_id - 1], artist[0], genre_id, released, label, _price(dice)))
    return rows


def _productivity(owners: list[Row]) -> list[float]:
    """A few artists release most albums."""
    return [1.0 / (1 + row[0] % 11) for row in owners]


def tracks(dice: Dice, album_rows: list[Row]) -> list[Row]:
    """(track_id, album_id, track_number, title, duration_seconds); ambient and jazz pieces are longer"""
    titles = [f"{verb} {noun}" for verb in TRACK_VERBS for noun in TRACK_NOUNS]
    rows: list[Row] = []
    for album in album_rows:
        long_form = GENRES[album[3] - 1][0] in ("Ambient", "Spiritual Jazz")
        count = dice.between(4, 6) if long_form else dice.between(7, 12)
        for number, title in enumerate(dice.shuffled(titles)[:count], 1):
            seconds = dice.between(380, 940) if long_form else dice.between(118, 352)
            rows.append((len(rows) + 1, album[0], number, title, seconds))
    return rows
