"""Makes states without collecting them: first guesses for the data's own answers, which the model in training then sweeps.

On a small machine, decoding the prompts first takes longer than training: 38 sweeps per answer. Here a block's states are its
accepted tokens followed by the decoder's initial guess. Some packs are used as they are, as in the first sweep of decoding; in
others `swept` first lets the current model answer the guess. So the noise always comes from the current model (a round that
never ends), and the model learns the data's answers, not its own.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from zlib import crc32

import numpy as np
import torch

from decoding.methods.jacobi.first_guess import FirstGuess, Guesses, first_guesses
from decoding.tokenizer.tokenizer import Tokenizer
from decoding.training.data.groups import Group, tokenise
from decoding.training.jacobi.packing import JacobiPack
from decoding.training.jacobi.trajectory import State, Trajectory
from decoding.training.model.forward import TrainModel


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
                right=True,
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
    tokens = pack.tokens
    for _ in range(sweeps):
        best = model.logits(replace(rows, tokens=torch.from_numpy(tokens).long().to(model.device))).argmax(-1)
        tokens = tokens.copy()
        tokens[pack.students] = best.cpu().numpy().astype(np.int32)
    return replace(pack, tokens=tokens)
