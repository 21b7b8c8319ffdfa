"""From the name of a peer to its session: by the name itself, or by an HTTP metadata server.

On the metadata server an engine is one key, "kvmend/engine/<name>", whose value is JSON:
{"session_id": "host:port", "incarnation": "hex"}. The keys of the original are never written; one
that is found is answered with an error that names the mismatch.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.parse
import urllib.request
from typing import NamedTuple, Protocol

from . import names
from .names import UnknownName

__all__ = ["Directory", "Found", "HttpDirectory", "NoMetadata", "PeerToPeer", "open_directory"]

HTTP_TIMEOUT = 5.0  # seconds
MAX_VALUE = 64 << 10  # bytes of an answer that are read


class NoMetadata(Exception):
    """The metadata server can't be used; the text says why."""


class Found(NamedTuple):
    """Where a peer is."""

    session_id: str
    incarnation: int  # 0: not said; the session pins the first that answers


class Directory(Protocol):
    """Any thread; `find` may block on the network."""

    def announce(self, name: str, found: Found) -> None:
        """Makes this engine known. Raises NoMetadata."""

    def withdraw(self, name: str) -> None:
        """Takes it back; never raises."""

    def find(self, name: str) -> Found:
        """Raises UnknownName (no such peer) or NoMetadata."""


class PeerToPeer:
    """P2PHANDSHAKE: names are addresses."""

    def announce(self, name: str, found: Found) -> None:
        """Nothing to do."""

    def withdraw(self, name: str) -> None:
        """Nothing to do."""

    def find(self, name: str) -> Found:
        host, port = names.split(name)
        if port == 0:
            raise UnknownName(f"{name!r} has no port; with P2PHANDSHAKE peers are host:port")
        return Found(names.join(names.resolve(host), port), 0)


class HttpDirectory:
    """The metadata server that comes with the original (GET, PUT, DELETE with ?key=)."""

    def __init__(self, url: str) -> None:
        self._url = url

    def announce(self, name: str, found: Found) -> None:
        value = {"session_id": found.session_id, "incarnation": f"{found.incarnation:016x}"}
        self._request("PUT", _key(name), json.dumps(value).encode())

    def withdraw(self, name: str) -> None:
        try:
            self._request("DELETE", _key(name))
        except NoMetadata:
            pass  # it goes stale; the incarnation in it protects whoever reads it

    def find(self, name: str) -> Found:
        value = self._request("GET", _key(name))
        if value is None:
            if self._request("GET", f"mooncake/rpc_meta/{name}") is not None:
                raise UnknownName(
                    f"{name!r} is a Mooncake engine, which kvmend can't talk to: "
                    "run it with `python -m kvmend.exec`, or this side without"
                )
            raise UnknownName(f"{name!r} isn't known to {self._url}")
        try:
            entry = json.loads(value)
            host, port = names.split(entry["session_id"])
            found = Found(names.join(names.resolve(host), port), int(entry["incarnation"], 16))
        except (ValueError, TypeError, KeyError, AttributeError, UnknownName) as error:
            raise NoMetadata(f"{self._url} has nonsense about {name!r}: {error}") from None
        if port == 0 or not 0 < found.incarnation < 2**64:
            raise NoMetadata(f"{self._url} has nonsense about {name!r}: {entry}")
        return found

    def _request(self, method: str, key: str, body: bytes | None = None) -> bytes | None:
        url = f"{self._url}?{urllib.parse.urlencode({'key': key})}"
        try:
            request = urllib.request.Request(url, data=body, method=method)
            with urllib.request.urlopen(request, timeout=HTTP_TIMEOUT) as response:
                return bytes(response.read(MAX_VALUE))
        except urllib.error.HTTPError as error:
            if error.code == 404 and method != "PUT":
                return None
            raise NoMetadata(f"{method} {url}: {error}") from None
        except (OSError, ValueError) as error:  # URLError is an OSError
            raise NoMetadata(f"{method} {url}: {error}") from None


def _key(name: str) -> str:
    return f"kvmend/engine/{name}"


def open_directory(metadata: str, kind: str = "") -> Directory:
    """The directory of a metadata argument. Raises NoMetadata for one that isn't offered."""
    if metadata == "P2PHANDSHAKE":
        return PeerToPeer()
    scheme, separator, rest = metadata.partition("://")
    if not separator:
        scheme, rest = kind or "etcd", metadata
    if scheme in ("http", "https") and rest:
        return HttpDirectory(f"{scheme}://{rest}")
    raise NoMetadata(
        f"metadata {metadata!r}: {scheme}:// isn't offered yet; "
        "there are P2PHANDSHAKE and http://host:port/metadata"
    )
