"""The example database: its rows, drawn from a seed.

The words that the example database is made of. Artists, people and titles are combined from these, hence invented.

Random choices that are the same on every machine and Python: only `Random.random`, whose sequence is guaranteed.

Genres, artists, albums and tracks of the example database.

Stores, employees and customers of the example database.

Orders, their lines, reviews, concerts and tickets of the example database.
"""

import hashlib
import os
import random
import unicodedata
from collections.abc import Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from itertools import accumulate
from pathlib import Path
from typing import Any, TypeVar

import duckdb


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


GENRES = (
    ("Synthpop", "electronic"),
    ("Ambient", "electronic"),
    ("Techno", "electronic"),
    ("Indie Folk", "acoustic"),
    ("Chamber Pop", "acoustic"),
    ("Bluegrass", "acoustic"),
    ("Garage Rock", "rock"),
    ("Shoegaze", "rock"),
    ("Post-Punk", "rock"),
    ("Spiritual Jazz", "jazz"),
    ("Hard Bop", "jazz"),
    ("Neo Soul", "urban"),
    ("Hip-Hop", "urban"),
)

# city, country, weight among customers and artists
CITIES = (
    ("Lisbon", "Portugal", 9.0),
    ("Porto", "Portugal", 5.0),
    ("Ghent", "Belgium", 6.0),
    ("Antwerp", "Belgium", 4.0),
    ("Berlin", "Germany", 9.0),
    ("Leipzig", "Germany", 4.0),
    ("Hamburg", "Germany", 3.0),
    ("Kraków", "Poland", 5.0),
    ("Gdańsk", "Poland", 2.0),
    ("Bergen", "Norway", 3.0),
    ("Tartu", "Estonia", 2.0),
    ("Málaga", "Spain", 4.0),
    ("Bilbao", "Spain", 3.0),
    ("Lyon", "France", 5.0),
    ("Nantes", "France", 3.0),
    ("Trieste", "Italy", 2.0),
    ("Galway", "Ireland", 3.0),
)

# name, city, country, day opened, floor area, share of the sales
STORES = (
    ("Needle & Groove Alfama", "Lisbon", "Portugal", "2009-03-14", 210, 5.0),
    ("Needle & Groove Patershol", "Ghent", "Belgium", "2012-09-01", 165, 3.0),
    ("Needle & Groove Neukölln", "Berlin", "Germany", "2014-05-17", 340, 6.0),
    ("Needle & Groove Kazimierz", "Kraków", "Poland", "2017-11-03", 120, 2.0),
    ("Needle & Groove Croix-Rousse", "Lyon", "France", "2021-04-10", 145, 2.0),
    ("Needle & Groove Online", "Lisbon", "Portugal", "2016-01-25", None, 6.0),
)

FIRST_NAMES = _words(
    "Ana Bram Clara Dario Elif Femke Goran Hanna Ines Jonas Katrin Levi Marta Nils Olga Paulo Quentin Rosa Sven Tiago "
    "Ursula Vera Wout Xenia Yara Zoran Agata Bruno Chiara Duarte Emma Filip Greta Hugo Irena Julian Lotte Milan Noor Oskar"
)

LAST_NAMES = _words(
    "Almeida Bakker Carvalho Dubois Eriksen Ferraz Grabowski Hoffmann Ilves Jansen Kowalska Lindqvist Moreau Navarro "
    "O'Brien Peeters Quintela Richter Santos Tamm Urbański Vermeulen Wagner Zieliński Almada Berger Costa Desmet Fischer "
    "Garrido Haas Krüger Lemaire Murphy Nowak Pinto Rossi Sørensen Teixeira Vidal"
)

BAND_ADJECTIVES = _words(
    "Paper Copper Sleepless Saltwater Borrowed Crooked Velour Midwinter Feral Tin Hollow Amber Distant Gilded Quiet Reckless"
)

