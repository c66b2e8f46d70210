"""``hftune push``: publish a run's model on the Hugging Face Hub, load it from there, and check it.

hftune push runs/a jane/reviews-tinybert
hftune push runs/a jane/reviews-tinybert --private --revision trial
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from hftune.cli import options
from hftune.cli.terminal import say, show_json

Private = Annotated[bool, typer.Option("--private", help="Create the repository as private; it is public otherwise.")]
Revision = Annotated[
    str | None,
    typer.Option("--revision", metavar="BRANCH", help="Branch to push to, made where it is not there; main otherwise."),
]


def push(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run that is complete.")],
    repo: Annotated[str, typer.Argument(metavar="USER/NAME", help="The repository; made where it is not there.")],
    private: Private = False,
    revision: Revision = None,
    trust_remote_code: options.TrustRemoteCode = None,
    trust_base_code: options.TrustBaseCode = None,
    json: options.Json = False,
) -> None:
    """Publish a run on the Hub, then load it from there and check it.

    The token is that of `hf auth login`, or HF_TOKEN.
    """
    from hftune.cli.watch import Watcher
    from hftune.config.consent import used_model
    from hftune.config.hub import HubSection
    from hftune.hub import push as publish
    from hftune.runs.directory import RunDir

    trust = used_model(str(run), None, trust_remote_code, trust_base_code).trust
    section = HubSection(hub_model_id=repo, hub_private_repo=private, hub_revision=revision)
    with Watcher() as listener:
        published = publish(RunDir.open(run), section, listener, trust=trust)
    if json:
        show_json(asdict(published))
    else:
        say(f"model   {published.url}")
        say(f"commit  {published.commit}")
