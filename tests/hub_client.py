"""A client of the loopback hub that has imported everything once: each command is a fork of it.

Importing torch and transformers takes longer than what a test asks for. What is forked has done nothing yet, so that
it is as good as a new process; saved models are proven from a standing process, as in a study.

    with Client(hub, home) as client:
        done = client.hftune("push", "run", "tester/x", token=hub.token)
        assert done.returncode == 0, done.stderr
        seen = client.python("print(json.dumps(1))").stdout

Run as a module it is the process that forks.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any

from loopback_hub import LoopbackHub

ROOT = Path(__file__).parent.parent


class Client:
    """One process with the caches of one home; several clients stand for several people.

    Attributes:
        home: the folder in which commands run that name no other.
        caches: where the libraries keep what they fetch.
    """

    def __init__(self, hub: LoopbackHub, home: Path) -> None:
        self.hub, self.home = hub, home
        self.caches = home

    def __enter__(self) -> Client:
        path = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
        extra = {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "HFTUNE_CACHE": str(self.caches / "cache")}
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "hub_client"],
            cwd=self.caches,
            env=self.hub.environment(self.caches) | extra,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Nothing is left to do: at its end Python would take torch apart, which takes long.
        self._process.kill()
        self._process.communicate()

    def hftune(
        self, *arguments: str, token: str | None = None, cwd: Path | None = None, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        """The command line."""
        return self._ask({"arguments": list(arguments)}, token, cwd, environment)

    def python(
        self, source: str, *, token: str | None = None, cwd: Path | None = None, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        """Lines of Python."""
        return self._ask({"source": source}, token, cwd, environment)

    def _ask(
        self, what: dict[str, Any], token: str | None, cwd: Path | None, environment: dict[str, str]
    ) -> subprocess.CompletedProcess[str]:
        assert self._process.stdin is not None and self._process.stdout is not None
        known = environment if token is None else {**environment, "HF_TOKEN": token}
        request = {**what, "environment": known, "cwd": str(cwd or self.home)}
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, "the client has ended"
        return subprocess.CompletedProcess(**json.loads(answer))


def carry_out(request: dict[str, Any], streams: list[int]) -> None:
    """In the fork: what was asked for, and the exit code that a process of its own would have."""
    os.dup2(streams[0], 1)
    os.dup2(streams[1], 2)
    os.chdir(request["cwd"])
    os.environ.update(request["environment"])
    code = 0
    try:
        if "source" in request:
            exec(compile(request["source"], "<test>", "exec"), {"__name__": "__main__"})
        else:
            from hftune.cli import main

            sys.argv = ["hftune", *request["arguments"]]
            main(request["arguments"])
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1 if end.code else 0
    except BaseException:
        import traceback

        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def serve_forks() -> None:
    """Import, then fork once for each line."""
    import tempfile

    import forks_preload  # noqa: F401

    from hftune.pipeline.verify import verification_server

    with verification_server():
        for line in sys.stdin:
            with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
                child = os.fork()
                if child == 0:
                    carry_out(json.loads(line), [output.fileno(), errors.fileno()])
                code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
                shown = []
                for stream in (output, errors):
                    stream.seek(0)
                    shown.append(stream.read().decode("utf-8", errors="replace"))
            answer = {"args": [], "returncode": code, "stdout": shown[0], "stderr": shown[1]}
            print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    serve_forks()
