"""Stores, employees and customers of the example database."""

import unicodedata
from datetime import date
from decimal import Decimal
from typing import Any

from tools.example.dice import Dice
from tools.example.words import CITIES, FIRST_NAMES, LAST_NAMES, STORES

Row = tuple[Any, ...]
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
