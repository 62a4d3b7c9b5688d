"""The Kubernetes API as plain JSON: paged lists, creation, deletion, logs.

The official client sets up the connection: kubeconfig with credential plugins, TLS, proxies, tokens. Its models are
not used: building them takes milliseconds per object, and they drop fields that they do not know.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

from steelyard.errors import InputError, SteelyardError, printable
from steelyard.extras import install_line

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

Object = dict[str, Any]

CONNECT_S, READ_S = 10.0, 60.0
PAGE: Final = 500
MAX_PAGES: Final = 400
MAX_ANSWER_BYTES: Final = 128 << 20
MAX_ERROR_BYTES: Final = 1 << 16
CHUNK_BYTES: Final = 1 << 16
FORBIDDEN, NOT_FOUND, CONFLICT, GONE = 403, 404, 409, 410


class ApiError(SteelyardError):
    """An error status from the API."""

    def __init__(self, status: int, said: str, what: str, goes_on: str = "") -> None:
        super().__init__(f"Kubernetes refused {what}: {said} ({status})")
        self.status = status
        self.said = said
        self.goes_on = goes_on
        """Of a list whose continuation has expired: a token with which it goes on."""


class Api:
    """A connection to one platform as one user."""

    def __init__(self, context: str | None) -> None:
        self._client = _client(context)
        self._pool = self._client.rest_client.pool_manager
        self.host = str(self._client.configuration.host)

    def get(self, path: str, query: Mapping[str, object] | None = None) -> Object:
        """Get one object or answer."""
        return _read_json(self._ask("GET", path, query))

    def list(self, path: str, query: Mapping[str, object]) -> Iterator[Object]:
        """Yield all items, in pages of bounded size."""
        token = ""
        for _ in range(MAX_PAGES):
            try:
                page = self.get(path, {**query, "limit": PAGE, **({"continue": token} if token else {})})
            except ApiError as error:
                # The snapshot is gone. The new token goes on after the last item, in a newer one.
                if error.status != GONE or not error.goes_on or error.goes_on == token:
                    raise
                token = error.goes_on
                continue
            items = page.get("items")
            yield from (item for item in (items if isinstance(items, list) else []) if isinstance(item, dict))
            about = page.get("metadata")
            token = str(about.get("continue") or "") if isinstance(about, dict) else ""
            if not token:
                return
        raise SteelyardError(f"{path} has more than {MAX_PAGES * PAGE} items", next_step="use another namespace")

    def create(self, path: str, body: Object) -> bool:
        """Create an object; False if it already exists."""
        try:
            _read_json(self._ask("POST", path, None, body))
        except ApiError as error:
            if error.status != CONFLICT:
                raise
            return False
        return True

    def ask(self, path: str, body: Object, query: Mapping[str, object] | None = None) -> tuple[Object, str]:
        """Query something by creating an object that is not stored; return the answer and the API's warnings."""
        answer = self._ask("POST", path, query, body)
        warnings = printable("; ".join(answer.headers.getlist("Warning")))[:1500]
        return _read_json(answer), warnings

    def delete(self, path: str, query: Mapping[str, object] | None = None, body: Object | None = None) -> bool:
        """Delete an object; False if it does not exist, or has changed since the version in `body`."""
        options = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background", **(body or {})}
        try:
            _read_json(self._ask("DELETE", path, query, options))
        except ApiError as error:
            if error.status not in (NOT_FOUND, CONFLICT):
                raise
            return False
        return True

    def stream(
        self, path: str, query: Mapping[str, object], limit_bytes: int, read_s: float = READ_S
    ) -> Iterator[bytes]:
        """Yield the bytes of an answer as they arrive, up to a limit."""
        answer = self._ask("GET", path, query, read_s=read_s)
        left = limit_bytes
        try:
            for chunk in _read_parts(answer):
                yield chunk[:left]
                left -= len(chunk)
                if left <= 0:
                    return
        finally:
            # Unread data makes the connection useless for others.
            answer.close()

    def _ask(
        self,
        method: str,
        path: str,
        query: Mapping[str, object] | None,
        body: Object | None = None,
        read_s: float = READ_S,
    ) -> Any:
        import urllib3

        url = f"{self.host}{path}" + (f"?{urlencode(query)}" if query else "")
        headers = {"Accept": "application/json", "Content-Type": "application/json", "User-Agent": "steelyard"}
        # Each time: tokens of credential plugins live minutes.
        for entry in self._client.configuration.auth_settings().values():
            if entry.get("in") == "header" and entry.get("value"):
                headers[entry["key"]] = entry["value"]
        try:
            answer = self._pool.request(
                method,
                url,
                headers=headers,
                body=None if body is None else json.dumps(body).encode(),
                timeout=urllib3.Timeout(connect=CONNECT_S, read=read_s),
                retries=False,
                redirect=False,
                preload_content=False,
            )
        except urllib3.exceptions.HTTPError as error:
            raise SteelyardError(
                f"the Kubernetes API at {self.host} does not answer: {error}"[:1000],
                next_step="check the network and the context: kubectl config get-contexts",
            ) from None
        if answer.status >= 300:
            text = _read_whole(answer, MAX_ERROR_BYTES).decode("utf-8", "replace")
            try:
                told = json.loads(text)
                said, goes_on = told.get("message"), (told.get("metadata") or {}).get("continue")
            except (ValueError, AttributeError, RecursionError):
                said, goes_on = None, None
            said = printable(str(said or text or answer.reason))[:1500]
            what = f"{method} {path.rpartition('/namespaces/')[2] or path}"
            raise ApiError(answer.status, said, what, goes_on if isinstance(goes_on, str) else "")
        return answer


