"""Schema ids for Confluent's wire format: a schema registry gives one for each schema, the same one every time, and the
schema for each id.
"""

from __future__ import annotations

import base64
import json
from typing import Any, Final
from urllib.error import HTTPError, URLError
from urllib.parse import quote, unquote, urlsplit, urlunsplit
from urllib.request import Request, urlopen

from airflow_parallel_apply.pipeline.errors import ConfigurationError, TargetError, Unavailable

_SECONDS: Final = 10
_UNPROCESSABLE: Final = (409, 422)


def registered_schema_id(registry: str, subject: str, schema: dict[str, Any]) -> int:
    """Register a schema under a subject, where it is not there yet; its id. Errors: `TargetError` where the registry
    refuses it, as incompatible with the one before; `ConfigurationError`; `Unavailable`.
    """
    body = json.dumps({"schema": json.dumps(schema)}).encode()
    path = f"subjects/{quote(subject, safe='')}/versions"
    return int(_asked(registry, path, body, about=f"the schema of {subject}", word="id"))


def registered_schema(registry: str, schema_id: int) -> dict[str, Any]:
    """The schema that an id stands for. Errors: as above."""
    found: dict[str, Any] = json.loads(
        _asked(registry, f"schemas/ids/{schema_id}", None, about=f"the schema id {schema_id}", word="schema")
    )
    return found


def _asked(registry: str, path: str, body: bytes | None, *, about: str, word: str) -> Any:
    """The value that the registry's answer has under a word; with a body it is a POST."""
    parts = urlsplit(registry)
    login, _, host = parts.netloc.rpartition("@")
    url = urlunsplit((parts.scheme, host, f"{parts.path.rstrip('/')}/{path}", "", ""))
    if parts.scheme not in ("http", "https"):
        raise ConfigurationError(f"the schema registry's URL has the scheme {parts.scheme!r}", hint="Use https://.")
    headers = {"Content-Type": "application/vnd.schemaregistry.v1+json"}
    if login:
        headers["Authorization"] = "Basic " + base64.b64encode(unquote(login).encode()).decode()
    try:
        with urlopen(Request(url, body, headers), timeout=_SECONDS) as answer:  # noqa: S310  # its scheme was looked at
            return json.load(answer)[word]
    except HTTPError as error:
        text = " ".join(error.read().decode(errors="replace").split())
        if error.code in _UNPROCESSABLE:
            raise TargetError(f"the schema registry refuses {about}: {text}", op="encode") from error
        if error.code < 500:
            raise ConfigurationError(f"the schema registry answers {error.code}: {text}", op="encode") from error
        raise Unavailable(f"the schema registry answers {error.code}: {text}", op="encode") from error
    except (ValueError, LookupError, TypeError) as error:
        raise Unavailable(
            f"what answers for the schema registry about {about} is no registry",
            op="encode",
            hint="Is a page or a gateway before it? Name the registry itself in the connection.",
        ) from error
    except (URLError, OSError) as error:
        raise Unavailable(f"the schema registry cannot be reached: {error}", op="encode") from error
