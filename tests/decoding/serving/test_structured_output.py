"""Prescribed forms hold for every text, and every method writes plain decoding's text under them."""

import json
import re
from pathlib import Path
from random import Random
from typing import Any

import jsonschema
import pytest

from app.serve.chat_completions import FormError, StructuredOutput, choice_form, json_form, regex_form
from decoding.serving.load import load_text_decoder
from decoding.serving.text_decoder import SamplingParams, TextDecoder
from tests.decoding.models.tiny_models import tiny_checkpoint

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 5},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> TextDecoder:
    path = tiny_checkpoint(Path(tmp_path_factory.mktemp("model")) / "tiny")
    return load_text_decoder(str(path), dtype="fp32", device="cpu")


def written(model: TextDecoder, form: StructuredOutput, **more: Any) -> str:
    settings = SamplingParams(**{"temperature": 1.0, "max_new_tokens": 400} | more, constraint=form)
    done = model.generate("Write:", settings)
    assert done.finish == "stop"
    return done.text


def schema(chance: Random, depth: int = 2) -> dict[str, Any]:
    """A random schema whose texts end."""
    kinds = ["string", "integer", "boolean", "enum", "null", "pattern"] + ["object", "array", "anyOf"] * (depth > 0)
    kind = chance.choice(kinds)
    if kind == "object":
        names = chance.sample(["a", "b_c", "Größe", "with space", 'quo"te'], chance.randint(1, 3))
        properties = {name: schema(chance, depth - 1) for name in names}
        required = chance.sample(names, chance.randint(0, len(names)))
        return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
    if kind == "array":
        return {"type": "array", "items": schema(chance, depth - 1), "maxItems": chance.randint(0, 3)}
    if kind == "anyOf":
        return {"anyOf": [schema(chance, depth - 1), schema(chance, depth - 1)]}
    if kind == "enum":
        return {"enum": chance.sample([1, 2.5, "x", "naïve", None, True], 2)}
    if kind == "pattern":
        return {"type": "string", "pattern": "^[a-f]{2,4}-\\d$"}
    return {
        "string": {"type": "string", "maxLength": 6},
        "integer": {"type": "integer", "minimum": -9, "maximum": 99},
    }.get(kind, {"type": kind})


def test_texts_fit_two_hundred_schemas(decoder: TextDecoder) -> None:
    size = decoder.target.vocab_size
    for number in range(200):
        wanted = schema(Random(number))
        text = written(decoder, json_form(wanted, decoder.tokenizer, size), seed=number)
        jsonschema.validate(json.loads(text), wanted)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(
    "method", ["jacobi", "jacobi_forcing", "adaptive", "lookahead", "prompt_lookup", "mask_tokens"]
)
def test_every_method_writes_plain_decodings_text(decoder: TextDecoder, method: str, temperature: float) -> None:
    for seed in range(3):
        form = json_form(PERSON, decoder.tokenizer, decoder.target.vocab_size)
        plain = written(decoder, form, decoder="plain", temperature=temperature, seed=seed)
        assert written(decoder, form, decoder=method, temperature=temperature, seed=seed) == plain


def test_a_regular_expression_a_choice_and_any_object(decoder: TextDecoder) -> None:
    place = decoder.tokenizer, decoder.target.vocab_size
    for seed in range(8):
        assert re.fullmatch(
            r"(\d{3}-){2}[xyz]+!", written(decoder, regex_form(r"(\d{3}-){2}[xyz]{1,9}!", *place), seed=seed)
        )
        assert written(decoder, choice_form(["yes", 'no "way"', "größer"], *place), seed=seed) in {
            "yes",
            'no "way"',
            "größer",
        }
    begun = decoder.generate(
        "Write:", SamplingParams(temperature=1.0, max_new_tokens=30, constraint=json_form(None, *place))
    )
    assert begun.text.lstrip().startswith("{")


def test_forced_tokens_cost_no_forward(decoder: TextDecoder) -> None:
    form = choice_form(["a long text that leaves no choice"], decoder.tokenizer, decoder.target.vocab_size)
    done = decoder.generate("Write:", SamplingParams(max_new_tokens=100, constraint=form))
    assert done.text == "a long text that leaves no choice"
    assert done.metrics.target_forwards < len(done.tokens)


@pytest.mark.parametrize(
    "wanted", [{"type": "thing"}, {"$ref": "https://example.org/schema.json"}, {"type": "string", "pattern": "(("}]
)
def test_a_schema_that_cannot_be_prescribed_is_one_line(decoder: TextDecoder, wanted: dict[str, Any]) -> None:
    with pytest.raises(FormError) as caught:
        json_form(wanted, decoder.tokenizer, decoder.target.vocab_size)
    assert "\n" not in str(caught.value) and len(str(caught.value)) <= 300
