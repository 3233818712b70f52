"""The options that `train jacobi collect` and `train head collect` share, and how they are used."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from app.shared import options
from app.train.shared.run_options import allowed_tokens

if TYPE_CHECKING:
    from decoding.serving.text_decoder import TextDecoder
    from decoding.training.data.groups import Group


@dataclass(frozen=True, slots=True)
class Collection:
    """Options for which prompts are decoded, by which model, and where the answers go."""

    data: Annotated[
        list[Path],
        typer.Option("--data", help="Groups of pairs (JSON Lines); repeatable.", exists=True, dir_okay=False),
    ]
    out: Annotated[Path, typer.Option("--out", help="Folder for the results; a collection there goes on.")]
    model: options.Model = "embedded"
    adapter: options.Adapter = "auto"
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="Most prompts in all.")] = None
    batch: Annotated[int, typer.Option("--batch", min=1, help="Prompts decoded together.")] = 8
    max_new_tokens: Annotated[
        int | None, typer.Option("--max-new-tokens", min=1, help="Default: what the agent allows each step.")
    ] = None
    free_text: Annotated[
        bool,
        typer.Option(
            "--free-text", help="Answers may have several lines, and those that reach the limit are kept as they are."
        ),
    ] = False
    dtype: options.Dtype = "auto"
    device: options.Device = "auto"
    seed: options.Seed = 0

    def share(self) -> dict[str, Any]:
        """The arguments that both kinds of collecting take: which prompts to decode, and how."""
        allowed = allowed_tokens(self.max_new_tokens)
        return {
            "max_new_tokens": allowed,
            "batch": self.batch,
            "limit": self.limit,
            "seed": self.seed,
            "free_text": self.free_text,
        }

    def origin(self) -> dict[str, Any]:
        """The options on which the answers depend."""
        names = ("max_new_tokens", "seed", "free_text")
        return {name: getattr(self, name) for name in names}

    def load(self) -> "Callable[[], TextDecoder]":
        """A function that loads the model, here or in another process. Calling it may raise ModelError."""
        from decoding.serving.load import load_text_decoder

        chosen: Any = self.adapter if self.adapter in ("auto", "none") else Path(self.adapter).absolute()
        return partial(load_text_decoder, self.model, dtype=self.dtype, device=self.device, adapter=chosen)

    def groups(self) -> "Iterator[Group]":
        """The groups of all data files. Raises TrainingDataError."""
        from decoding.training.data.groups import read_groups

        return (group for path in self.data for group in read_groups(path))
