"""Small JSON files that carry their own checksum: a log's identity, its manifests, its readers' entries.

A file is `{"checksum":"<32 hex digits>","body":<body>}`; the checksum is xxh3_128 of the body's bytes.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import xxhash

from airflow_parallel_apply.pipeline.errors import LogError
from airflow_parallel_apply.pipeline.log.directory import RESTORE, file_errors

_HEAD: Final = b'{"checksum":"'
_MIDDLE: Final = b'","body":'
_TAIL: Final = b"}\n"
_BODY_START: Final = len(_HEAD) + 32 + len(_MIDDLE)


def checked_bytes(body: dict[str, Any]) -> bytes:
    """JSON that carries its own checksum."""
    content = json.dumps(body, separators=(",", ":")).encode()
    return _HEAD + xxhash.xxh3_128_hexdigest(content).encode() + _MIDDLE + content + _TAIL


def read_checked(path: Path) -> dict[str, Any]:
    """Inverse of `checked_bytes`. `LogError` that names the file when it is missing or has changed."""
    with file_errors(path):
        content = path.read_bytes()
    return checked_body(content, str(path))


def checked_body(content: bytes, place: str) -> dict[str, Any]:
    """Inverse of `checked_bytes`. `LogError` that names where the content is from when it has changed."""
    body = content[_BODY_START : -len(_TAIL)]
    if content != _HEAD + xxhash.xxh3_128_hexdigest(body).encode() + _MIDDLE + body + _TAIL:
        raise LogError(f"{place} does not match its checksum", hint=RESTORE)
    decoded: dict[str, Any] = json.loads(body)
    return decoded
