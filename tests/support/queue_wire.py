"""Calls of the queue's service by somebody who writes the bytes themselves."""

from __future__ import annotations

from typing import Any

import grpc
import pytest

from airflow_parallel_apply.queue.client.calls import REPLIES, path_of


def raw(url: str, method: str, content: bytes, **options: Any) -> Any:
    """The reply, or gRPC's error."""
    with grpc.insecure_channel(url.removeprefix("grpc://")) as channel:
        make = channel.unary_stream if method == "Tasks" else channel.unary_unary
        call = make(path_of(method), request_serializer=bytes, response_deserializer=REPLIES[method].FromString)
        reply = call(content, timeout=120, **options)
        return list(reply) if method == "Tasks" else reply


def refusal(url: str, method: str, content: bytes, **options: Any) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.RpcError) as refused:
        raw(url, method, content, **options)
    return refused.value.code(), refused.value.details()
