"""Errors that cross Arrow Flight: ours travel whole beside the status, Flight's own are translated."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Final

import pyarrow as pa
import pyarrow.flight as flight

from airflow_parallel_apply.pipeline.errors import ConfigurationError, ParallelApplyError, RetryableError, Unavailable
from airflow_parallel_apply.pipeline.packed_error import pack, unpack

_TLS_HINTS: Final = (
    ("CERTIFICATE_VERIFY_FAILED", "ca must name the authority that signed its certificate."),
    ("Hostname Verification", "Its certificate is for another host."),
    ("WRONG_VERSION_NUMBER", "It speaks no TLS: grpc://."),
    ("CERTIFICATE_REQUIRED", "It wants a certificate of the caller's: cert and key."),
)
"""By what gRPC's words contain."""
_AWAY: Final = "Is it up, and can this host reach it? `python -m airflow_parallel_apply.router serve` starts it."
_LINE_LIMIT: Final = 300


def to_flight(error: ParallelApplyError) -> flight.FlightError:
    """An error of ours, as a server raises it."""
    kind = flight.FlightUnavailableError if isinstance(error, RetryableError) else flight.FlightServerError
    return kind(error.message, pack(error).encode())


@contextlib.contextmanager
def flight_errors(place: str) -> Iterator[None]:
    """Turn what a call of Flight raises into an error of ours; `place` says of which router."""
    try:
        yield
    except (flight.FlightError, pa.ArrowException, OSError) as error:
        raise translated(error, place) from error


def translated(error: Exception, place: str) -> ParallelApplyError:
    """The error that whoever asked a router expects. What nobody can tell apart from a router that is away is
    `Unavailable`: asking again is harmless.
    """
    packed = getattr(error, "extra_info", None)
    if packed:
        with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError):
            return unpack(bytes(packed).decode())
    line = (str(error).splitlines() or [""])[0][:_LINE_LIMIT]
    if isinstance(error, flight.FlightUnauthenticatedError | flight.FlightUnauthorizedError):
        return ConfigurationError(
            f"the router at {place} refuses this caller",
            op="stream",
            hint="Give its token: grpcs://:token@host:port, or the password of the connection.",
        )
    if isinstance(error, NotImplementedError) or "UNIMPLEMENTED" in line:
        return ConfigurationError(f"{place} is no router of this version: {line}", op="stream")
    hint = next((text for sign, text in _TLS_HINTS if sign in str(error)), _AWAY)
    return Unavailable(f"the router at {place} cannot be reached: {line}", op="stream", hint=hint)
