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

    def __init__(self, status: int, said: str, what: str) -> None:
        super().__init__(f"Kubernetes refused {what}: {said} ({status})")
        self.status = status
        self.said = said


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
            page = self.get(path, {**query, "limit": PAGE, **({"continue": token} if token else {})})
            items = page.get("items")
            yield from (item for item in (items if isinstance(items, list) else []) if isinstance(item, dict))
            token = (page.get("metadata") or {}).get("continue") or ""
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

    def ask(self, path: str, body: Object) -> Object:
        """Query something by creating an object, such as an access review."""
        return _read_json(self._ask("POST", path, None, body))

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

    def stream(self, path: str, query: Mapping[str, object], limit_bytes: int) -> Iterator[bytes]:
        """Yield the bytes of an answer as they arrive, up to a limit."""
        answer = self._ask("GET", path, query)
        left = limit_bytes
        try:
            while left > 0 and (chunk := _read(answer, min(CHUNK_BYTES, left))):
                left -= len(chunk)
                yield chunk
        finally:
            # Unread data makes the connection useless for others.
            answer.close()

    def _ask(self, method: str, path: str, query: Mapping[str, object] | None, body: Object | None = None) -> Any:
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
                timeout=urllib3.Timeout(connect=CONNECT_S, read=READ_S),
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
                said = json.loads(text).get("message")
            except (ValueError, AttributeError):
                said = None
            said = printable(str(said or text or answer.reason))[:1500]
            raise ApiError(answer.status, said, f"{method} {path.rpartition('/namespaces/')[2] or path}")
        return answer


def _client(context: str | None) -> Any:
    try:
        import kubernetes
    except ImportError:
        raise InputError(
            "Kubernetes needs the package `kubernetes`, which is not installed",
            next_step="pip install 'steelyard[kubernetes]'",
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
    except ValueError:
        raise SteelyardError("Kubernetes did not answer with JSON") from None
    if not isinstance(data, dict):
        raise SteelyardError("Kubernetes did not answer with a JSON object")
    return data
