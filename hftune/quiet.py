"""The libraries below us draw bars and print advice of their own; on the command line ours are enough."""

from __future__ import annotations

import logging
import os
import warnings


def quiet_libraries() -> None:
    """Errors of the libraries still come through; their bars, advice and reports do not."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    import datasets
    import transformers
    from huggingface_hub.utils import logging as hub_logging

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    datasets.utils.logging.set_verbosity_error()
    datasets.disable_progress_bars()
    hub_logging.set_verbosity(logging.ERROR)
    logging.getLogger("accelerate").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module=r"(torch|transformers|datasets|peft|accelerate)\b")
