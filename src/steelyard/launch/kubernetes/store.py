"""An object store for results: addresses that allow one request without a key, signed with AWS Signature Version 4.

Only the standard library is used. The key stays with the person who submits; it is read from the environment and never
written anywhere.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import hmac
import os
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from http.client import HTTPException
from typing import TYPE_CHECKING, Final
from urllib.parse import quote, urlsplit

from steelyard.errors import InputError, SteelyardError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

LONGEST_S: Final = 604_800
"""A signed address is valid for seven days at most."""
READ_ADDRESS_S: Final = 900
ALGORITHM: Final = "AWS4-HMAC-SHA256"
UNSIGNED: Final = "UNSIGNED-PAYLOAD"
ANSWER_S: Final = 60.0
CHUNK_BYTES: Final = 1 << 20
MAX_OBJECT_BYTES: Final = 5_000_000_000
NOT_FOUND: Final = 404


@dataclass(frozen=True)
class Key:
    """A key of the object store."""

    name: str
    secret: str = field(repr=False)
    session: str | None = field(default=None, repr=False)
    """Token of a temporary key, with which its addresses expire."""


def key_from_environment() -> Key:
    """Return the key that the usual variables hold."""
    name, secret = os.environ.get("AWS_ACCESS_KEY_ID"), os.environ.get("AWS_SECRET_ACCESS_KEY")
    if not name or not secret:
        raise InputError(
            "no key for the object store: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY are not set",
            next_step="export both, for submission and for collection; pods never get them",
        )
    return Key(name, secret, os.environ.get("AWS_SESSION_TOKEN") or None)


@dataclass(frozen=True)
class SignedRequest:
    """What is signed of a request."""

    method: str
    path: str
    """Not encoded."""
    query: Mapping[str, str]
    headers: Mapping[str, str]
    """Names in lower case."""
    payload: str = UNSIGNED
    """SHA-256 of the body, or that it is not signed."""


def sign(request: SignedRequest, key: Key, region: str, at: dt.datetime, service: str = "s3") -> str:
    """Return the signature of a request."""
    signed = ";".join(sorted(request.headers))
    query = "&".join(f"{quote(name, safe='')}={quote(value, safe='')}" for name, value in sorted(request.query.items()))
    headers = "".join(f"{name}:{' '.join(value.split())}\n" for name, value in sorted(request.headers.items()))
    canonical = "\n".join((request.method, quote(request.path, safe="/~"), query, headers, signed, request.payload))
    day = at.strftime("%Y%m%d")
    scope = f"{day}/{region}/{service}/aws4_request"
    digest = hashlib.sha256(canonical.encode()).hexdigest()
    text = "\n".join((ALGORITHM, at.strftime("%Y%m%dT%H%M%SZ"), scope, digest))
    secret = f"AWS4{key.secret}".encode()
    for part in (day, region, service, "aws4_request"):
        secret = hmac.digest(secret, part.encode(), "sha256")
    return hmac.new(secret, text.encode(), "sha256").hexdigest()


def presign(method: str, url: str, key: Key, region: str, at: dt.datetime, valid_s: int) -> str:
    """Return the address that allows one kind of request for an object until it expires."""
    parts = urlsplit(url)
    scope = f"{at.strftime('%Y%m%d')}/{region}/s3/aws4_request"
    query = {
        "X-Amz-Algorithm": ALGORITHM,
        "X-Amz-Credential": f"{key.name}/{scope}",
        "X-Amz-Date": at.strftime("%Y%m%dT%H%M%SZ"),
        "X-Amz-Expires": str(min(valid_s, LONGEST_S)),
        "X-Amz-SignedHeaders": "host",
    }
    if key.session is not None:
        query["X-Amz-Security-Token"] = key.session
    signature = sign(SignedRequest(method, parts.path, query, {"host": parts.netloc}), key, region, at)
    pairs = [*sorted(query.items()), ("X-Amz-Signature", signature)]
    told = "&".join(f"{quote(name, safe='')}={quote(value, safe='')}" for name, value in pairs)
    return f"{parts.scheme}://{parts.netloc}{quote(parts.path, safe='/~')}?{told}"


def read_object(url: str, key: Key, region: str) -> Iterator[bytes] | None:
    """Return the bytes of an object as they arrive; None if there is none."""
    address = presign("GET", url, key, region, dt.datetime.now(dt.UTC), READ_ADDRESS_S)
    try:
        answer = urllib.request.urlopen(address, timeout=ANSWER_S)  # noqa: S310 -- the site's own store
    except urllib.error.HTTPError as error:
        if error.code == NOT_FOUND:
            return None
        raise SteelyardError(f"the object store answers {error.code} {error.reason} for {url}") from None
    except (OSError, HTTPException) as error:
        raise SteelyardError(f"the object store at {urlsplit(url).netloc} does not answer: {error}") from None

    def chunks() -> Iterator[bytes]:
        left = MAX_OBJECT_BYTES
        with answer:
            try:
                while left > 0 and (chunk := answer.read(min(CHUNK_BYTES, left))):
                    left -= len(chunk)
                    yield chunk
            except (OSError, HTTPException) as error:
                raise SteelyardError(f"the answer of the object store was interrupted: {error}") from None

    return chunks()
