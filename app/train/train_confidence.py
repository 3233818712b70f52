"""`sqlagent train confidence`: fits how sure answers are, from the records of `sqlagent eval held_back`."""

from pathlib import Path
from typing import Annotated

import typer

from app.shared import exit_codes, output

Records = Annotated[
    Path,
    typer.Option("--records", help="Folder that `sqlagent eval held_back --out` wrote.", exists=True, file_okay=False),
]
AdapterFolder = Annotated[
    Path,
    typer.Option("--adapter", help="The adapter with which the records were made; the file is written into it.",
                 exists=True, file_okay=False),
]  # fmt: skip


def confidence(records: Records, adapter: AdapterFolder) -> None:
    """Fit the confidence of answers. The last line on stdout has the figures, cross-validated by database, as JSON."""
    with exit_codes.plain_errors():
        from decoding.checkpoints.model_config import read_json
        from eval.accuracy.fit_confidence import fit
        from eval.datasets.official import DatasetError
        from eval.predict.record import Record, read_records

        settings = read_json(records / "settings.json")
        dataset = str(settings["dataset"])
        if not dataset.startswith("held_back"):
            raise DatasetError(f"{records} was measured on {dataset}; confidence is fitted on held_back alone")
        if settings.get("second_look"):
            raise DatasetError(f"{records} has second looks; confidence is fitted on first answers (--no-second-look)")
        about = {"dataset": dataset, "engine": settings["engine"], "questions": settings["questions"]}
        about["adapter"] = settings["adapter"]
        fitted = fit(read_records(records / "records.jsonl", Record), about)
        output.report(f"wrote {fitted.calibration.write(adapter)}")
        output.print_json(fitted.cross_validated)
