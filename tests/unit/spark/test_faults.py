"""Errors keep their class and their place on the way out of Spark."""

from __future__ import annotations

import pytest

from airflow_parallel_apply.pipeline.errors import (
    ConfigurationError,
    LogError,
    OwnershipLost,
    ParallelApplyError,
    TargetError,
    Unavailable,
)
from airflow_parallel_apply.pipeline.packed_error import pack, unpack
from airflow_parallel_apply.spark.faults import spark_errors


@pytest.mark.parametrize("kind", [ParallelApplyError, Unavailable, OwnershipLost, LogError, TargetError])
def test_an_error_of_ours_comes_back_as_it_was(kind):
    error = kind("what", op="stage", pipeline="p", channel=3, seqno=7, table="t", column="c", hint="do it")
    back = unpack(pack(error))
    assert type(back) is kind
    assert str(back) == str(error)


def test_an_error_of_one_room_comes_back_as_what_its_caller_acts_upon():
    class MissingThing(TargetError):
        def __init__(self, thing: str) -> None:
            super().__init__(f"no {thing}", table="t", hint="make it")

    error = MissingThing("rows")
    back = unpack(pack(error))
    assert type(back) is TargetError
    assert str(back) == str(error)


def grpc_error(code_name: str, message: str) -> Exception:
    import grpc
    from pyspark.errors.exceptions.connect import SparkConnectGrpcException

    return SparkConnectGrpcException(message, grpc_status_code=grpc.StatusCode[code_name])


def test_a_python_traceback_becomes_its_last_line():
    from pyspark.errors.exceptions.connect import PythonException

    text = (
        "\n  An exception was thrown from the Python worker. Please see the stack trace below.\n"
        "Traceback (most recent call last):\n"
        '  File "worker.py", line 1, in f\n'
        "    raise ValueError('seven')\n"
        "ValueError: seven\n\n"
        "\tat org.apache.spark.api.python.BasePythonRunner"
    )
    with (
        pytest.raises(TargetError, match="Python worker of Spark failed: ValueError: seven") as told,
        spark_errors("s"),
    ):
        raise PythonException(text)
    assert isinstance(told.value.__cause__, PythonException)
    assert "\n" not in str(told.value)


def test_a_server_that_is_gone_is_unavailable():
    with pytest.raises(Unavailable, match="Connection refused"), spark_errors("s"):
        raise grpc_error("UNAVAILABLE", '<RPC that terminated with:\n\tdetails = "Connection refused"\n>')


def test_a_server_that_was_never_there_is_said_to_be_away():
    details = "failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:15002: Connection refused"
    with pytest.raises(Unavailable, match=r"does not answer.*Is it up"), spark_errors("s"):
        raise grpc_error("UNAVAILABLE", f'<RPC that terminated with:\n\tdetails = "{details}"\n>')


def test_a_wrong_token_is_a_matter_of_configuration():
    with pytest.raises(ConfigurationError, match="token"), spark_errors("s"):
        raise grpc_error("UNAUTHENTICATED", "Invalid authentication token")


def test_a_server_without_tls_is_told_with_the_name_that_needs_none():
    with pytest.raises(ConfigurationError, match="localhost"), spark_errors("s"):
        raise grpc_error(
            "UNAVAILABLE", "ipv4:127.0.0.1:15002: Tls handshake failed (TSI_PROTOCOL_FAILURE): WRONG_VERSION_NUMBER"
        )


def test_a_missing_file_is_the_logs_error():
    with pytest.raises(LogError, match="cannot read a file of the log"), spark_errors("s"):
        raise grpc_error("INTERNAL", "[FAILED_READ_FILE.FILE_NOT_EXIST] Encountered error while reading file x")
