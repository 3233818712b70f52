"""`sqlagent models list|show|pull`: which models can be used, and which are in the cache."""

from dataclasses import asdict
from typing import Annotated

import typer

from app.shared import exit_codes, options, output

app = typer.Typer(help="The models that can be used.", no_args_is_help=True)
Name = Annotated[str, typer.Argument(help="'embedded', a folder, a .gguf file or a hub id.")]


@app.command("list")
def list_models(as_json: options.Json = False) -> None:
    """List the embedded model and the models in the caches."""
    from decoding.checkpoints.catalog import list_models as listed

    entries = listed()
    if as_json:
        output.print_json([asdict(entry) for entry in entries])
    else:
        rows = [
            [e.name, e.kind, f"{e.size_bytes / 1e6:,.0f}" if e.folder else "not fetched", e.folder] for e in entries
        ]
        output.print_table(["name", "kind", "MB", "folder"], rows)


@app.command("show")
def show(name: Name = "embedded", as_json: options.Json = False) -> None:
    """Show a model's architecture, size and identity; fetches it first if necessary."""
    from decoding.checkpoints.catalog import show_model

    with exit_codes.plain_errors():
        facts = show_model(name)
    if as_json:
        output.print_json(facts)
    else:
        output.print_table(["fact", "value"], list(facts.items()))


@app.command("pull")
def pull(name: Name = "embedded") -> None:
    """Fetch (and convert) a model into the cache."""
    from decoding.checkpoints.catalog import pull as pulled

    with exit_codes.plain_errors():
        print(pulled(name).folder)
