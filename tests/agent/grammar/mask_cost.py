"""What masks cost by the size of the vocabulary: `python -m tests.agent.grammar.mask_cost`.

The vocabularies are made up: byte-level BPE tokens with the shares of kinds that Qwen 2 and Llama 3 have. Nothing is written
by a model: texts are gold-like statements, token by token, and every mask on their way is computed, which decoding does only
where the model's own choice is forbidden.
"""

import random
import tracemalloc
from string import ascii_letters
from time import perf_counter

from agent.grammar.constraint import Vocabulary, sql_constraint
from agent.prompts.slots import Form
from decoding.tokenizer import ByteLevel, byte_alphabet
from tests.agent.grammar.test_grammar import SCHEMA
from tools.linking.mentions import QuestionContext

SIZES = (49_152, 152_064)
STATEMENTS = (
    "SELECT T1.Name, COUNT(*)\nFROM singer AS T1\nJOIN concert AS T2 ON T1.singer_id = T2.singer_id\nWHERE T2.Year > 2014\n"
    "GROUP BY T1.Name\nORDER BY COUNT(*) DESC\nLIMIT 3;",
    "SELECT Name FROM singer WHERE Country = 'France' AND Age > (SELECT AVG(Age) FROM singer)",
    "SELECT DISTINCT Title FROM concert WHERE singer_id NOT IN (SELECT singer_id FROM singer WHERE Age BETWEEN 20 AND 30)",
)


class MadeUp:
    """As much of a byte-level tokenizer as a grammar asks for; text becomes the longest tokens that fit, from the left."""

    def __init__(self, size: int) -> None:
        self.vocab_size, self._tokens = size, _tokens(size)
        self._ids = {token: number for number, token in enumerate(self._tokens)}

    def token(self, number: int) -> str:
        return self._tokens[number]

    def is_special(self, number: int) -> bool:
        return number == 0

    def detokenizer(self) -> ByteLevel:
        return ByteLevel()

    def decode(self, ids: object) -> str:
        stream = ByteLevel()
        return stream.feed(map(self.token, ids)) + stream.flush()  # type: ignore[call-overload]

    def encode(self, text: str) -> list[int]:
        written, found = _written(text), []
        while written:
            end = next(end for end in range(min(len(written), 16), 0, -1) if written[:end] in self._ids)
            found.append(self._ids[written[:end]])
            written = written[end:]
        return found


def _written(text: str) -> str:
    spelled = {byte: character for character, byte in byte_alphabet().items()}
    return "".join(spelled[byte] for byte in text.encode())


def _tokens(size: int) -> list[str]:
    """A marker, all bytes, then words with and without a space, texts of other scripts, signs, and lines with indents."""
    dice, tokens = random.Random(size), dict.fromkeys(["<|end|>", *byte_alphabet()])
    words = {
        *" ".join(STATEMENTS).replace("\n", " ").split(),
        "Name",
        "Age",
        "Country",
        "singer",
        "concert",
        "FROM",
        "WHERE",
    }
    tokens |= dict.fromkeys(_written(space + word) for word in sorted(words) for space in ("", " "))
    tokens |= dict.fromkeys(_written(end + "\n" + " " * indent) for end in ("", ",", ")", ";") for indent in range(12))
    signs = "()[]{}.,;:=<>+-*/%'\"_|!&#@`"
    while len(tokens) < size:
        kind, length = dice.random(), 2 + min(int(dice.expovariate(0.25)), 12)
        if kind < 0.72:
            text = " " * (dice.random() < 0.55) + "".join(dice.choices(ascii_letters, k=length))
        elif kind < 0.9:
            text = "".join(chr(dice.randrange(0x400, 0x9FFF)) for _ in range(length // 2))
        else:
            text = " " * (dice.random() < 0.3) + "".join(dice.choices(signs, k=1 + length // 4))
        tokens[_written(text)] = None
    return list(tokens)[:size]


def measure(size: int) -> str:
    """A line of the table."""
    tokenizer = MadeUp(size)
    tracemalloc.start()
    Vocabulary(tokenizer, size)  # type: ignore[arg-type]
    held_mb = tracemalloc.get_traced_memory()[0] / 2**20
    tracemalloc.stop()
    start = perf_counter()
    constraint = sql_constraint(
        SCHEMA, "sqlite", tokenizer, frozenset({0}), form=Form("fence", 120), context=QuestionContext("2014 France 3")
    )  # type: ignore[arg-type]
    made_ms = 1e3 * (perf_counter() - start)
    masks_ms, admits_us, computed, asked = 0.0, 0.0, 0, 0
    for text in STATEMENTS:
        state = constraint.start()
        for token in tokenizer.encode(text):
            before, start = constraint._mask.cache_info().misses, perf_counter()
            constraint.allowed(state)
            masks_ms += 1e3 * (perf_counter() - start)
            computed += constraint._mask.cache_info().misses - before
            start = perf_counter()
            assert constraint.admits(state, token), (text, tokenizer.token(token))
            admits_us += 1e6 * (perf_counter() - start)
            asked += 1
            state = constraint.step(state, token)
    return f"| {size:,} | {made_ms:.0f} | {held_mb:.0f} | {computed} | {masks_ms / computed:.2f} | {admits_us / asked:.0f} |"


if __name__ == "__main__":
    print("| tokens | index made, ms | index, MB | masks computed | ms for one | us for one token asked |")
    print("|---|---|---|---|---|---|")
    for each in SIZES:
        print(measure(each))
