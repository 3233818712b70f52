"""A decoder that decodes no text twice, for runs that ask the same questions again in another configuration."""

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import replace

from decoding.engine.records.rounds import Round
from decoding.serving.model_queue import never
from decoding.serving.text_decoder import Generation, Piece, Settings, TextDecoder

Reply = tuple[Piece | Generation, ...]


class ReusingDecoder(TextDecoder):
    """Decodes like `inner` and keeps every finished text in memory; what was decoded before is given again at once, with the
    records of its rounds. The times in these are those of the first decoding, and so are the numbers of forwards, which
    copied drafts change. Texts are told apart by all that they depend on; one under a constraint without a `key` is not kept.
    """

    def __init__(self, inner: TextDecoder) -> None:
        vars(self).update(vars(inner))
        self._kept: dict[Hashable, Reply] = {}

    def stream(
        self, prompt: str, settings: Sequence[Settings], cancelled: Callable[[], bool] = never
    ) -> Iterator[Piece | Generation]:
        """See `TextDecoder.stream`; only the texts that are not known take part in the forwards."""
        keys = [key_of(prompt, each) for each in settings]
        missing = [number for number, key in enumerate(keys) if key not in self._kept]
        for number in set(range(len(keys))).difference(missing):
            yield from (_numbered(piece, number) for piece in self._kept[keys[number]])
        if missing:
            asked = [settings[number] for number in missing]
            yield from self._anew(prompt, asked, missing, [keys[number] for number in missing], cancelled)

    def _anew(
        self,
        prompt: str,
        settings: Sequence[Settings],
        numbers: Sequence[int],
        keys: Sequence[Hashable],
        cancelled: Callable[[], bool],
    ) -> Iterator[Piece | Generation]:
        """The texts of these settings, whose sequences get these numbers and which are kept under these keys."""
        made: list[list[Piece | Generation]] = [[] for _ in settings]
        for piece in super().stream(prompt, settings, cancelled):
            first = piece.round if isinstance(piece, Piece) else next(iter(piece.rounds), None)
            if first is None:  # cancelled before it began
                yield piece
                continue
            made[first.sequence].append(piece)
            if isinstance(piece, Generation) and piece.finish != "cancelled" and keys[first.sequence] is not None:
                self._kept[keys[first.sequence]] = tuple(made[first.sequence])
            yield _numbered(piece, numbers[first.sequence])


def key_of(prompt: str, settings: Settings) -> Hashable:
    """All that a text depends on, by value; None where the constraint does not tell what it is made of. What drafts are copied
    from is left out, since it changes the number of forwards only.
    """
    constraint = settings.constraint and getattr(settings.constraint, "key", None)
    if settings.constraint is not None and constraint is None:
        return None
    seed = settings.seed if settings.temperature > 0 else None
    method = (settings.decoder, repr(sorted(settings.options.items())))
    drawn = (settings.temperature, seed, settings.max_new_tokens, settings.stop, settings.likelihood)
    return prompt, settings.other_prompts, constraint, method, drawn


def _numbered(piece: Piece | Generation, sequence: int) -> Piece | Generation:
    def numbered(each: Round) -> Round:
        return each if each.sequence == sequence else replace(each, sequence=sequence)

    if isinstance(piece, Piece):
        return Piece(sequence, piece.text, numbered(piece.round))
    return replace(piece, rounds=tuple(map(numbered, piece.rounds)))
