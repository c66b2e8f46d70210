"""What an embedded dataset is: a folder that ships with hftune, and which of its columns are which.

Each dataset has a small file of its own that makes one ``Embedded``; the table is ``hftune.data.DATASETS``.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hftune.assets import embedded_data_dir
from hftune.config.data import LabeledData
from hftune.data.columns import NO_PAIR
from hftune.data.locate import Files, folder_files
from hftune.data.sources import read_file
from hftune.data.wording import quote
from hftune.errors import HftuneError


@dataclass(frozen=True)
class Embedded:
    """A dataset that needs no network."""

    name: str
    about: str
    """One line for ``hftune data ls``."""
    files: dict[str, str]
    """The file of each split."""
    text_column: str
    label_column: str
    pair_column: str | None = None
    unlabeled: str | None = None
    """File of texts without labels, one a line."""

    @property
    def folder(self) -> Path:
        """Where its files lie."""
        return embedded_data_dir() / self.name

    def row_counts(self) -> dict[str, int]:
        """How many rows each split has."""
        files = self.split_files(LabeledData(dataset_name=self.name))
        return {split: sum(len(read_file(file)) for file in paths) for split, paths in files.items()}

    def columns(self, section: LabeledData) -> LabeledData:
        """The section with the columns named that it leaves open."""
        return section.model_copy(
            update={
                "text_column_name": section.text_column_name or self.text_column,
                "label_column_name": section.label_column_name or self.label_column,
                "text_pair_column_name": section.text_pair_column_name or self.pair_column or NO_PAIR,
            }
        )

    def split_files(self, section: LabeledData) -> Files:
        """Its files, or those in its folder that the section names in their place."""
        if not self.folder.is_dir():
            raise HftuneError(
                f"the files of the embedded dataset {quote(self.name)} are not where hftune was installed",
                hint=f"install hftune again, or make them with `hftune data make {self.name}`",
            )
        asked = section.split_files
        return folder_files(self.folder, self.files | {split: name for split, name in asked.items() if name})
