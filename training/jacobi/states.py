"""What Jacobi training learns from: states of trajectories or made-up ones, packed as branches.

States are the noise that a model sees in training. Consistency LLMs (arXiv 2403.00835) take each block alone, after clean text,
in one of its states at random. Jacobi Forcing (arXiv 2512.14681) takes windows of blocks in which noise grows from block to
block, each after the noisy ones before it.

Clean and noisy text of many answers in one forward, as branches of one token forest.

An answer's clean text follows its prompt. A noisy chain branches off where its window begins: its ancestors are the prompt, the
clean blocks of earlier windows, and the earlier noisy blocks of its own window. So the forest's mask is the noise-conditioned
causal mask of Jacobi Forcing, and a row's position, which is its depth, is prompt + j * n + i in both the clean and the noisy
block j. Tokens that a chain shares with the clean text are fed once, like the shared prefix of prompts. Rows are in depth-first
order, so that training on a GPU knows what a row sees by one number (`Pack.ends`).

Makes states without collecting them: first guesses for the data's own answers, which the model in training then sweeps.

On a small machine, decoding the prompts first takes longer than training: 38 sweeps per answer. Here a block's states are its
accepted tokens followed by the decoder's initial guess. Some packs are used as they are, as in the first sweep of decoding; in
others `swept` first lets the current model answer the guess. So the noise always comes from the current model (a round that
never ends), and the model learns the data's answers, not its own.

The losses of Consistency LLMs and of Jacobi Forcing, in one forward over clean and noisy text.

The loss is a weighted sum of two terms: `ar`, the mean cross-entropy of the model's own answers, and `consistency`, the soft
cross-entropy (temperature 1) from a noisy row to the detached logits of the clean row at its position, from a block's first
wrong token on; its mean is taken over a block's rows, then over blocks. The released trainer of Jacobi Forcing takes the mean
over all rows and divides by the number of blocks again, so that long texts count less; here every block counts the same.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from itertools import accumulate, pairwise
from random import Random
from typing import Annotated, Any, Literal
from zlib import crc32

import numpy as np
import torch
import typer
from torch import Tensor

from decoding.methods.mask_guesses import FirstGuess, Guesses, first_guesses
from decoding.tokenizer import Tokenizer
from training.config import TrainConfig
from training.jacobi.trajectory import State, Trajectory
from training.objective import Objective, checked_rows, some
from training.packs.groups import Group, Tokens, stop_token, tokenise
from training.packs.packing import NO_PATH, ROOT, Floats, Forest, Pack, Path, common, depth_first, fill
from training.run.base import Base, evaluate, target_loss, total_weight
from training.run.gpu_model import TrainModel

Guess = Annotated[
    FirstGuess,
    typer.Option("--first-guess", help="What a block begins with (in training with --sweeps): see `jacobi`."),
]


@dataclass(frozen=True, slots=True)
class JacobiConfig:
    """The options of `sqlagent train jacobi`.

    The consistency loss begins near that of random guessing (10.8 nats for 49,152 tokens) while the answers' loss is 0.1, so
    with equal weights it would dominate the first steps. CLLM's code gives the answers ten times the weight, which took its
    accuracy on GSM8K from 51.3 to 56.4 and its speed from 3.2x to 3.0x (arXiv 2403.00835); Jacobi Forcing's divides the
    consistency by the number of blocks instead. The warm-up of the weight keeps the first steps out of the optimiser's second
    moments.
    """

    method: Annotated[Literal["cllm", "jacobi_forcing"], typer.Option("--method")] = "jacobi_forcing"
    ar_weight: Annotated[
        float, typer.Option("--ar-weight", min=0.0, help="Of the cross-entropy of the answers, own and gold.")
    ] = 10.0
    consistency_weight: Annotated[
        float, typer.Option("--consistency-weight", min=0.0, help="Of the soft cross-entropy from noisy to clean.")
    ] = 1.0
    consistency_warmup: Annotated[
        float, typer.Option("--consistency-warmup", min=0.0, max=0.9, help="Part of the run in which its weight rises.")
    ] = 0.1
    gold_share: Annotated[
        float, typer.Option("--gold-share", min=0.0, help="Gold answers per trajectory, at most, of those in --gold.")
    ] = 1.0
    sweeps: Annotated[
        int | None,
        typer.Option(
            "--sweeps",
            min=0,
            help="Make the noise while training, by 0 to N sweeps: --data then takes groups of pairs.",
        ),
    ] = None
    block_size: Annotated[int, typer.Option("--block-size", min=2, help="Tokens of a block (with --sweeps).")] = 16
    first_guess: Guess = "prompt"
    draws: Annotated[int, typer.Option("--draws", min=1, help="Noisy chains per answer; its prompt is fed once.")] = 1
    window: Annotated[int, typer.Option("--window", min=2, help="Blocks over which noise grows (jacobi_forcing).")] = 16
    shift: Annotated[
        bool, typer.Option("--shift/--no-shift", help="Begin each answer anywhere in the window (jacobi_forcing).")
    ] = True

    def curve(self) -> dict[str, str]:
        """The options that the loss curve depends on."""
        return {field.name: repr(getattr(self, field.name)) for field in fields(self)}


@dataclass(frozen=True, slots=True)
class Chain:
    """Consecutive noisy blocks after the clean text before `start`; what is learnt is the fixed point."""

    start: int  # how many tokens of the answer come before it
    blocks: tuple[State, ...]

    @property
    def tokens(self) -> State:
        return tuple(token for block in self.blocks for token in block)


def first_difference(state: Sequence[int], fixed: Sequence[int]) -> int:
    """Index of the first token that differs; the length of `fixed` if none does."""
    return next((i for i, (a, b) in enumerate(zip(state, fixed, strict=True)) if a != b), len(fixed))


def noise(state: Sequence[int], fixed: Sequence[int]) -> float:
    """Share of a block from its first wrong token on: at most 1, and 0 for the fixed point."""
    return 1.0 - first_difference(state, fixed) / len(fixed)


def nearest(states: Sequence[State], ratio: float) -> State:
    """The state whose noise is nearest to `ratio`; of equals, the earlier, noisier one. The last state is the fixed point."""
    return min(states, key=lambda state: abs(noise(state, states[-1]) - ratio))


def ratios(window: int, blocks: int, phase: int) -> list[float]:
    """The desired noise of each of `blocks` blocks, the first of which has index `phase` in its window: it rises linearly
    from 0 to 1 in every window.
    """
    return [(phase + block) % window / (window - 1) for block in range(blocks)]


def chains(trajectory: Trajectory, config: JacobiConfig, chance: Random) -> tuple[Chain, ...]:
    """The chains of a trajectory to train on, each once; those without a wrong token are left out."""
    draw = _windows if config.method == "jacobi_forcing" else _single_blocks
    drawn = [chain for _ in range(config.draws) for chain in draw(trajectory, config, chance)]
    return tuple(dict.fromkeys(drawn))


def _windows(trajectory: Trajectory, config: JacobiConfig, chance: Random) -> list[Chain]:
    window, blocks = config.window, trajectory.blocks
    phase = chance.randrange(window) if config.shift else 0
    wanted = ratios(window, len(blocks), phase)
    noisy = [nearest(states, ratio) for states, ratio in zip(blocks, wanted, strict=True)]
    edges = [0, *range(window - phase, len(blocks), window), len(blocks)]
    found, size = [], len(blocks[0][-1])
    for first, stop in pairwise(edges):
        if any(state != states[-1] for state, states in zip(noisy[first:stop], blocks[first:stop], strict=True)):
            found.append(Chain(first * size, tuple(noisy[first:stop])))
    return found


def _single_blocks(trajectory: Trajectory, _: JacobiConfig, chance: Random) -> list[Chain]:
    found, start = [], 0
    for states in trajectory.blocks:
        if len(states) > 1:
            index = chance.randrange(len(states) - 1)
            found.append(Chain(start, (states[index],)))
        start += len(states[-1])
    return found


@dataclass(frozen=True, slots=True)
class Example:
    """An answer, and the noisy chains from which it is learnt."""

    step: str
    id: str
    prompt: Tokens
    answer: Tokens  # it ends with the stop token
    chains: tuple[Chain, ...]

    @classmethod
    def of(cls, trajectory: Trajectory, chains: tuple[Chain, ...]) -> "Example":
        prompt, answer = (np.array(ids, dtype=np.int32) for ids in (trajectory.prompt_ids, trajectory.answer_ids))
        return cls(trajectory.step, trajectory.id, prompt, answer, chains)

    @property
    def tokens(self) -> Tokens:
        """The clean text that is fed, without the stop token, which is only a target."""
        return np.concatenate([self.prompt, self.answer[:-1]])

    def branch(self, start: int, tokens: tuple[int, ...]) -> Tokens:
        """The text with `tokens` after the answer's first `start` tokens, cut where the clean text ends."""
        noisy = np.array(tokens, dtype=np.int32)[: len(self.answer) - 1 - start]
        return np.concatenate([self.tokens[: len(self.prompt) + start], noisy])

    @property
    def branch_rows(self) -> int:
        """Rows that its branches take."""
        branches = [self.branch(chain.start, chain.tokens) for chain in self.chains]
        return sum(len(branch) - common(branch, self.tokens) for branch in branches)

    @property
    def rows(self) -> int:
        return len(self.tokens) + self.branch_rows


