"""Reads prompts that do not ask for SQL, from the published files (JSON Lines) of Spec-Bench, GSM8K and HumanEval."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from decoding.tokenizer.tokenizer import Tokenizer
from eval.datasets.official import DatasetError

# Spec-Bench (Xia et al., arXiv 2401.07851) counts the eight categories of MT-bench as one family.
_MT_BENCH = frozenset(("writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities"))


@dataclass(frozen=True, slots=True)
class TextPrompt:
    """A prompt, and the family in whose row it is counted."""

    family: str
    text: str


def read_text_prompts(files: Sequence[Path], per_family: int) -> list[TextPrompt]:
    """At most `per_family` prompts of each family, evenly spaced; of a dialogue, the first turn. Raises DatasetError."""
    families: dict[str, list[TextPrompt]] = {}
    for file in files:
        for prompt in _read(file):
            families.setdefault(prompt.family, []).append(prompt)
    return [prompt for listed in families.values() for prompt in listed[:: -(-len(listed) // per_family)]]


def chat_prompt(tokenizer: Tokenizer, prompt: TextPrompt) -> str:
    """The prompt as a user's message in the model's own chat template."""
    return tokenizer.chat([{"role": "user", "content": prompt.text}])


def _read(file: Path) -> Iterator[TextPrompt]:
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DatasetError(f"cannot read {file}: {error}") from None
    for number, line in enumerate(lines, 1):
        try:
            prompt = _prompt(json.loads(line))
        except ValueError:
            raise DatasetError(
                f"line {number} of {file} is no question of Spec-Bench (category, turns), GSM8K (question) or HumanEval "
                "(task_id, prompt)"
            ) from None
        yield prompt


def _prompt(entry: object) -> TextPrompt:
    """The prompt in a line's JSON. Raises ValueError for another layout."""
    match entry:
        case {"category": str(category), "turns": [str(turn), *_]}:
            return TextPrompt("mt_bench" if category in _MT_BENCH else category, turn)
        case {"task_id": str(), "prompt": str(code)}:
            return TextPrompt("human_eval", f"Complete this Python function.\n\n{code}")
        case {"question": str(question)}:
            return TextPrompt("gsm8k", question)
    raise ValueError("another layout")
