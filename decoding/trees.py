"""Token trees from a drafter's guesses, as pure functions: static, best-first, fanned out, beam.

Scores are log-probabilities, so a path's score is a sum that never grows with its depth. Every builder returns a `Draft` whose
nodes are counted by `budget`; the root is not.
"""

import heapq
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from torch import Tensor

from decoding.draft import ROOT, Draft


@dataclass(frozen=True, slots=True)
class Level:
    """Guesses for one depth, best first."""

    tokens: Sequence[int]
    scores: Sequence[float]  # log-probabilities, none above 0, descending


def static(shape: Iterable[Sequence[int]], levels: Sequence[Level]) -> Draft:
    """A tree of fixed shape (Medusa, arXiv 2401.10774): each path of `shape` names the rank of its token at each depth.

    A path ends where there is no level or no guess of its rank.
    """
    return Draft.trie(_tokens(path, levels) for path in shape)


def _tokens(path: Sequence[int], levels: Sequence[Level]) -> list[int]:
    out: list[int] = []
    for rank, level in zip(path, levels, strict=False):
        if rank >= len(level.tokens):
            break
        out.append(level.tokens[rank])
    return out


def best_first(levels: Sequence[Level], budget: int) -> Draft:
    """The `budget` most probable prefixes under the product of the levels' probabilities (DDTree, arXiv 2604.12989).

    A popped node offers its next sibling and its first child, so the heap never holds more than twice the budget.
    """
    tokens: list[int] = []
    parents: list[int] = []
    heap: list[tuple[float, int, int, int, float]] = []  # cost, depth, rank, parent, the parent's cost

    def offer(depth: int, rank: int, parent: int, above: float) -> None:
        if depth < len(levels) and rank < len(levels[depth].tokens):
            heapq.heappush(heap, (above - levels[depth].scores[rank], depth, rank, parent, above))

    offer(0, 0, ROOT, 0.0)
    while heap and len(tokens) < budget:
        cost, depth, rank, parent, above = heapq.heappop(heap)
        offer(depth, rank + 1, parent, above)
        offer(depth + 1, 0, len(tokens), cost)
        tokens.append(levels[depth].tokens[rank])
        parents.append(parent)
    return Draft(tuple(tokens), tuple(parents))


def fanned_out(levels: Sequence[Level], width: int, budget: int) -> Draft:
    """The tree of JetSpec (arXiv 2606.18394, its builder `accum_logp`): the best node gets all its `width` children at once."""
    tokens: list[int] = []
    parents: list[int] = []
    heap: list[tuple[float, int, int]] = [(0.0, ROOT, 0)]  # cost, node, depth of its children
    while heap and len(tokens) < budget:
        cost, parent, depth = heapq.heappop(heap)
        if depth == len(levels):
            continue
        level = levels[depth]
        for token, score in list(zip(level.tokens, level.scores, strict=True))[: min(width, budget - len(tokens))]:
            heapq.heappush(heap, (cost - score, len(tokens), depth + 1))
            tokens.append(token)
            parents.append(parent)
    return Draft(tuple(tokens), tuple(parents))


@dataclass(frozen=True, slots=True)
class Frontier:
    """The nodes of one depth that are expanded next."""

    depth: int  # 0: the root alone
    tokens: Sequence[int]  # of the nodes; the root's is not known here and left out
    rows: Sequence[int]  # each node's parent, as its place in the frontier before


Expand = Callable[[Frontier], tuple[Tensor, Tensor]]
"""The best children of a frontier's nodes: tokens [nodes, children] and log-probabilities [nodes, children]."""


def beam(expand: Expand, width: int, depth: int, budget: int) -> Draft:
    """The best `budget` nodes of a beam search (EAGLE-2's dynamic tree, arXiv 2406.16858).

    Every level's best `width` nodes are expanded, to at most `depth`; all children are candidates. A level that can no
    longer enter the tree is not computed.
    """
    tokens: list[int] = []
    parents: list[int] = []
    scores: list[float] = []
    frontier, nodes = Frontier(0, (), (0,)), [ROOT]
    while nodes and frontier.depth < depth:
        children, log_probs = (each.tolist() for each in expand(frontier))
        first = len(tokens)
        rows: list[int] = []
        for row, node in enumerate(nodes):
            above = scores[node] if node != ROOT else 0.0
            tokens += children[row]
            parents += [node] * len(children[row])
            scores += [above + min(score, 0.0) for score in log_probs[row]]
            rows += [row] * len(children[row])
        bar = heapq.nlargest(budget, scores)[-1] if len(scores) >= budget else float("-inf")
        level = [node for node in range(first, len(tokens)) if scores[node] > bar]
        nodes = heapq.nlargest(width, level, key=scores.__getitem__)
        frontier = Frontier(
            frontier.depth + 1, tuple(tokens[node] for node in nodes), tuple(rows[node - first] for node in nodes)
        )
    return budgeted(tokens, parents, scores, budget)


def budgeted(tokens: Sequence[int], parents: Sequence[int], scores: Sequence[float], budget: int) -> Draft:
    """The `budget` best nodes of a tree in topological order in which no child scores above its parent."""
    best = heapq.nsmallest(budget, range(len(tokens)), key=lambda node: (-scores[node], node))
    kept = {node: index for index, node in enumerate(sorted(best))} | {ROOT: ROOT}
    order = sorted(best)
    return Draft(tuple(tokens[node] for node in order), tuple(kept[parents[node]] for node in order))