@dataclass(frozen=True, slots=True)
class JacobiPack(Pack):
    """A pack whose `sources` continue after those of the targets: a row for each term of the consistency loss.

    Term i: the logits of source `len(targets) + i` should equal those of source `teachers[i]`, a clean row.
    """

    teachers: Tokens  # [terms] index into sources
    shares: Floats  # [terms] 1 / terms of the same block

    @property
    def students(self) -> Tokens:
        """[terms] the rows of each block from its first wrong token on."""
        return self.sources[len(self.targets) :]

    def arrays(self) -> tuple[np.ndarray, ...]:
        return (*Pack.arrays(self), self.teachers, self.shares)


class JacobiBuilder:
    """A pack under construction."""

    def __init__(self) -> None:
        self._forest, self._last = Forest(), NO_PATH
        self._learnt: list[tuple[Tokens, Example]] = []
        self._students: list[Tokens] = []
        self._teachers: list[Tokens] = []  # rows

    @property
    def rows(self) -> int:
        return self._forest.rows

    def new_rows(self, item: Example) -> int:
        return item.rows - common(item.tokens, self._last.tokens)

    def add(self, item: Example) -> None:
        """Add the clean text, which shares rows with the previous example's, and the branches, which share rows with it."""
        clean = self._last = self._forest.grow(item.tokens, self._last)
        self._learnt.append((clean.rows[len(item.prompt) - 1 :], item))
        for chain in item.chains:
            noisy = self._forest.grow(item.branch(chain.start, chain.tokens), clean)
            self._match(item, chain, noisy, clean)

    def _match(self, item: Example, chain: Chain, noisy: Path, clean: Path) -> None:
        """Add a term for every row of a block from its first wrong token on, except the stop token's: nothing follows it."""
        fixed = item.answer[chain.start : chain.start + len(chain.tokens)].tolist()
        edges = list(accumulate((len(block) for block in chain.blocks), initial=0))
        for start, stop in pairwise(edges):
            wrong = start + first_difference(chain.tokens[start:stop], fixed[start:stop])
            first = len(item.prompt) + chain.start
            rows = slice(first + wrong, min(first + stop, len(item.tokens)))
            if len(noisy.rows[rows]):
                self._students.append(noisy.rows[rows])
                self._teachers.append(clean.rows[rows])

    def pack(self) -> JacobiPack:
        examples = [example for _, example in self._learnt]
        counts = [len(example.answer) for example in examples]
        learnt = np.concatenate([rows for rows, _ in self._learnt])
        students, teachers = _joined(self._students), _joined(self._teachers)
        lengths = np.array([len(rows) for rows in self._students], dtype=np.int64)
        sources = np.concatenate([learnt, students])
        index_of = {row: index for index, row in reversed(list(enumerate(sources.tolist())))}
        parents = self._forest.parents()
        order = depth_first(parents)
        places = np.empty_like(order)
        places[order] = np.arange(len(order), dtype=np.int32)
        above = parents[order]
        return JacobiPack(
            tokens=self._forest.tokens()[order],
            parents=np.where(above == ROOT, ROOT, places[above]).astype(np.int32),
            sources=places[sources],
            targets=np.concatenate([example.answer for example in examples]),
            weights=np.ones(sum(counts), dtype=np.float32),
            owners=np.repeat(np.arange(len(examples), dtype=np.int32), counts),
            pairs=tuple((example.step, example.id) for example in examples),
            teachers=np.array([index_of[row] for row in teachers.tolist()], dtype=np.int32),
            shares=np.repeat(1 / lengths, lengths).astype(np.float32),
        )


