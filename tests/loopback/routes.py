"""The table of the loopback hub's paths, and the step from a request to its route.

tests/loopback_hub.py calls `answer` for every request, under one lock.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from urllib.parse import parse_qs, urlsplit

from . import download, upload
from .call import Addresses, Call, RefusedError, Reply
from .faults import Request
from .store import Store, User

Route = Callable[[Call], Reply]

_ACTIONS = "revision|tree|refs|commits|paths-info|preupload|commit|branch|auth-check"
# An id has two parts, or one as roberta-base has; what comes after it must not be taken for its second part.
_REPO = rf"(?P<repo>[^/]+(?:/(?!(?:{_ACTIONS}|resolve)(?:/|$))[^/]+)?)"
_API = rf"/api/(?P<kind>models|datasets|spaces)/{_REPO}"
_WEB = rf"/(?:(?P<kind>datasets|spaces)/)?{_REPO}"
_AT = r"/(?P<revision>[^/]+)"

HUB: list[tuple[str, str, Route]] = [
    ("GET", r"/api/whoami-v2", download.whoami),
    ("POST", r"/api/validate-yaml", upload.validate_yaml),
    ("POST", r"/api/repos/create", upload.create_repo),
    ("GET", _API, download.repo_info),
    ("GET", rf"{_API}/revision{_AT}", download.repo_info),
    ("GET", rf"{_API}/tree{_AT}(?:/(?P<rest>.+))?", download.tree),
    ("GET", rf"{_API}/refs", download.refs),
    ("GET", rf"{_API}/commits{_AT}", download.commits),
    ("GET", rf"{_API}/auth-check(?:{_AT})?", download.auth_check),
    ("POST", rf"{_API}/paths-info{_AT}", download.paths_info),
    ("POST", rf"{_API}/branch{_AT}", upload.create_branch),
    ("POST", rf"{_API}/preupload{_AT}", upload.preupload),
    ("POST", rf"{_API}/commit{_AT}", upload.commit),
    ("POST", rf"{_WEB}\.git/info/lfs/objects/batch", upload.lfs_batch),
    ("POST", rf"{_WEB}\.git/info/lfs/objects/verify", upload.lfs_verify),
    ("GET", rf"{_WEB}/resolve{_AT}/(?P<path>.+)", download.resolve),
]
STORAGE: list[tuple[str, str, Route]] = [
    ("PUT", r"/objects/(?P<oid>[0-9a-f]{64})", upload.put_object),
    ("GET", r"/objects/(?P<oid>[0-9a-f]{64})", upload.get_object),
]


def _user(store: Store, request: Request) -> User | None:
    """Whose token came with the request."""
    authorization = request.headers.get("authorization")
    if authorization is None:
        return None
    user = store.users.get(authorization.removeprefix("Bearer "))
    if user is None:
        raise RefusedError(401, "Invalid credentials in Authorization header")
    return user


def _check_signature(addresses: Addresses, request: Request, query: dict[str, list[str]]) -> None:
    if "authorization" in request.headers:  # S3 refuses it as well: a token has no business at a signed address
        raise RefusedError(400, "Only one auth mechanism allowed: a signed address takes no Authorization header")
    if query.get("X-Amz-Signature") != [addresses.signature]:
        raise RefusedError(403, "SignatureDoesNotMatch")


def answer(store: Store, addresses: Addresses, request: Request) -> Reply | None:
    """The answer to one request, refusals included; None where the hub has no such route."""
    target = urlsplit(request.path)
    query = parse_qs(target.query, keep_blank_values=True)
    method = "GET" if request.method == "HEAD" else request.method
    for wanted, pattern, route in HUB if request.origin == "hub" else STORAGE:
        match = re.fullmatch(pattern, target.path)
        if wanted != method or match is None:
            continue
        named = {name: value for name, value in match.groupdict().items() if value is not None}
        try:
            if request.origin == "storage":
                _check_signature(addresses, request, query)
                return route(Call(store, addresses, request, query, named, None))
            return route(Call(store, addresses, request, query, named, _user(store, request)))
        except RefusedError as refusal:
            return refusal.reply
    return None
