"""``hftune push``: publish a run's model on the Hugging Face Hub, load it from there, and verify it.

hftune push runs/a jane/reviews-tinybert
hftune push runs/a jane/reviews-tinybert --private --revision trial
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from hftune.cli.options import RUN, TRUST, Json, option, settings_command, used_model
from hftune.cli.terminal import RunProgress, say, show_json

FinishedRun = Annotated[Path, typer.Argument(metavar="RUN", help="A complete run.")]
Repo = Annotated[str, typer.Argument(metavar="USER/NAME", help="The repository; created if it does not exist.")]
Private = Annotated[bool, option(RUN, None, "Create the repository as private; it is public otherwise.", "--private")]
Revision = Annotated[
    str | None, option(RUN, "BRANCH", "Branch to push to, created if it does not exist; main by default.", "--revision")
]


@settings_command(takes=TRUST)
def push(
    settings: dict[str, Any],
    run: FinishedRun,
    repo: Repo,
    private: Private = False,
    revision: Revision = None,
    as_json: Json = False,
) -> None:
    """Publish a run on the Hub, then load it from there and verify it.

    The token is that of `hf auth login`, or HF_TOKEN.
    """
    from hftune.hub.publish import push as publish
    from hftune.recipe import HubSection
    from hftune.runs.directory import RunDir

    trust = used_model(str(run), settings).trust
    section = HubSection(hub_model_id=repo, hub_private_repo=private, hub_revision=revision)
    with RunProgress() as progress:
        published = publish(RunDir.open(run), section, progress, trust=trust)
    if as_json:
        show_json(asdict(published))
    else:
        say(f"model   {published.url}")
        say(f"commit  {published.commit}")