def _joined(rows: list[Tokens]) -> Tokens:
    return np.concatenate([NO_PATH.rows, *rows])


def guessed(
    groups: Iterable[Group], tokenizer: Tokenizer, stop: int, n: int, first_guess: FirstGuess = "prompt"
) -> Iterator[Trajectory]:
    """One trajectory per pair, in blocks of `n`. Raises TrainingDataError."""
    for group in groups:
        prefix = len(tokenizer.encode(group.prefix))
        [own] = tokenise([group], tokenizer, stop)
        for pair, tokens in zip(group.pairs, own, strict=True):
            prompt, answer = tokens.tokens[: tokens.prompt_tokens].tolist(), tokens.targets.tolist()
            yield Trajectory(
                id=pair.id,
                step=pair.step,
                prompt=group.prefix + pair.prompt,
                prompt_ids=tuple(prompt),
                prefix=prefix,
                answer_ids=tuple(answer),
                forwards=0,
                blocks=_blocks(first_guesses(first_guess, prompt), answer, n),
            )


def _blocks(draws: Guesses, answer: list[int], n: int) -> tuple[tuple[State, ...], ...]:
    blocks = [tuple(answer[start : start + n]) for start in range(0, len(answer), n)]
    guesses = [draws.take(n) for _ in blocks]
    return tuple(
        (*((*fixed[:done], *guess[done : len(fixed)]) for done in range(len(fixed))), fixed)
        for fixed, guess in zip(blocks, guesses, strict=True)
    )


