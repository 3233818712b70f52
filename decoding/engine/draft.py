"""A draft: the only thing a decoding method may hand to the engine. Plain data, no tensors."""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field

ROOT = -1  # parent of a depth-1 node: the last committed token


@dataclass(frozen=True, slots=True)
class Draft:
    """A tree of guessed tokens in topological order, rooted at the last committed token.

    ``parents[i] < i``, and ``ROOT`` at depth 1. A chain has parents (-1, 0, 1, ...). Duplicate siblings are merged when
    the draft is built (their children move to the first of them), so no two children of a node carry the same token;
    node indices always refer to the draft as built. An empty draft means a plain decoding step.

    The nodes in ``context`` are scored even where a constraint forbids them, unless one of their ancestors is pruned. They
    cannot become text there, but a Jacobi method needs the target's answers below them: it learns from wrong guesses, and
    most are forbidden.

    ``chances`` are log-probabilities of the paths to the nodes, where the method knows them; no child has more than its parent.

    ``masks`` are tokens whose nodes hardly ever become text, or never where their ids lie beyond the vocabulary (see
    ``Target.mask_tokens``): a target need not choose after them before it is asked.

    A tree of three tokens, and one whose siblings are merged:

    >>> draft = Draft(tokens=(7, 8, 9), parents=(ROOT, ROOT, 0))  # 7 or 8 comes next, and 9 after 7
    >>> draft.path(2), draft.depth(2)
    ([0, 2], 2)
    >>> Draft((7, 7, 9), (ROOT, ROOT, 1))  # the two 7s are merged
    Draft(tokens=(7, 9), parents=(-1, 0))
    """

    tokens: tuple[int, ...] = ()
    parents: tuple[int, ...] = ()
    context: Collection[int] = field(default=(), compare=False, repr=False)
    masks: tuple[int, ...] = field(default=(), compare=False, repr=False)
    chances: tuple[float, ...] = field(default=(), compare=False, repr=False)
    depths: tuple[int, ...] = field(init=False, compare=False, repr=False)  # 1 for a child of the root
    children: dict[tuple[int, int], int] = field(init=False, compare=False, repr=False)  # (parent, token) -> node

    def __post_init__(self) -> None:
        if len(self.tokens) != len(self.parents):
            raise ValueError(
                f"a draft needs one parent per token: {len(self.tokens)} tokens, {len(self.parents)} parents"
            )
        children, depths, places = _merge_siblings(self.tokens, self.parents)
        merged = len(children) < len(places)
        context = map(places.__getitem__, self.context) if merged else self.context
        object.__setattr__(self, "context", frozenset(context))
        if merged:
            object.__setattr__(self, "tokens", tuple(token for _, token in children))
            object.__setattr__(self, "parents", tuple(parent for parent, _ in children))
            object.__setattr__(self, "chances", ())
        object.__setattr__(self, "depths", tuple(depths))
        object.__setattr__(self, "children", children)

    def __len__(self) -> int:
        return len(self.tokens)

    @classmethod
    def chain(cls, tokens: Iterable[int], context: Collection[int] = ()) -> "Draft":
        """A single guess, as a chain of tokens.

        >>> Draft.chain([7, 8, 9])
        Draft(tokens=(7, 8, 9), parents=(-1, 0, 1))
        """
        tokens = tuple(tokens)
        return cls(tokens, tuple(range(-1, len(tokens) - 1)), context)

    @classmethod
    def trie(cls, guesses: Iterable[Sequence[int]], scored: int = 0) -> "Draft":
        """Several guesses from the root, merged where they share a prefix. Earlier guesses get the lower indices.

        The nodes of the last `scored` guesses are context.

        Two guesses share their first token:

        >>> Draft.trie([[7, 8], [7, 9], [5]])  # 8 and 9 share the parent 7
        Draft(tokens=(7, 8, 9, 5), parents=(-1, 0, 0, -1))
        """
        tokens: list[int] = []
        parents: list[int] = []
        child: dict[tuple[int, int], int] = {}
        context: set[int] = set()
        guesses = list(guesses)
        for index, guess in enumerate(guesses):
            node = ROOT
            for token in guess:
                if (node, token) not in child:
                    child[node, token] = len(tokens)
                    tokens.append(token)
                    parents.append(node)
                node = child[node, token]
                if index >= len(guesses) - scored:
                    context.add(node)
        return cls(tuple(tokens), tuple(parents), context)

    def joined(self, other: "Draft") -> "Draft":
        """Both trees merged into one, this draft's nodes first. The context of both is that of the whole tree.

        >>> Draft.chain([7, 8]).joined(Draft.chain([7, 9]))
        Draft(tokens=(7, 8, 9), parents=(-1, 0, 0))
        """
        moved = tuple(ROOT if parent == ROOT else parent + len(self) for parent in other.parents)
        context = [*self.context, *(node + len(self) for node in other.context)]
        return Draft(self.tokens + other.tokens, self.parents + moved, context, self.masks or other.masks)

    @property
    def is_chain(self) -> bool:
        return all(parent == i - 1 for i, parent in enumerate(self.parents))

    def below(self, node: int, tokens: Iterable[int]) -> list[int]:
        """The nodes of these tokens, one below the other, as far as the draft has them.

        >>> Draft.trie([[7, 8], [7, 9, 5]]).below(0, [9, 5, 6])
        [2, 3]
        """
        found: list[int] = []
        for token in tokens:
            if (node := self.children.get((node, token), ROOT)) == ROOT:
                break
            found.append(node)
        return found

    def depth(self, node: int) -> int:
        """0 for the root, 1 for its children."""
        return 0 if node == ROOT else self.depths[node]

    def path(self, node: int) -> list[int]:
        """Node indices from depth 1 down to `node`; empty for the root."""
        out: list[int] = []
        while node != ROOT:
            out.append(node)
            node = self.parents[node]
        return out[::-1]

    def kept(self, keep: Callable[[int], bool]) -> list[int]:
        """The nodes, in order, that `keep` accepts together with all their ancestors; it is not asked below a refused node."""
        kept = {ROOT: True}
        for node, parent in enumerate(self.parents):
            kept[node] = kept[parent] and keep(node)
        return [node for node, stays in kept.items() if stays and node != ROOT]

    def first(self, most: int) -> "Draft":
        """The draft of its first `most` nodes.

        >>> Draft.trie([[7, 8], [7, 9], [5]]).first(2)
        Draft(tokens=(7, 8), parents=(-1, 0))
        """
        context = [node for node in self.context if node < most]
        return Draft(self.tokens[:most], self.parents[:most], context, self.masks)

    def only(self, nodes: Sequence[int]) -> "Draft":
        """The draft of these nodes alone, renumbered from 0. They must be in ascending order and include their parents.

        Everything below a refused token is dropped with it:

        >>> draft = Draft.trie([[7, 8], [5, 6]])
        >>> draft.only(draft.kept(lambda node: draft.tokens[node] != 5))
        Draft(tokens=(7, 8), parents=(-1, 0))
        """
        if len(nodes) == len(self):
            return self
        new_index = {ROOT: ROOT} | {node: index for index, node in enumerate(nodes)}
        tokens, parents = tuple(self.tokens[i] for i in nodes), tuple(new_index[self.parents[i]] for i in nodes)
        return Draft(tokens, parents, masks=self.masks)


def _merge_siblings(
    tokens: Sequence[int], parents: Sequence[int]
) -> tuple[dict[tuple[int, int], int], list[int], list[int]]:
    """The nodes of the merged tree by parent and token, in order, their depths, and the place in it of every node."""
    children: dict[tuple[int, int], int] = {}
    places: list[int] = []
    depths: list[int] = []
    for node, (token, parent) in enumerate(zip(tokens, parents, strict=True)):
        if not ROOT <= parent < node:
            raise ValueError(f"node {node} of a draft has parent {parent}: parents must come before their children")
        above = ROOT if parent == ROOT else places[parent]
        place = children.setdefault((above, token), len(children))
        if place == len(depths):
            depths.append(1 if above == ROOT else depths[above] + 1)
        places.append(place)
    return children, depths, places