BAND_NOUNS = _words(
    "Lanterns Otters Cartographers Trams Antennas Beekeepers Orchards Telegrams Magpies Lighthouses Bicycles Matinees "
    "Comets Gardeners Postcards Umbrellas"
)

TITLE_STARTS = (
    "Letters from", "Songs for", "The Weight of", "After", "Beneath", "Postcards to", "All of", "Return to",
    "A Map of", "Goodbye,", "Notes on", "Waiting for",
)  # fmt: skip

TITLE_ENDS = (
    "the Harbour", "Winter Light", "Nobody", "the Last Tram", "Tall Grass", "an Empty Room", "Tomorrow", "the Tide",
    "Small Hours", "the Orchard", "Static", "Blue Smoke", "Another Coast", "the Night Shift", "Rain", "Old Maps",
    "the Observatory", "Salt and Honey",
)  # fmt: skip

TRACK_VERBS = _words("Burning Leaving Counting Chasing Holding Losing Finding Dreaming Walking Calling Breaking Hiding")

TRACK_NOUNS = _words(
    "Shadows Rivers Ghosts Windows Sundays Mountains Signals Strangers Letters Engines Gardens Mirrors Birds Stations "
    "Candles Satellites"
)

LABELS = ("Tidal Wax", "Northlight Records", "Small Planet", "Brass Key", "Casa Vermelha", "Kettle & Crow")

RETURN_REASONS = ("scratched", "wrong format", "arrived late", "unwanted gift", "warped")

COMMENTS = {
    1: ("Could not finish it.", "Flat mix, flat songs.", "My copy skipped on every side."),
    2: ("One good song.", "Too long by half.", "Expected more after the single."),
    3: ("Fine for a rainy day.", "Grows on you, slowly.", "Side B is better than side A."),
    4: ("Lovely pressing.", "Great for late evenings.", "The closing track is a gem."),
    5: ("Record of the year for me.", "Plays in the shop all day, rightly.", "Flawless from start to end."),
}


T = TypeVar("T")


class Dice:
    """A seeded source of choices. (`choice` and `shuffle` of the standard library may change between versions.)"""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def chance(self, probability: float) -> bool:
        """True with that probability."""
        return self._random.random() < probability

    def between(self, low: int, high: int) -> int:
        """An integer from `low` to `high`, both included."""
        return low + int(self._random.random() * (high - low + 1))

    def pick(self, items: Sequence[T]) -> T:
        """One of the items, each as likely."""
        return items[self.between(0, len(items) - 1)]

    def weighted(self, items: Sequence[T], weights: Sequence[float]) -> T:
        """One of the items, as likely as its weight says."""
        sums = list(accumulate(weights))
        point = self._random.random() * sums[-1]
        return next(item for item, total in zip(items, sums, strict=True) if point < total)

    def shuffled(self, items: Sequence[T]) -> list[T]:
        """The items in random order."""
        return [item for _, item in sorted(((self._random.random(), item) for item in items), key=lambda pair: pair[0])]

    def day(self, first: date, last: date) -> date:
        """A day from `first` to `last`, both included."""
        return first + timedelta(days=self.between(0, (last - first).days))


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


N_CUSTOMERS = 380
WEB_SHOP = len(STORES)
CLERKS = (("sales assistant", 2150), ("vinyl buyer", 2680), ("cashier", 2040), ("repair technician", 2540))


def stores() -> list[Row]:
    """(store_id, name, city, country, opened_on, floor_area_m2)"""
    return [
        (index, name, city, country, date.fromisoformat(opened), area)
        for index, (name, city, country, opened, area, _) in enumerate(STORES, 1)
    ]


def _names(dice: Dice, count: int) -> list[tuple[str, str]]:
    return dice.shuffled([(first, last) for first in FIRST_NAMES for last in LAST_NAMES])[:count]