def drawn_sweeps(pack: JacobiPack, most: int) -> int:
    """How many sweeps a pack gets, 0 to `most`, by a hash of its tokens. With 0 it is like decoding's first sweep."""
    return crc32(pack.tokens.tobytes()) % (most + 1)


@torch.no_grad()
def swept(model: TrainModel, pack: JacobiPack, sweeps: int) -> JacobiPack:
    """The pack after `sweeps` Jacobi sweeps: each noisy token becomes the model's choice after the noisy tokens before it."""
    if not sweeps or not len(pack.students):
        return pack
    before = pack.parents[pack.students]
    rows = model.rows(replace(pack, sources=before))
    fed = rows.tokens.clone()  # padded, perhaps
    for _ in range(sweeps):
        fed[torch.from_numpy(pack.students).long().to(model.device)] = model.logits(replace(rows, tokens=fed)).argmax(
            -1
        )
    return replace(pack, tokens=fed[: pack.rows].cpu().numpy().astype(np.int32))


Ids = tuple[int, ...]


def jacobi_objective(
    jacobi: JacobiConfig,
    config: TrainConfig,
    base: Base,
    data: Iterable[Any],
    held_out: Iterable[Any],
    gold: Iterable[Group] = (),
) -> Objective[JacobiPack]:
    """The objective over trajectories, or with `sweeps` over groups of pairs. The states are drawn once, by the seed.

    gold: pairs whose answers are learnt besides the trajectories' own, to keep accuracy; `gold_share` bounds their number.
    Raises TrainingError, TrainingDataError.
    """
    rows, read = checked_rows(config, base), partial(_trajectories, jacobi, config, base)
    learnt = examples(read(data), jacobi, config.seed)
    own = sum(map(len, learnt.values()))
    answered = gold_examples(gold, base, config, round(jacobi.gold_share * own))
    packs, left_out = fill(_merged(learnt, answered), rows, config.seed, JacobiBuilder)
    some(packs, rows)
    measured, _ = fill(_merged(examples(read(held_out), jacobi, config.seed)), rows, config.seed, JacobiBuilder)
    return packed_jacobi(jacobi, packs, measured, left_out)


def packed_jacobi(
    jacobi: JacobiConfig, packs: Sequence[JacobiPack], held_out: Sequence[JacobiPack], left_out: int
) -> Objective[JacobiPack]:
    """The objective on packs."""
    return Objective(
        packs,
        held_out,
        left_out,
        partial(jacobi_loss, jacobi),
        partial(jacobi_values, jacobi),
        terms=("ar", "consistency"),
        factors=lambda progress: (1.0, risen(progress, jacobi.consistency_warmup)),
        curve=jacobi.curve(),
    )


def _trajectories(jacobi: JacobiConfig, config: TrainConfig, base: Base, data: Iterable[Any]) -> Iterable[Trajectory]:
    if jacobi.sweeps is None:
        return data
    return guessed(
        data, base.tokenizer, stop_token(base.tokenizer, config.stop_token), jacobi.block_size, jacobi.first_guess
    )


def risen(progress: float, warmup: float) -> float:
    """The factor of the consistency weight: linear from 0 over the warm-up, then 1."""
    return min(1.0, progress / warmup) if warmup else 1.0


