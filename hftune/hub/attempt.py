"""Requests to the Hub that are tried again, with a time limit each. Called by ``publish``, ``best`` and ``proof``.

Every attempt is a process of its own (``hftune.hub.worker``), so that one that hangs can be ended, and nothing of the
caller's own Hub client is changed.
"""

from __future__ import annotations

import json
import logging
import random
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from huggingface_hub import get_token

from hftune.child_process import death, fresh_process
from hftune.errors import HftuneError, RunFailed

logger = logging.getLogger(__name__)

LOG_IN = "log in with `hf auth login`, or set HF_TOKEN, with a token that may write (hf.co/settings/tokens)"
LATER = "nothing is lost: push again later with `hftune push RUN USER/NAME`"


@dataclass(frozen=True)
class Patience:
    """How often and how long."""

    attempts: int = 5
    """Tries in all before giving up."""
    first_wait: float = 2.0
    """Seconds before the second try; each wait is twice the one before."""
    longest_wait: float = 60.0
    """No wait is longer, unless the Hub asks for it."""
    silence: float = 60.0
    """Seconds without a byte moving before a connection is given up."""
    slowest: float = 50_000.0
    """Bytes a second below which an attempt is ended, however alive it seems."""

    def wait(self, failures: int, asked: float) -> float:
        """Seconds before the next try, with some chance in them, so that many clients do not come back as one."""
        growing = min(self.first_wait * 2.0 ** (failures - 1), self.longest_wait)
        return max(growing * random.uniform(0.75, 1.25), min(asked, 10 * self.longest_wait))

    def limit(self, size: int) -> float:
        """Seconds that an attempt to move so many bytes may take in all."""
        return 5 * self.silence + size / self.slowest


class CalledOff(Exception):
    """Nobody waits for this request any more."""


class Foreground:
    """How a request waits that its caller waits for: it says at once what goes wrong, and is never called off."""

    def say(self, text: str) -> None:
        """Something went wrong and is tried again."""
        logger.warning("the Hub: %s", text)

    def wait(self, seconds: float) -> None:
        """Let some time pass before the next attempt."""
        time.sleep(seconds)

    def run(self, command: Sequence[str], body: str, environment: dict[str, str], limit: float) -> tuple[int, str, str]:
        """Exit code, output and errors of one attempt.

        Raises:
            subprocess.TimeoutExpired: It came to no end in time; it was ended.
            CalledOff: Somebody ended it.
        """
        done = subprocess.run(
            command,
            input=body,
            capture_output=True,
            encoding="utf-8",
            errors="replace",  # what a library prints is in the system's own encoding
            check=False,
            timeout=limit,
            env=environment,
        )
        return done.returncode, done.stdout, done.stderr


def require_token() -> str:
    """The token of HF_TOKEN or of the login; it is held in memory and goes nowhere but to the Hub.

    Raises:
        HftuneError: There is none.
    """
    token = get_token()
    if not token:
        raise HftuneError("publishing needs a Hub token, and there is none", hint=LOG_IN)
    if not (token.isascii() and token.isprintable() and " " not in token):
        raise HftuneError("the Hub token has characters in it that no token has", hint=LOG_IN)
    return token


def insist(
    action: str,
    request: Mapping[str, Any],
    token: str,
    patience: Patience,
    *,
    size: int = 0,
    manner: Foreground | None = None,
) -> dict[str, Any]:
    """Ask until the Hub answers, or patience is at its end.

    Args:
        action: One of ``hftune.hub.worker.ACTIONS``.
        request: What the action needs.
        token: Whose name it is done in.
        patience: How often and how long.
        size: Bytes that are to be moved.
        manner: How to wait, and whom to tell; ``Foreground`` where not given.

    Raises:
        HftuneError: The Hub refuses: wrong token, not allowed, a card it does not take.
        CalledOff: Somebody ended it, which only another manner allows.
        RunFailed: It could not be reached, or went wrong in a way that trying again did not mend.
    """
    manner = manner or Foreground()
    for failures in range(1, patience.attempts + 1):
        answer = _attempt(action, request, token, patience, size, manner)
        if "result" in answer:
            result: dict[str, Any] = answer["result"]
            return result
        error = answer["error"]
        if error["kind"] != "transient":
            raise refusal(error, str(request["repo"]))
        if failures < patience.attempts:
            wait = patience.wait(failures, error["wait"])
            manner.say(f"{error['text']}; trying again in {wait:.0f} s ({failures + 1} of {patience.attempts})")
            manner.wait(wait)
    raise RunFailed(
        f"the Hub did not take it in {patience.attempts} attempts; the last one: {error['text']}", hint=LATER
    )


def _attempt(
    action: str, request: Mapping[str, Any], token: str, patience: Patience, size: int, manner: Foreground
) -> dict[str, Any]:
    """One process, one answer."""
    limit = patience.limit(size)
    command, environment = fresh_process("hftune.hub.worker")
    body = json.dumps({**request, "action": action, "silence": patience.silence})
    try:
        # The token goes by the environment: other users can read a command line.
        code, output, errors = manner.run(command, body, {**environment, "HF_TOKEN": token}, limit)
    except subprocess.TimeoutExpired:
        return {"error": {"kind": "transient", "text": f"no end in {limit:.0f} s, ended", "wait": 0.0}}
    killed = death(code)
    if killed is not None:
        return {"error": {"kind": "other", "text": f"the upload process {killed}: {killed.hint}", "wait": 0.0}}
    lines = output.splitlines()
    if code != 0 or not lines:
        said = (errors.strip().splitlines() or ["no message"])[-1].replace(token, "[token]")
        return {"error": {"kind": "other", "text": f"exit code {code}: {said}", "wait": 0.0}}
    answer: dict[str, Any] = json.loads(lines[-1])
    return answer


def refusal(error: Mapping[str, Any], repo: str) -> HftuneError:
    """What the Hub will not do, or what we will not do, in our words."""
    if error["kind"] == "ours":
        return HftuneError(error["text"], hint=error["hint"])
    if error["kind"] == "unauthorised":
        return HftuneError("the Hub does not know your token", hint=LOG_IN)
    if error["kind"] == "forbidden":
        return HftuneError(f"your token may not write to {repo}", hint=f"name a repository of your own, or {LOG_IN}")
    if error["kind"] == "offline":
        return HftuneError("the Hub is switched off by HF_HUB_OFFLINE", hint="unset HF_HUB_OFFLINE to publish")
    if error["kind"] == "card":
        return HftuneError(
            f"the Hub does not take the model card: {error['text']}", hint="mend README.md in the model folder"
        )
    return RunFailed(f"the Hub refuses to publish {repo}: {error['text']}", hint=LATER)
