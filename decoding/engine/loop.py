"""The decode loop, shared by all methods, for one sequence or several. It knows no particular model, and tokens only, no text.

Invariant between rounds: the target's cache holds every committed token but the most recent ones, which are pending.
Every round commits at least one token.
"""

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from time import perf_counter
from typing import Any, TypeVar

from decoding.checkpoints.identity import TargetIdentity
from decoding.engine.constraint import Constraint, ConstraintCursor, ConstraintError
from decoding.engine.draft import ROOT, Draft
from decoding.engine.experience import AcceptanceStats, RowCosts
from decoding.engine.method import (
    PROMPT_ROWS,
    Context,
    Drafting,
    Ensemble,
    HeadPass,
    LookupCorpus,
    Method,
    parts_of_prompts,
    run_together,
)
from decoding.engine.rounds import FinishReason, Round
from decoding.engine.sampler import Sampler
from decoding.engine.target import AnyTarget, ForwardInput, ForwardOutput, room_after
from decoding.engine.verify import Verdict, verify

Done = TypeVar("Done")
DRAFT_ROWS, LEAST_DRAFT = 256, 4  # nodes of all drafts in a forward, and of each draft at least


@dataclass(frozen=True, slots=True)
class Request:
    """One text to be decoded. A method instance serves one request at a time."""

    prompt: tuple[int, ...]  # what the method sees
    method: Method
    max_new_tokens: int
    sampler: Sampler = Sampler()
    stop: frozenset[int] = frozenset()  # stop tokens end the text and are its last token
    constraint: Constraint[Any] | None = None
    recall: LookupCorpus = field(default_factory=LookupCorpus)
    likelihood: bool = False  # whether the rounds record the log probability of their tokens
    identity: Callable[[], TargetIdentity] | None = None  # the target's, for heads that belong to one target
    other_prompts: tuple[tuple[int, ...], ...] = ()  # further prompts for the same text, see `Ensemble`
    row_costs: RowCosts | None = None  # what the target's forwards take on this machine, if it was measured
    experience: AcceptanceStats = field(
        default_factory=AcceptanceStats
    )  # of earlier texts of this kind with this method

    @property
    def prompts(self) -> tuple[tuple[int, ...], ...]:
        return (self.prompt, *self.other_prompts)


def decode(
    target: AnyTarget, requests: Sequence[Request], *, cancelled: Callable[[int], bool] = lambda sequence: False
) -> Iterator[Round]:
    """Decode all requests together, one target forward per round for those still unfinished.

    Yields a `Round` per sequence and forward. `cancelled(sequence)` is asked between rounds for each unfinished one.
    Closing the iterator also ends the decode and closes its sequences. Raises PromptTooLong before anything is computed.
    """
    with ExitStack() as opened:
        live = [Decoding(index, target, request, opened) for index, request in enumerate(requests)]
        while live := [one for one in live if one.room > 0 and not cancelled(one.index)]:
            for outcome in advance(target, live):
                if isinstance(outcome, Exception):
                    raise outcome
                if outcome is not None:
                    yield outcome


def advance(
    target: AnyTarget, live: Sequence["Decoding"], prompt_rows: int = PROMPT_ROWS
) -> Iterator[Round | Exception | None]:
    """Run one round for sequences of one target, in one forward. Yields each one's record, in order, or the exception that it
    alone raised; such a sequence must then be dropped. None: it has read a part of its prompt (see `parts_of_prompts`)."""
    parts = parts_of_prompts([one.unread for one in live], prompt_rows)
    wanted = proposed(live, parts)
    within = iter(shared([each for each in wanted if isinstance(each, Draft)], DRAFT_ROWS))
    drafts = [
        _attempt(partial(one.fitted, next(within))) if isinstance(each, Draft) else each
        for one, each in zip(live, wanted, strict=True)
    ]
    shares = [one.work(draft) for one, draft in zip(live, drafts, strict=True)]
    work = [each for share in shares for each in share]
    start = perf_counter()
    scores = iter(target.score(work) if work else ())
    target_ms = 1e3 * (perf_counter() - start)
    for one, draft, share in zip(live, drafts, shares, strict=True):
        own = list(islice(scores, len(share)))
        if isinstance(draft, Draft):
            yield _attempt(partial(one.settle, draft, own, target_ms, len(work)))
        elif isinstance(draft, Exception):
            yield draft
        else:
            one.have_read()
            yield None