def gold_examples(groups: Iterable[Group], base: Base, config: TrainConfig, most: int) -> dict[Ids, list[Example]]:
    """At most `most` pairs, drawn by the seed, as examples without noise, by group."""
    listed = list(groups)
    if not listed or not most:
        return {}
    tokenised = tokenise(listed, base.tokenizer, stop_token(base.tokenizer, config.stop_token))
    pairs = [
        (tuple(base.tokenizer.encode(group.prefix)), pair)
        for group, own in zip(listed, tokenised, strict=True)
        for pair in own
    ]
    chosen: dict[Ids, list[Example]] = defaultdict(list)
    for index in np.random.default_rng([config.seed, 2]).permutation(len(pairs))[:most]:
        prefix, pair = pairs[index]
        chosen[prefix].append(Example(pair.step, pair.id, pair.tokens[: pair.prompt_tokens], pair.targets, ()))
    return chosen


def _merged(*parts: Mapping[Ids, list[Example]]) -> list[list[Example]]:
    """Groups with the same prefix merged into one, so that the prefix is fed once."""
    merged: dict[Ids, list[Example]] = defaultdict(list)
    for part in parts:
        for prefix, own in part.items():
            merged[prefix] += own
    return list(merged.values())


def examples(trajectories: Iterable[Trajectory], jacobi: JacobiConfig, seed: int) -> dict[Ids, list[Example]]:
    """Examples by group. The states of an answer depend only on the seed and on the answer's prompt."""
    groups: dict[Ids, list[Example]] = defaultdict(list)
    for trajectory in trajectories:
        chance = Random(f"{seed} {trajectory.prompt}")
        groups[trajectory.group].append(Example.of(trajectory, chains(trajectory, jacobi, chance)))
    return groups


def jacobi_loss(jacobi: JacobiConfig, model: TrainModel, pack: JacobiPack, step: Sequence[JacobiPack]) -> Tensor:
    """[2]: the pack's part of the step's `ar` and `consistency`, weighted."""
    pack = swept(model, pack, drawn_sweeps(pack, jacobi.sweeps or 0))
    logits = model.logits(model.rows(pack))
    answers = target_loss(logits[: len(pack.targets)], pack) / total_weight(step)
    shares = torch.from_numpy(pack.shares).to(logits.device)
    matched = soft_losses(logits, pack) @ shares / (_packed_blocks(step) or 1.0)
    return torch.stack([jacobi.ar_weight * answers, jacobi.consistency_weight * matched])


def soft_losses(logits: Tensor, pack: JacobiPack) -> Tensor:
    """[terms]: the cross-entropy from each noisy row to its teacher, which gets no gradient. logits: [sources, vocab]."""
    first = len(pack.targets)
    noisy = logits[first : first + len(pack.teachers)]
    clean = logits.detach()[torch.from_numpy(pack.teachers).long().to(logits.device)]
    return -(clean.softmax(-1) * noisy.log_softmax(-1)).sum(-1)


def _packed_blocks(packs: Iterable[JacobiPack]) -> float:
    """The number of blocks with a wrong token: the shares of each sum to 1."""
    return float(sum(pack.shares.sum(dtype=np.float64) for pack in packs))


@torch.no_grad()
def jacobi_values(jacobi: JacobiConfig, model: TrainModel, packs: Sequence[JacobiPack]) -> Mapping[str, float]:
    """`loss`: as in training, and its terms unweighted; `exact` as in `evaluate`. `stationary`: share
    of the noisy rows, each after a wrong token, whose most likely token is the clean row's, so that a sweep gets it right.
    """
    found = dict(evaluate(model, packs))
    total, right, terms = 0.0, 0, 0
    for pack in (swept(model, pack, drawn_sweeps(pack, jacobi.sweeps or 0)) for pack in packs):
        logits = model.logits(model.rows(pack))
        total += float(soft_losses(logits, pack).cpu() @ torch.from_numpy(pack.shares))
        best, first = logits.argmax(-1).cpu(), len(pack.targets)
        noisy, clean = best[first : first + len(pack.teachers)], best[torch.from_numpy(pack.teachers).long()]
        right, terms = right + int((noisy == clean).sum()), terms + len(noisy)
    consistency = total / (_packed_blocks(packs) or 1.0)
    loss = jacobi.ar_weight * found["loss"] + jacobi.consistency_weight * consistency
    return found | {
        "loss": loss,
        "ar": found["loss"],
        "consistency": consistency,
        "stationary": right / max(terms, 1),
    }