def employees(dice: Dice, store_rows: list[Row]) -> list[Row]:
    """(employee_id, full_name, job_title, store_id, manager_id, hired_on, left_on, monthly_salary), managers first"""
    names = [f"{first} {last}" for first, last in _names(dice, 60)]
    rows: list[Row] = [(1, names[0], "managing director", 1, None, date(2009, 2, 1), None, Decimal("7400.00"))]
    for store in store_rows:
        salary = Decimal(dice.between(36, 44)) * 100
        rows.append((len(rows) + 1, names[len(rows)], "store manager", store[0], 1, store[4], None, salary))
    for manager in rows[1:]:
        for _ in range(dice.between(3, 6)):
            rows.append(_clerk(dice, len(rows) + 1, names[len(rows)], manager))
    return rows


def _clerk(dice: Dice, employee_id: int, name: str, manager: Row) -> Row:
    title, base = dice.pick(CLERKS)
    hired = dice.day(manager[5], date(2024, 6, 30))
    left = dice.day(date(2024, 9, 1), date(2025, 11, 30)) if dice.chance(0.15) else None
    return (employee_id, name, title, manager[3], manager[0], hired, left, Decimal(base + dice.between(-8, 20) * 10))


def _ascii(text: str) -> str:
    plain = unicodedata.normalize("NFKD", text.replace("ø", "o"))
    return "".join(letter for letter in plain.lower() if letter.isascii() and letter.isalnum())


def customers(dice: Dice) -> list[Row]:
    """(customer_id, first_name, last_name, email, city, country, birth_date, joined_on, newsletter)"""
    rows: list[Row] = []
    for customer_id, (first, last) in enumerate(_names(dice, N_CUSTOMERS), 1):
        city, country, _ = dice.weighted(CITIES, [weight for _, _, weight in CITIES])
        email = None if dice.chance(0.12) else f"{_ascii(first)}.{_ascii(last)}@mail.example"
        birth = None if dice.chance(0.2) else dice.day(date(1951, 1, 1), date(2007, 12, 31))
        joined = dice.day(date(2015, 1, 1), date(2025, 6, 30))
        newsletter = email is not None and dice.chance(0.45)
        rows.append((customer_id, first, last, email, city, country, birth, joined, newsletter))
    return rows


N_ORDERS = 1300
N_REVIEWS = 520
N_CONCERTS = 48
FIRST_DAY, LAST_DAY = date(2023, 1, 1), date(2025, 12, 31)
# Christmas, and the record fairs of April and October.
MONTH_WEIGHTS = (0.7, 0.6, 0.8, 1.3, 0.9, 0.8, 0.7, 0.6, 0.9, 1.2, 1.5, 2.4)
WEEKDAY_WEIGHTS = (0.6, 0.7, 0.8, 0.9, 1.3, 2.0, 0.5)
FORMATS = {"vinyl": (5.0, 100), "cd": (2.5, 55), "cassette": (0.6, 45), "download": (1.2, 40)}


def _days() -> tuple[list[date], list[float]]:
    days = [FIRST_DAY + timedelta(days=offset) for offset in range((LAST_DAY - FIRST_DAY).days + 1)]
    growth = {2023: 1.0, 2024: 1.25, 2025: 1.45}
    return days, [growth[d.year] * MONTH_WEIGHTS[d.month - 1] * WEEKDAY_WEIGHTS[d.weekday()] for d in days]


def orders(dice: Dice, customers: list[Row], employees: list[Row]) -> list[Row]:
    """(order_id, customer_id, store_id, employee_id, ordered_at, payment_method, status), in order of time"""
    days, weights = _days()
    when = sorted(dice.weighted(days, weights) for _ in range(N_ORDERS))
    loyalty = [1.0 / (1 + row[0] % 23) for row in customers]
    return [_order(dice, number, day, customers, loyalty, employees) for number, day in enumerate(when, 1)]


