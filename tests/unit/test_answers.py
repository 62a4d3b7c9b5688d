"""Answers of a Kubernetes API and of an object store that are not what they should be end in a message."""

from __future__ import annotations

import socket
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from steelyard.errors import SteelyardError
from steelyard.launch.kubernetes import api
from steelyard.launch.kubernetes.store import Key, read_object


class Answer:
    def __init__(self, text: bytes) -> None:
        self._text = text

    def read(self, size: int) -> bytes:
        text, self._text = self._text[:size], self._text[size:]
        return text

    def release_conn(self) -> None:
        pass


@pytest.mark.parametrize("text", [b"[" * 100_000, b'{"a":' * 100_000, b"[]", b"", b"9" * 5000, b"\xff"])
def test_an_answer_of_kubernetes_that_is_no_object_is_refused(text: bytes) -> None:
    with pytest.raises(SteelyardError):
        api._read_json(Answer(text))


@pytest.mark.parametrize("metadata", [[1], "x", 7, None, {"continue": 0}])
def test_a_list_of_kubernetes_without_its_metadata_ends(metadata: Any) -> None:
    pages = SimpleNamespace(get=lambda *_: {"items": [{}], "metadata": metadata})
    assert [*api.Api.list(pages, "/pods", {})] == [{}]  # type: ignore[arg-type]


@pytest.mark.parametrize("said", [b"hello\r\n\r\n", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"])
def test_an_object_store_that_does_not_speak_http_is_named(said: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            talk, _ = server.accept()
            with talk:
                talk.recv(65536)
                talk.sendall(said)

        thread = threading.Thread(target=answer)
        thread.start()
        url = f"http://127.0.0.1:{server.getsockname()[1]}/bucket/name"
        with pytest.raises(SteelyardError):
            list(read_object(url, Key("a", "b", None), "eu") or ())
        thread.join()
