"""The {actions} of FROM: which source may come next, and how it is joined."""

from dataclasses import replace

from agent.grammar.scope.scope import MAX_DEPTH, MAX_JOINTS, MAX_ON_JOINTS, MAX_PRODUCTS, MAX_SOURCES, Scope
from agent.grammar.scope.visible_names import join_ends, joins_further, shared_columns, tables


def unbound(scope: Scope) -> Scope | None:
    """Allow a join without a condition only if no condition is known."""
    return None if join_ends(scope) else product(scope)


def product(scope: Scope) -> Scope | None:
    """Go on to a source that no condition joins. Where joins are known, only if none leads on from FROM, and at most
    `MAX_PRODUCTS` times, unless the catalog permits `products`.
    """
    known = scope.catalog.facts is not None and not scope.catalog.products
    full = known and (scope.products >= MAX_PRODUCTS or joins_further(scope))
    return None if full else replace(scope, products=scope.products + 1)


def join(scope: Scope) -> Scope | None:
    """Require that FROM may have one more source: below `MAX_SOURCES`, or while the SELECT list still lacks something."""
    if len(scope.sources) >= MAX_SOURCES and not scope.unpaid:
        return None
    subquery = scope.exact is None and scope.depth < MAX_DEPTH and not scope.bare
    return scope if subquery or tables(scope) else None


def sharing(scope: Scope) -> Scope | None:
    """Require that USING has a column to name."""
    return scope if shared_columns(scope) and not scope.comma else None


def comma(scope: Scope) -> Scope | None:
    """Continue FROM after a comma."""
    return replace(scope, comma=True)


def on(scope: Scope) -> Scope | None:
    """Begin the condition of a join."""
    return replace(scope, aggregates=False, windows=False, joints=MAX_JOINTS - MAX_ON_JOINTS)
