"""Orders, their lines, reviews, concerts and tickets of the example database."""

from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

from tools.example.dice import Dice
from tools.example.people import WEB_SHOP
from tools.example.words import COMMENTS, RETURN_REASONS, STORES

Row = tuple[Any, ...]
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
