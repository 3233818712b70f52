"""The chat profile on a local model: its answers are plans and SQL, drafts find what is predicted, thoughts stay out."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from langchain_core.messages import AIMessage, HumanMessage

from agent.assemble import LoadedModel, ModelChoice, load_model
from agent.context import AgentContext, AgentOptions
from agent.conversation import Conversation
from agent.prompts.knowledge import read_knowledge
from agent.prompts.profiles import load_profile
from agent.prompts.slots import parse_plan
from decoding.serving.text_decoder import ChatModel
from tests.decoding.models.tiny_models import CHAT_TEMPLATE, tiny_checkpoint
from tools.databases.database import Database
from tools.databases.open_database import open_database

QUESTION = "How many singers are from France, and which concerts did they sing in?"
GENERATION = "{{ '<|im_start|>assistant\n' }}"


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    path = tiny_checkpoint(Path(tmp_path_factory.mktemp("model")) / "tiny", max_position_embeddings=8192)
    return load_model(ModelChoice(str(path), profile="chat", dtype="fp32", temperature=1.0, decoder="prompt_lookup"))


@pytest.fixture(scope="module")
def toolbox(loaded: LoadedModel, singers: Path) -> Iterator[AgentContext]:
    """After the question, with what the model was asked."""
    with closing(open_database(singers, engine="sqlite")) as database:
        made = loaded.toolbox(database, AgentOptions(max_attempts=1, orders=1))
        Conversation(made).ask(QUESTION)
        yield made


def test_an_untrained_model_writes_a_plan_and_sql(loaded: LoadedModel, toolbox: AgentContext) -> None:
    """Greedily, since an untrained model that draws its tokens fills its limit with letters of a name."""
    texts = {}
    for step, call in toolbox.calls.items():
        for form in (call.options["constraint"], None):
            options = call.options | {"constraint": form, "temperature": 0.0}
            texts[step, form is not None] = ChatModel(loaded.decoder).complete(call.messages, options).text
    assert texts["generate", True].lstrip().upper().startswith(("SELECT", "WITH"))
    assert parse_plan(toolbox.profile.read_plan(texts["plan", True])).tables
    assert toolbox.profile.read_sql(texts["generate", False]) == "" and "|" not in texts["plan", False][:200]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_every_method_writes_plain_decodings_text(
    loaded: LoadedModel, toolbox: AgentContext, temperature: float
) -> None:
    call, model = toolbox.calls["generate"], ChatModel(loaded.decoder)
    more = {"temperature": temperature, "max_new_tokens": 60, "options": {}}
    names = ("plain", "jacobi_forcing", "adaptive", "lookahead", "prompt_lookup")
    texts = {name: model.complete(call.messages, call.options | more | {"decoder": name}).text for name in names}
    assert len(texts["plain"]) > 20 and set(texts.values()) == {texts["plain"]}


def test_drafts_find_the_sql_that_the_plan_predicts(loaded: LoadedModel, toolbox: AgentContext) -> None:
    """The model is untrained: its text is made the predicted one, by a constraint of that text alone."""
    told = [loaded.decoder.tokenizer.decode(ids) for ids in toolbox.calls["plan"].options["recall"].sequences]
    assert told[0].startswith("plan: ")
    sql = [loaded.decoder.tokenizer.decode(ids) for ids in toolbox.calls["generate"].options["recall"].sequences]
    assert any(text.startswith("```sql\nSELECT") for text in sql)
    call = toolbox.calls["generate"]
    written = ChatModel(loaded.decoder).complete(call.messages, call.options | {"decoder": "prompt_lookup"})
    drafted = written.rounds[0]
    assert loaded.decoder.tokenizer.decode(drafted.draft_tokens).lstrip().startswith("SELECT")


@pytest.mark.parametrize(
    ("generation", "end"),
    [
        (GENERATION, "assistant\n```sql\n"),
        ("{{ '<|im_start|>assistant\n<think>\n' }}", "<think>\n\n</think>\n\n```sql\n"),
        (
            GENERATION + "{% if enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}",
            "\n\n</think>\n\n```sql\n",
        ),
    ],
)
def test_reasoning_models_begin_with_an_empty_thought(tmp_path: Path, generation: str, end: str) -> None:
    path = tiny_checkpoint(tmp_path / "tiny")
    template = CHAT_TEMPLATE.replace(GENERATION, generation)
    (path / "chat_template.jinja").write_text(template)
    model = ChatModel(load_model(ModelChoice(str(path))).decoder)
    prompt = model.prompt([HumanMessage("a question"), AIMessage("```sql\n")])
    assert prompt.endswith(end) and prompt.count("think") <= 2


@pytest.mark.parametrize(
    ("text", "sql"),
    [
        ("<think>SELECT 1 FROM x? No.\n```sql\nSELECT 2\n```\n</think>\nSELECT 3", "SELECT 3"),
        ("so SELECT 1 ...</think>```sql\nSELECT 3\n```", "SELECT 3"),
        ("<think>It may be SELECT 1", ""),
    ],
)
def test_thoughts_are_no_sql(text: str, sql: str) -> None:
    assert load_profile("chat").read_sql(text) == sql


def test_a_thought_is_no_plan() -> None:
    said = "<think>plan: a | SELECT _</think>\nHere it is:\nplan: singer: age | SELECT MAX(_) FROM _\n"
    assert load_profile("chat").read_plan(said) == "singer: age | SELECT MAX(_) FROM _"


def test_examples_of_the_folder_are_shown_as_examples(loaded: LoadedModel, database: Database, tmp_path: Path) -> None:
    (tmp_path / "terms.md").write_text("- star: a singer with a concert\n")
    pairs = {
        "How many stars are there?": "SELECT 1",
        "Which singers are old?": "SELECT 2",
        "What is the tax?": "SELECT 3",
    }
    (tmp_path / "examples.md").write_text("".join(f"## {q}\n\n```sql\n{sql}\n```\n\n" for q, sql in pairs.items()))
    options = AgentOptions(max_attempts=1, orders=1, knowledge=read_knowledge(tmp_path))
    Conversation(asking := loaded.toolbox(database, options)).ask("How many singers are stars?")
    asked = str(asking.calls["plan"].messages[1].text)
    assert "Example: How many stars are there?\nIts query: SELECT 1" in asked and "SELECT 3" not in asked
    assert "Example: Which singers are old?\nIts query: SELECT 2" in asked
    assert "Note: star: a singer with a concert" in asked and "Note: How many stars" not in asked
