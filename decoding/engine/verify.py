"""Lossless verification: only here does a draft become output. It uses no tensors and no model."""

from collections.abc import Callable
from dataclasses import dataclass

from decoding.engine.draft import ROOT, Draft


@dataclass(frozen=True, slots=True)
class Verdict:
    path: tuple[int, ...]  # accepted draft nodes, depth 1 first
    bonus: int  # the token that the target itself adds after the path


def verify(draft: Draft, choice: Callable[[int], int]) -> Verdict:
    """Follow, from the root down, the child that the target itself would have produced.

    `choice(node)` is the target's own next token after `node` (`ROOT`: after the last committed token). It is asked for
    accepted nodes only, in path order, so a constraint may advance with it.

    The target says 7, then 5, both of which were guessed, then 4, which was not:

    >>> draft = Draft.trie([[7, 8, 9], [7, 5]])  # nodes 0 to 2, and 3
    >>> wanted = {ROOT: 7, 0: 5, 3: 4}  # what the target says after each node
    >>> verify(draft, wanted.__getitem__)
    Verdict(path=(0, 3), bonus=4)
    """
    children = draft.children
    path: list[int] = []
    while True:
        node = path[-1] if path else ROOT
        token = choice(node)
        if (node, token) not in children:
            return Verdict(tuple(path), token)
        path.append(children[node, token])