def _order(
    dice: Dice, order_id: int, day: date, customers: list[Row], loyalty: list[float], employees: list[Row]
) -> Row:
    store_id = dice.weighted(range(1, len(STORES) + 1), [store[5] for store in STORES])
    online = store_id == WEB_SHOP
    customer = dice.weighted(customers, loyalty)
    known = customer[7] <= day and (online or dice.chance(0.75))
    staff = [row for row in employees if row[3] == store_id and row[5] <= day and (row[6] is None or row[6] >= day)]
    clerk = None if online else dice.pick(staff)[0]
    at = datetime.combine(day, time(dice.between(10, 19), dice.between(0, 59)))
    payment = dice.pick(("card", "paypal")) if online else dice.weighted(("card", "cash", "voucher"), (6.0, 3.0, 0.5))
    return (order_id, customer[0] if known else None, store_id, clerk, at, payment, _status(dice, online, day))


def _status(dice: Dice, online: bool, day: date) -> str:
    if dice.chance(0.03):
        return "cancelled"
    if online:
        return "pending" if day > date(2025, 12, 27) else "shipped"
    return "completed"


def order_lines(dice: Dice, orders: list[Row], albums: list[Row]) -> list[Row]:
    """(order_id, line_number, album_id, format, quantity, unit_price, returned_on, return_reason)"""
    ranked = dice.shuffled(albums)
    popularity = [1.0 / (rank + 2) ** 0.9 for rank in range(len(ranked))]
    rows: list[Row] = []
    for order in orders:
        for number in range(1, dice.weighted((1, 2, 3, 4), (5.0, 3.0, 1.4, 0.6)) + 1):
            rows.append(_line(dice, order, number, _released(dice, order, ranked, popularity)))
    return rows


def _released(dice: Dice, order: Row, ranked: list[Row], popularity: list[float]) -> Row:
    """An album that was out on the day of the order."""
    while True:
        album = dice.weighted(ranked, popularity)
        if album[4] <= order[4].date():
            return album


def _line(dice: Dice, order: Row, number: int, album: Row) -> Row:
    formats = [name for name in FORMATS if name != "download" or order[2] == WEB_SHOP]
    chosen = dice.weighted(formats, [FORMATS[name][0] for name in formats])
    percent = FORMATS[chosen][1] * (dice.pick((85, 90)) if dice.chance(0.15) else 100)
    price = (album[6] * percent / 10000).quantize(Decimal("0.01"))
    quantity = dice.weighted((1, 2, 3), (9.0, 1.0, 0.3))
    returned = chosen != "download" and order[6] in ("completed", "shipped") and dice.chance(0.06)
    back = order[4].date() + timedelta(days=dice.between(2, 27)) if returned else None
    reason = dice.pick(RETURN_REASONS) if returned and dice.chance(0.85) else None
    return (order[0], number, album[0], chosen, quantity, price, back, reason)


def reviews(dice: Dice, orders: list[Row], lines: list[Row]) -> list[Row]:
    """(review_id, album_id, customer_id, rating, comment, reviewed_on): buyers review, and albums differ in quality"""
    buyer = {order[0]: order for order in orders}
    bought = {(line[2], buyer[line[0]][1]): buyer[line[0]][4].date() for line in lines if buyer[line[0]][1]}
    chosen = dice.shuffled(sorted(bought.items()))[:N_REVIEWS]
    rows: list[Row] = []
    for (album_id, customer_id), day in sorted(chosen, key=lambda item: (item[1], item[0])):
        quality = 2.6 + (album_id * 37 % 20) / 10
        rating = min(5, max(1, round(quality + dice.between(-15, 15) / 10)))
        comment = dice.pick(COMMENTS[rating]) if dice.chance(0.6) else None
        rows.append((len(rows) + 1, album_id, customer_id, rating, comment, day + timedelta(days=dice.between(1, 40))))
    return rows


def concerts(dice: Dice, artists: list[Row]) -> list[Row]:
    """(concert_id, artist_id, store_id, held_on, capacity, ticket_price)"""
    when = sorted(dice.day(FIRST_DAY, LAST_DAY) for _ in range(N_CONCERTS))
    rows: list[Row] = []
    for concert_id, day in enumerate(when, 1):
        store_id = dice.between(1, WEB_SHOP - 1)
        capacity = (STORES[store_id - 1][4] or 0) // 7
        rows.append(
            (concert_id, dice.pick(artists)[0], store_id, day, capacity, Decimal(dice.pick((8, 10, 12, 15, 18))))
        )
    return rows


