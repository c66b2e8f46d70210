"""What every recipe section is: frozen, strict about keys, documented by the sentence under each field."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """Base of all recipe sections; unknown keys are errors, field docstrings become ``--help`` and schema."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, allow_inf_nan=False)