def proposed(live: Sequence["Decoding"], parts: Sequence[int | None]) -> list[Draft | Exception | int]:
    """What each text drafts, or the exception that it raised; of those that only read a part of their prompt, that part.

    Drafts go on step by step: what all of them need of a head next is one forward.
    """
    found: dict[int, Draft | Exception | int] = {}
    under_way: dict[int, Drafting] = {}
    for place, (one, part) in enumerate(zip(live, parts, strict=True)):
        begun = _attempt(one.drafting) if part is None else part
        if isinstance(begun, Generator):
            under_way[place] = begun
        else:
            found[place] = begun
    while under_way:
        passes: dict[int, HeadPass] = {}
        for place, drafting in list(under_way.items()):
            step = _attempt(partial(live[place].next_step, drafting))
            if isinstance(step, (Draft, Exception)):
                found[place] = step
                del under_way[place]
            else:
                passes[place] = step
        start = perf_counter()
        run_together(list(passes.values()))
        for place in passes:
            live[place].draft_ms += 1e3 * (perf_counter() - start)
    return [found[place] for place in range(len(live))]


def shared(wanted: Sequence[Draft], rows: int) -> list[Draft]:
    """The drafts within so many nodes in all. Those whose nodes have chances put theirs together for the likeliest of all.

    One text is sure of what follows, the other is not:

    >>> sure, unsure = (Draft(tuple(range(9)), tuple(range(-1, 8)), chances=(chance,) * 9) for chance in (-0.1, -3.0))
    >>> [len(each) for each in shared([sure, unsure], 13)]
    [9, 4]
    """
    most = shared_rows([len(each) for each in wanted], rows)
    if sum(most) >= sum(map(len, wanted)):
        return list(wanted)
    likeliest = [sorted(range(len(each.chances)), key=lambda node: (-each.chances[node], node)) for each in wanted]
    rest = [(draft, node) for draft, nodes in enumerate(likeliest) for node in nodes[LEAST_DRAFT:]]
    rest.sort(key=lambda place: -wanted[place[0]].chances[place[1]])  # stable: parents stay before their children
    room = sum(count - min(count, LEAST_DRAFT) for count, nodes in zip(most, likeliest, strict=True) if nodes)
    kept = [nodes[:LEAST_DRAFT] for nodes in likeliest]
    for draft, node in rest[:room]:
        kept[draft].append(node)
    each_one = zip(wanted, most, kept, strict=True)
    return [draft.only(sorted(nodes)) if nodes else draft.first(count) for draft, count, nodes in each_one]