def _client(context: str | None) -> Any:
    try:
        import kubernetes
    except ImportError:
        raise InputError(
            "Kubernetes needs the package `kubernetes`, which is not installed",
            next_step=install_line("kubernetes"),
        ) from None
    # Any: the types differ between its releases.
    client: Any = kubernetes.client
    config: Any = kubernetes.config
    try:
        places = os.environ.get("KUBECONFIG") or config.KUBE_CONFIG_DEFAULT_LOCATION
        has_file = any(os.path.exists(os.path.expanduser(each)) for each in places.split(":") if each)  # noqa: PTH110, PTH111
        if context is None and "KUBERNETES_SERVICE_HOST" in os.environ and not has_file:
            configuration = client.Configuration()
            config.load_incluster_config(client_configuration=configuration)
            return client.ApiClient(configuration)
        # Explicit, because the package reads the variable only once, at import.
        return config.new_client_from_config(config_file=os.environ.get("KUBECONFIG") or None, context=context)
    except (config.ConfigException, OSError, ValueError) as error:
        raise InputError(
            f"no access to Kubernetes is set up: {error}"[:1000],
            next_step="set KUBECONFIG to a file that works with kubectl, and cluster.context to one of its contexts",
        ) from None


def _read(answer: Any, size: int) -> bytes:
    import urllib3

    try:
        data: bytes = answer.read(size)
    except urllib3.exceptions.HTTPError as error:
        raise SteelyardError(f"the answer of Kubernetes was interrupted: {error}"[:1000]) from None
    return data


def _read_parts(answer: Any) -> Iterator[bytes]:
    """Yield what has arrived, without waiting for more: the log of a running pod comes line by line."""
    import urllib3

    try:
        yield from answer.stream(CHUNK_BYTES)
    except urllib3.exceptions.HTTPError as error:
        raise SteelyardError(f"the answer of Kubernetes was interrupted: {error}"[:1000]) from None


def _read_whole(answer: Any, limit_bytes: int) -> bytes:
    parts, size = [], 0
    while chunk := _read(answer, CHUNK_BYTES):
        parts.append(chunk)
        size += len(chunk)
        if size > limit_bytes:
            answer.close()
            raise SteelyardError(f"an answer of Kubernetes has more than {limit_bytes:,} bytes")
    answer.release_conn()
    return b"".join(parts)


def _read_json(answer: Any) -> Object:
    try:
        data = json.loads(_read_whole(answer, MAX_ANSWER_BYTES))
    except (ValueError, RecursionError):
        raise SteelyardError("Kubernetes did not answer with JSON") from None
    if not isinstance(data, dict):
        raise SteelyardError("Kubernetes did not answer with a JSON object")
    return data
