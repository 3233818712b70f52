"""Answers of an endpoint's model as JSON: the JSON schema that is sent with a step (`response_format`), and plans in that form.

The schemas keep to what OpenAI's strict mode takes, which vLLM and SGLang take as well: every property is required, none may
be added.
"""

import json
from collections.abc import Mapping
from typing import Any

from agent.prompts.plan_format import Plan, PlanError, PlannedTable, parse_plan
from agent.prompts.profiles.profile import ModelStep
from agent.prompts.slots import Slots
from tools.schema import Schema, Table

Form = dict[str, Any]


def response_format(step: ModelStep, slots: Slots) -> Form | None:
    """OpenAI's `response_format` for a step; None for one that is answered freely, as SQL is."""
    return _named("plan", _plan(slots.schema)) if step == "plan" else None


def plan_as_json(text: str) -> str:
    """A plan in the form that `response_format` prescribes. Raises PlanError.

    >>> plan_as_json("singer: age; concert | SELECT _ FROM _")
    '{"tables": [{"table": "singer", "columns": ["age"]}, {"table": "concert", "columns": []}], "sketch": "SELECT _ FROM _"}'
    """
    plan = parse_plan(text)
    tables = [{"table": each.name, "columns": list(each.columns)} for each in plan.tables]
    return json.dumps({"tables": tables, "sketch": plan.skeleton}, ensure_ascii=False)


def plan_from_json(said: str) -> str | None:
    """The plan in an answer of that form, in one line; None if the answer is not of that form.

    >>> plan_from_json('```json\\n{"tables": [{"table": "singer", "columns": ["age"]}], "sketch": "SELECT _"}\\n```')
    'singer: age | SELECT _'
    """
    try:
        found = json.loads(said[said.find("{") : said.rfind("}") + 1])
        tables = tuple(PlannedTable(str(each["table"]), tuple(map(str, each["columns"]))) for each in found["tables"])
        return " ".join(Plan(tables, str(found["sketch"])).text().split())
    except (ValueError, TypeError, KeyError, RecursionError):
        return None


def plan_in_its_form(text: str) -> str:
    """A plan as an answer in JSON, or as it stands where it is none."""
    try:
        return plan_as_json(text)
    except PlanError:
        return text


def _plan(schema: Schema) -> Form:
    tables = [_planned(table) for table in schema.tables]
    item = {"anyOf": tables} if len(tables) > 1 else tables[0] if tables else {"type": "string"}
    return _object({"tables": {"type": "array", "items": item, "minItems": 1}, "sketch": {"type": "string"}})


def _planned(table: Table) -> Form:
    columns = {"type": "array", "items": {"type": "string", "enum": [column.name for column in table.columns]}}
    return _object({"table": {"type": "string", "enum": [table.name]}, "columns": columns})


def _object(properties: Mapping[str, Form]) -> Form:
    return {
        "type": "object",
        "properties": dict(properties),
        "required": list(properties),
        "additionalProperties": False,
    }


def _named(name: str, schema: Form) -> Form:
    return {"type": "json_schema", "json_schema": {"name": name, "strict": True, "schema": schema}}