def shared_rows(wanted: Sequence[int], rows: int) -> list[int]:
    """The most nodes that each draft keeps: all that it has, or an equal share of what smaller ones leave, and LEAST_DRAFT.

    >>> shared_rows([2, 200, 100], 256), shared_rows([300], 256)
    ([2, 154, 100], [256])
    """
    most = [0] * len(wanted)
    for left, draft in zip(range(len(wanted), 0, -1), sorted(range(len(wanted)), key=wanted.__getitem__), strict=True):
        most[draft] = min(wanted[draft], max(LEAST_DRAFT, rows // left))
        rows = max(rows - most[draft], 0)
    return most


def _attempt(do: Callable[[], Done]) -> Done | Exception:
    try:
        return do()
    except Exception as error:
        return error


class Decoding:
    """One sequence being decoded. It owns its committed tokens, its pending tokens and its constraint cursors.

    Closing `opened` closes it. Raises PromptTooLong.
    """

    def __init__(self, index: int, target: AnyTarget, request: Request, opened: ExitStack) -> None:
        self.index, self._mask_tokens, self._request = index, target.mask_tokens, request
        self._tokens = list(request.prompt)
        self.room = min(request.max_new_tokens, *(room_after(prompt, target) for prompt in request.prompts))
        request.method.meet(target, request.identity)
        self._sequences = Ensemble(target, request.prompts, request.sampler, request.method.taps, opened)
        self._pending = self._tokens[self._sequences.cached :]
        self._cursors: dict[int, ConstraintCursor | None] = {}
        if request.constraint:
            self._cursors[ROOT] = ConstraintCursor.start(request.constraint, request.stop)
        self._rounds = 0
        self.draft_ms = 0.0  # of this round: its own steps, and the passes that it shared
        self._context = Context(
            sampler=request.sampler,
            embedding=target.embedding,
            lm_head=target.lm_head,
            recall=request.recall,
            identity=request.identity,
            cursor=self._cursor,
            mask_tokens=target.mask_tokens,
            prompt_mask=target.prompt_mask,
            mask_pairs=target.mask_pairs,
            runtime=target.runtime,
            prompts=len(self._sequences),
            row_costs=request.row_costs,
            draft_caches=self._sequences.draft_caches,
            experience=request.experience,
            ahead=target.ahead,
            draft_priors=target.draft_priors,
        )

    @property
    def prompts(self) -> int:
        """How many prompts the text continues."""
        return len(self._sequences)

    @property
    def unread(self) -> int:
        """Rows of the prompts that can be read beforehand."""
        return self._sequences.unread

    def have_read(self) -> None:
        """Keep what the forward has read of the prompts."""
        self._sequences.keep_part()

    def drafting(self) -> Drafting:
        """Begin the method's draft, which `next_step` goes on with."""
        method = self._request.method
        if self._rounds == 0:  # with the states of all that was cached or read in parts
            method.begin(self._request.prompt, self._sequences.hidden, self._context)
        self.draft_ms = 0.0
        unseen = bool(method.taps) and self._rounds == 0  # its hidden states arrive with the first forward
        return self._unseen() if unseen else method.drafting(self._tokens, self.room - 1)

    def _unseen(self) -> Drafting:
        yield from ()
        return self._request.method.propose_unseen(self._tokens, self.room - 1)

    def next_step(self, drafting: Drafting) -> HeadPass | Draft:
        """What the draft needs of a head next, or the draft."""
        start = perf_counter()
        try:
            return next(drafting)
        except StopIteration as end:
            draft: Draft = end.value
            return draft
        finally:
            self.draft_ms += 1e3 * (perf_counter() - start)

    def fitted(self, draft: Draft) -> Draft:
        """The draft without stop tokens, with which the target ends the text by itself, and without what cannot become text:
        too deep, after a stop token, or forbidden (`context` nodes may be forbidden).
        """
        start = perf_counter()
        fitted = self._prune(draft)
        self.draft_ms += 1e3 * (perf_counter() - start)
        return fitted

    def work(self, draft: Draft | Exception | int) -> list[ForwardInput[Any]]:
        """The forward's part in this text: one for each prompt, or as many rows of them; nothing after an exception."""
        if isinstance(draft, Exception):
            return []
        return self._sequences.part(draft) if isinstance(draft, int) else self._sequences.work(self._pending, draft)

    def settle(self, draft: Draft, found: Sequence[ForwardOutput], target_ms: float, batch: int) -> Round:
        """Verify the draft, commit what the target agrees with, and report it. found: the scores after each prompt."""
        start = perf_counter()
        scores = self._sequences.pooled(found, partial(self._position, draft))
        verdict = verify(draft, lambda node: self._choice(draft, scores, node))
        committed = [*(draft.tokens[node] for node in verdict.path), verdict.bonus]
        finish = self._finish(committed)
        self._sequences.commit(verdict.path)
        if self._rounds and batch == self.prompts:  # neither with the prompt's rows nor with other texts'
            self._request.method.took(self.draft_ms, target_ms)
        self._request.method.observe(draft, scores, verdict)
        fed, free = len(self._pending), self._free_nodes(draft, verdict)
        self._append(committed)
        forced: list[int] = []
        if finish is None:
            forced, finish = self._force(draft, verdict)
        self._pending = [committed[-1], *forced]
        if finish:
            self.room = 0
        self._rounds += 1
        return Round(
            index=self._rounds - 1,
            sequence=self.index,
            batch=batch,
            pending=fed,
            draft_tokens=draft.tokens,
            draft_parents=draft.parents,
            accepted=verdict.path,
            committed=tuple(committed),
            forced=tuple(forced),
            draft_ms=self.draft_ms,
            target_ms=target_ms,
            verify_ms=1e3 * (perf_counter() - start),
            finish=finish,
            log_probs=scores.log_probs(free) if self._request.likelihood else None,
            free_to_plain=len(committed) - len(free),
            prompts=self.prompts,
        )

    def _choice(self, draft: Draft, scores: ForwardOutput, node: int) -> int:
        """The target's own token after `node`: its raw keyed choice, or the best allowed one where that is forbidden."""
        if self._request.sampler.shaping is not None:
            return self._shaped_choice(draft, scores, node)
        token = scores.choice(node)
        if ROOT not in self._cursors:
            return token
        cursor = self._cursor_at(draft, node)
        if cursor.run:
            return cursor.run[0]
        if cursor.admits(token):
            return token
        mask = cursor.allowed()
        if not mask.any():
            raise ConstraintError("the constraint allows no token here")
        return self._request.sampler.pick(scores.masked(node, mask), self._position(draft, node))

    def _shaped_choice(self, draft: Draft, scores: ForwardOutput, node: int) -> int:
        """The same from shaped logits: a function of the target, the sampler and the text, whatever was drafted."""
        if ROOT in self._cursors:
            cursor = self._cursor_at(draft, node)
            if cursor.run:
                return cursor.run[0]
            if not (mask := cursor.allowed()).any():
                raise ConstraintError("the constraint allows no token here")
            logits = scores.masked(node, mask)
        else:
            logits = scores.after([node])[0]
        start = len(self._request.prompt)
        text = [*self._tokens[start:], *(draft.tokens[each] for each in draft.path(node))]
        return self._request.sampler.pick_after(logits, self._position(draft, node), self._request.prompt, text)

    def _position(self, draft: Draft, node: int) -> int:
        """Of the token after a node, in the text with its first prompt."""
        return len(self._tokens) + draft.depth(node)

    def _cursor(self) -> ConstraintCursor | None:
        """The cursor after the last committed token; None without a constraint."""
        return self._cursors.get(ROOT)

    def _cursor_at(self, draft: Draft, node: int) -> ConstraintCursor:
        """The cursor after a node that can become text."""
        if (found := self._cursors.get(node)) is None:
            before = self._cursor_at(draft, draft.parents[node])
            found = self._cursors[node] = before.after(draft.tokens[node])
        return found

    def _prune(self, draft: Draft) -> Draft:
        kept = draft.kept(lambda node: self._possible(draft, node))
        known = {new: self._cursors[old] for new, old in enumerate(kept) if old in self._cursors}
        self._cursors = {node: cursor for node, cursor in self._cursors.items() if node == ROOT} | known
        return draft.only(kept)

    def _possible(self, draft: Draft, node: int) -> bool:
        token, parent = draft.tokens[node], draft.parents[node]
        if draft.depths[node] >= self.room or token in self._request.stop:
            return False
        if ROOT not in self._cursors:
            return True
        dead = token in self._mask_tokens or (parent in self._cursors and self._cursors[parent] is None)
        if not dead and self._cursor_at(draft, parent).admits(token):
            return True
        self._cursors[node] = None  # nothing below it can become text
        return node in draft.context

    def _finish(self, tokens: Sequence[int]) -> FinishReason | None:
        """Why the text ends with these tokens, if it does."""
        if tokens and tokens[-1] in self._request.stop:
            return "stop"
        return "length" if len(tokens) >= self.room else None

    def _force(self, draft: Draft, verdict: Verdict) -> tuple[list[int], FinishReason | None]:
        """Advance the constraint over the bonus, then append the tokens that must follow."""
        if ROOT not in self._cursors:
            return [], None
        last = verdict.path[-1] if verdict.path else ROOT
        cursor = self._cursor_at(draft, last).after(verdict.bonus)
        forced = list(cursor.run[: self.room])
        finish = self._finish(forced)
        for token in forced:
            cursor = cursor.after(token)
        self._cursors = {ROOT: cursor}
        self._append(forced)
        return forced, finish

    def _free_nodes(self, draft: Draft, verdict: Verdict) -> dict[int, int]:
        """Maps each node of the path (or ROOT) after which the constraint forces nothing to the token committed there."""
        nodes = (ROOT, *verdict.path)
        tokens = (*(draft.tokens[node] for node in verdict.path), verdict.bonus)
        bound = ROOT in self._cursors
        return {
            node: token
            for node, token in zip(nodes, tokens, strict=True)
            if not (bound and self._cursor_at(draft, node).run)
        }

    def _append(self, tokens: list[int]) -> None:
        self._tokens += tokens
        self.room -= len(tokens)
