"""Head-only tuning for 20 epochs: the frozen encoder runs once over the rows, not once an epoch.

Both sides start from nothing but the rows: reading, tokenizing, building the model, training with an evaluation each
epoch. Ours also makes its features, from an empty cache, and keeps a checkpoint each epoch, which Trainer does not.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path

from hftune.bench.case import Case, Goal, Scale, Side, Turn, own_cache, timed
from hftune.bench.rows import write_rows
from hftune.bench.training import Prepared, stock_trainer
from hftune.config import load_recipe
from hftune.pipeline import assemble
from hftune.runs.directory import RunDir
from hftune.training import fit
from hftune.training.progress import Silent

EPOCHS = 20
ROWS, DEV = 1500, 500
STOCK = "Trainer, encoder frozen"


def sides(folder: Path, scale: Scale) -> Mapping[str, Side]:
    """Rows as long as SST-5's under method head, and under Trainer with the encoder's weights frozen."""
    rows = scale.of(ROWS, least=40)
    data = write_rows(folder / "rows", "sentences", train=rows, validation=scale.of(DEV, least=20))
    recipe = load_recipe(
        None,
        {
            "model.model_name_or_path": f"scratch:{scale.encoder}",
            "data.dataset_name": str(data),
            "data.test_size": 0,
            "method.kind": "head",
            "train.num_train_epochs": EPOCHS,
            "train.use_cpu": True,
        },
    )

    def ours() -> Turn:
        with tempfile.TemporaryDirectory(dir=folder) as run, own_cache(Path(run) / "cache"):
            return timed(rows * EPOCHS, lambda: fit(assemble(recipe, RunDir(Path(run)), Silent()).trainer))

    def train() -> None:
        prepared = Prepared(recipe)
        model = prepared.model()
        model.base_model.requires_grad_(False)
        inputs = prepared.inputs
        stock_trainer(
            recipe,
            folder,
            model=model,
            train_dataset=inputs.train,
            eval_dataset=inputs.validation,
            data_collator=inputs.collator,
        ).train()

    return {"hftune": ours, STOCK: lambda: timed(rows * EPOCHS, train)}


CASE = Case(
    name="head",
    what="head-only tuning, 20 epochs, from the rows to the trained head",
    unit="rows",
    goals=(Goal(STOCK, least=15),),
    sides=sides,
    repeats=1,
)