def tickets(dice: Dice, concerts: list[Row], customers: list[Row]) -> list[Row]:
    """(ticket_id, concert_id, customer_id, bought_on, attended); some evenings sell out"""
    rows: list[Row] = []
    for concert in concerts:
        sold = concert[4] if dice.chance(0.2) else dice.between(concert[4] // 4, concert[4])
        members = [row for row in customers if row[7] < concert[3]]
        scanner_down = dice.chance(0.08)
        for customer in dice.shuffled(members)[:sold]:
            bought = max(customer[7], concert[3] - timedelta(days=dice.between(0, 45)))
            rows.append((len(rows) + 1, concert[0], customer[0], bought, None if scanner_down else dice.chance(0.9)))
    return rows


SEED = 1877  # the year of the phonograph
FILE_NAME = "needle_and_groove.duckdb"


TABLES = (  # parents before children
    *("genres", "artists", "albums", "tracks", "stores", "employees"),
    *("customers", "orders", "order_lines", "reviews", "concerts", "tickets"),
)


def rows_by_table() -> dict[str, list[Row]]:
    """Every table's rows, parents before children; the same on every machine."""
    dice, made = Dice(SEED), dict[str, list[Row]]()
    made["artists"], made["stores"], made["customers"] = artists(dice), stores(), customers(dice)
    made["albums"], made["employees"] = albums(dice, made["artists"]), employees(dice, made["stores"])
    made["orders"] = orders(dice, made["customers"], made["employees"])
    made["order_lines"] = order_lines(dice, made["orders"], made["albums"])
    made["concerts"], made["genres"] = concerts(dice, made["artists"]), genres()
    made["tracks"] = tracks(dice, made["albums"])
    made["reviews"] = reviews(dice, made["orders"], made["order_lines"])
    made["tickets"] = tickets(dice, made["concerts"], made["customers"])
    return {table: made[table] for table in TABLES}


def build(path: Path) -> None:
    """Write the database to `path`, replacing it in one step: a reader sees the old file or the new, never half."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f"{path.name}.{os.getpid()}.part")
    unfinished.unlink(missing_ok=True)
    try:
        _write(unfinished)
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)


def _write(path: Path) -> None:
    # Small blocks: each index takes at least one, and 256 KiB blocks make a file five times the size.
    with duckdb.connect(path, config={"default_block_size": "16384"}) as connection:
        connection.execute(Path(__file__).with_name("schema.sql").read_text(encoding="utf-8"))
        for table, rows in rows_by_table().items():
            # DuckDB checks a key to the same table against the rows of earlier statements only.
            batches = [[row] for row in rows] if table == "employees" else [rows]
            for batch in batches:
                _insert(connection, table, batch)


def _insert(connection: duckdb.DuckDBPyConnection, table: str, rows: list[Row]) -> None:
    columns = [list(column) for column in zip(*rows, strict=True)]
    unnested = ", ".join("unnest(?)" for _ in columns)
    connection.execute(f"INSERT INTO {table} SELECT {unnested}", columns)


def version() -> str:
    """Eight hex digits that change when the sources of the data or the DuckDB release (its file format) change."""
    digest = hashlib.sha256(duckdb.__version__.encode())
    for source in sorted(Path(__file__).parent.glob("*.*")):
        if source.suffix in (".py", ".sql"):
            digest.update(source.read_bytes())
    return digest.hexdigest()[:8]


def example_database(cache_dir: Path) -> Path:
    """The example database's file under `cache_dir`, built on first use (about a second)."""
    path = cache_dir / f"example-{version()}" / FILE_NAME
    if not path.exists():
        build(path)
    return path
