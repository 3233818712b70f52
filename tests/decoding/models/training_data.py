"""Small groups of pairs that look like an agent's: a schema, then questions, plans and SQL that continue each other."""

from itertools import permutations
from random import Random

from training.packs.groups import Group, Pair

WORDS = ("name", "age", "city", "year", "song", "price", "total", "owner", "title", "grade")


def agent_groups(groups: int, questions: int, seed: int = 0) -> list[Group]:
    """Per question a `plan` pair, and a `generate` pair whose prompt goes on from the plan's answer; both with one id.

    At most 12 questions a group.
    """
    chance = Random(seed)
    return [_group(number, questions, chance) for number in range(groups)]


def _group(number: int, questions: int, chance: Random) -> Group:
    columns = chance.sample(WORDS, 4)
    pairs: list[Pair] = []
    for index, (column, other) in enumerate(chance.sample(list(permutations(columns, 2)), questions)):
        asked = f"question: {column} of {other} {index}?\nplan:"
        plan = f" t{number}.{column}"
        pairs.append(Pair(asked, plan, "plan", f"{number}-{index}"))
        sql = f" select {column} from t{number} where {other} = {index}"
        pairs.append(Pair(f"{asked}{plan}\nsql:", sql, "generate", f"{number}-{index}"))
    return Group(f"t{number}({', '.join(columns)})\n", tuple(pairs))
