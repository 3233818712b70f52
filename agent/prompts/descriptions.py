"""Descriptions that exist already, taken into a knowledge folder: dbt's manifest.json and catalog.json, Apache Ossie's YAML,
and Frictionless data packages. Only what names tables and columns of the database is taken; what is left is said.

Comments of the database itself need not be taken: prompts show them as they are.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agent.prompts.knowledge import COLUMNS, RELATIONS, KnowledgeError, read_knowledge
from tools.schema import Schema

LONGEST = 300  # characters of a description, of which a prompt shows every one
_TERMS, _METRICS = "terms.md", "metrics.md"
_REF = re.compile(r"""(?:ref|source)\(\s*(?:['"][^'"]*['"]\s*,\s*)?['"]([^'"]+)['"]""")


@dataclass(slots=True)
class Found:
    """What a file says. columns: by table and column. relations: of columns to others. terms, metrics: by name. left: kinds of
    things that are not taken, with their numbers."""

    columns: dict[tuple[str, str], str] = field(default_factory=dict)
    relations: list[tuple[tuple[str, str], tuple[str, str]]] = field(default_factory=list)
    terms: dict[str, str] = field(default_factory=dict)
    metrics: dict[str, str] = field(default_factory=dict)
    left: Counter[str] = field(default_factory=Counter)


def take(file: Path, folder: Path, schema: Schema) -> tuple[list[str], list[str]]:
    """Add what the file describes of the schema to the folder's files, but for what these say already. Returns what was taken
    and what was left, in sentences. Raises KnowledgeError.
    """
    folder.mkdir(parents=True, exist_ok=True)
    known, found = read_knowledge(folder), read(file)
    names = {item.name.casefold() for item in known.items}
    described = {(table.casefold(), column.casefold()) for table, column in known.annotations.descriptions}
    related = {(each.of, each.to) for each in known.annotations.relations}
    lines: dict[str, list[str]] = {COLUMNS: [], RELATIONS: [], _TERMS: [], _METRICS: []}
    for (table, column), text in found.columns.items():
        if not _has(schema, table, column):
            found.left[f"descriptions of columns that {_NOT_THERE}"] += 1
        elif (table.casefold(), column.casefold()) in described:
            found.left["descriptions of columns that the folder describes"] += 1
        else:
            lines[COLUMNS].append(f"- {table}.{column}: {_line(text)}")
    for of, to in dict.fromkeys(found.relations):
        if not (_has(schema, *of) and _has(schema, *to)):
            found.left[f"relations of columns that {_NOT_THERE}"] += 1
        elif (of, to) not in related:
            lines[RELATIONS].append(f"- {'.'.join(of)} -> {'.'.join(to)}")
    for name, kind in ((_TERMS, found.terms), (_METRICS, found.metrics)):
        for item, text in kind.items():
            if item.casefold() in names or not (item.strip() and text.strip()):
                found.left[f"names of {name} that the folder has, or without a meaning"] += 1
            else:
                lines[name].append(f"- {_line(item).replace(':', ' ')}: {_line(text)}")
    for name, added in lines.items():
        if added:
            path = folder / name
            before = path.read_text(encoding="utf-8") if path.exists() else ""
            gap = "" if not before or before.endswith("\n") else "\n"
            path.write_text(f"{before}{gap}" + "\n".join(added) + "\n", encoding="utf-8")
    taken = [f"{name}: {len(added)} lines" for name, added in lines.items() if added]
    return taken, [f"{count} {what}" for what, count in sorted(found.left.items())]


_NOT_THERE = "the database has not, or hides"


def read(file: Path) -> Found:
    """What a file says, by its form. Raises KnowledgeError."""
    import yaml  # type: ignore[import-untyped]

    try:
        text = file.read_text(encoding="utf-8-sig")
        given = json.loads(text) if file.suffix.casefold() == ".json" else yaml.safe_load(text)
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise KnowledgeError(f"cannot read {file}: {' '.join(str(error).split())}") from error
    found = Found()
    try:
        if "dbt_schema_version" in (given.get("metadata") or {}):
            _dbt(given, found)
        elif "resources" in given:
            _data_package(given, found)
        elif "datasets" in given or "semantic_model" in given:
            models = given.get("semantic_model") or [given]
            for model in models if isinstance(models, list) else [models]:
                _ossie(model, found)
        else:
            raise KnowledgeError(
                f"{file} is none of dbt's manifest.json and catalog.json, Ossie's YAML, and datapackage.json"
            )
    except (AttributeError, KeyError, TypeError) as error:
        raise KnowledgeError(f"{file} has not the form of its kind: {type(error).__name__} {error}") from error
    return found


def _dbt(given: Mapping[str, Any], found: Found) -> None:
    nodes = {**(given.get("nodes") or {}), **(given.get("sources") or {})}
    measures = {
        measure["name"]: measure
        for model in (given.get("semantic_models") or {}).values()
        for measure in model.get("measures") or ()
    }
    for node in nodes.values():
        kind, test = node.get("resource_type"), node.get("test_metadata") or {}
        if kind in ("model", "seed", "snapshot", "source"):
            table = node.get("identifier") or node.get("alias") or node["name"]
            _described(found, table, node.get("description"), node.get("columns") or {})
        elif kind is None and "metadata" in node:  # of a catalog
            _described(found, node["metadata"]["name"], node["metadata"].get("comment"), node.get("columns") or {})
        elif kind == "test" and test.get("name") == "relationships":
            told = test["kwargs"]
            ends = [_REF.search(str(told.get(end, ""))) for end in ("model", "to")]
            owner = nodes.get(node.get("attached_node") or "", {})
            table = owner.get("alias") or owner.get("name") or (ends[0][1] if ends[0] else "")
            if table and ends[1]:
                found.relations.append(((table, told["column_name"]), (ends[1][1], told["field"])))
        elif kind is not None:
            found.left[f"nodes of the kind {kind}" + (f" ({test.get('name')})" if test else "")] += 1
    for metric in (given.get("metrics") or {}).values():
        formula = _formula(metric, measures)
        meaning = "; ".join(filter(None, [metric.get("description") or "", formula]))
        found.metrics[str(metric.get("label") or metric["name"]).replace("_", " ")] = meaning


def _formula(metric: Mapping[str, Any], measures: Mapping[str, Any]) -> str:
    told = metric.get("type_params") or {}
    if metric.get("type") == "ratio":
        parts = [(told.get(part) or {}).get("name", "") for part in ("numerator", "denominator")]
        return " / ".join(parts) if all(parts) else ""
    measure = measures.get((told.get("measure") or {}).get("name", ""))
    if measure is None:
        return str(told.get("expr") or "")
    what = measure.get("expr") or measure["name"]
    return f"COUNT(DISTINCT {what})" if measure["agg"] == "count_distinct" else f"{str(measure['agg']).upper()}({what})"


def _described(found: Found, table: str, about: str | None, columns: Mapping[str, Any]) -> None:
    if about:
        found.terms[table.replace("_", " ")] = f"table {table}, {about}"
    for key, column in columns.items():
        text = column.get("description") or column.get("comment")
        if text:
            found.columns[table, column.get("name") or key] = text


def _data_package(given: Mapping[str, Any], found: Found) -> None:
    tables = {each["name"]: _stem(each) for each in given["resources"]}
    for resource in given["resources"]:
        table, schema = tables[resource["name"]], resource.get("schema") or {}
        if not isinstance(schema, dict):
            found.left["schemas in files of their own"] += 1
            continue
        fields = {
            each["name"]: {"description": each.get("description") or each.get("title")}
            for each in schema.get("fields") or ()
        }
        _described(found, table, resource.get("description") or resource.get("title"), fields)
        for key in schema.get("foreignKeys") or ():
            to = tables.get(key["reference"].get("resource") or resource["name"], "")
            ends = [[each] if isinstance(each, str) else each for each in (key["fields"], key["reference"]["fields"])]
            found.relations += [((table, of), (to, other)) for of, other in zip(*ends, strict=True)]


def _stem(resource: Mapping[str, Any]) -> str:
    """The table that a resource's file becomes: its name without the ending."""
    path = resource.get("path") or ""
    path = path[0] if isinstance(path, list) and path else path
    return Path(path).name.partition(".")[0] if path else str(resource["name"])


def _ossie(model: Mapping[str, Any], found: Found) -> None:
    tables = {each["name"]: str(each.get("source") or each["name"]).rpartition(".")[2] for each in model["datasets"]}
    for dataset in model["datasets"]:
        columns = {}
        for each in dataset.get("fields") or ():
            expression = next(iter(_expressions(each)), each["name"])
            if expression.isidentifier():
                columns[expression] = {"description": each.get("description")}
            else:
                found.terms[each["name"].replace("_", " ")] = _told(each, expression)
        _described(found, tables[dataset["name"]], dataset.get("description"), columns)
    for each in model.get("relationships") or ():
        if "from_columns" not in each:
            found.left["relationships without columns"] += 1
            continue
        pairs = zip(each["from_columns"], each["to_columns"], strict=True)
        found.relations += [((tables[each["from"]], of), (tables[each["to"]], to)) for of, to in pairs]
    for each in model.get("metrics") or ():
        expression = next(iter(_expressions(each)), "")
        for name in [each["name"], *_synonyms(each)]:
            found.metrics[name.replace("_", " ")] = _told(each, expression)


def _expressions(given: Mapping[str, Any]) -> Iterator[str]:
    told = given.get("expression")
    if isinstance(told, str):
        yield told
    elif told:
        yield from (str(each["expression"]) for each in told["dialects"])


def _told(given: Mapping[str, Any], expression: str) -> str:
    return "; ".join(filter(None, [given.get("description") or "", expression]))


def _synonyms(given: Mapping[str, Any]) -> Sequence[str]:
    context = given.get("ai_context")
    return context.get("synonyms") or () if isinstance(context, dict) else ()


def _has(schema: Schema, table: str, column: str) -> bool:
    found = schema.table(table)
    return found is not None and found.column(column) is not None


def _line(text: str) -> str:
    said = " ".join(str(text).split())
    return said if len(said) <= LONGEST else said[: LONGEST - 1] + "…"
