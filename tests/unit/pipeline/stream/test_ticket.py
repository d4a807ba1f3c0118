"""A ticket says the same on both sides, and what is none is refused."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_parallel_apply.pipeline.errors import ConfigurationError
from airflow_parallel_apply.pipeline.partition.routing import Routing
from airflow_parallel_apply.pipeline.stream.address import log_address, log_at_router, router_address
from airflow_parallel_apply.pipeline.stream.ticket import Ticket, TicketKind
from tests.support.partitioner_cases import ROUTINGS

SEQNOS = st.integers(-1, 2**62)
PLAIN = Ticket(log="orders", after_seqno=-1, last_seqno=9)


@st.composite
def tickets(draw: st.DrawFn) -> Ticket:
    routing = draw(st.one_of(st.none(), st.sampled_from(list(ROUTINGS.values()))))
    return Ticket(
        log=draw(st.text(min_size=1)),
        after_seqno=draw(SEQNOS),
        last_seqno=draw(SEQNOS),
        log_id=draw(st.text()),
        kind=draw(st.sampled_from(TicketKind)),
        pipeline=draw(st.text()),
        routing=routing,
        channel=None if routing is None else draw(st.integers(0, routing.channels - 1)),
        buckets=draw(st.one_of(st.none(), st.tuples(st.integers(0, 1023), st.integers(0, 1023)))),
        columns=draw(st.one_of(st.none(), st.lists(st.sampled_from(["seqno", "key"])).map(tuple))),
        in_order=draw(st.booleans()),
        after_fragno=draw(st.one_of(st.none(), SEQNOS)),
    )


@given(tickets())
def test_a_ticket_is_read_back_as_it_was(ticket: Ticket) -> None:
    assert Ticket.from_bytes(ticket.to_bytes()) == ticket


DOCUMENTS = st.recursive(st.none() | st.integers() | st.text(), st.lists).map(json.dumps).map(str.encode)


@given(st.binary() | DOCUMENTS)
def test_what_is_no_ticket_is_refused(content: bytes) -> None:
    with pytest.raises(ConfigurationError, match="not a ticket of this version"):
        Ticket.from_bytes(content)


@pytest.mark.parametrize("name", Ticket.__slots__)
@pytest.mark.parametrize("value", [{}, [1], 2**70, 1.5])
def test_a_ticket_with_a_field_of_another_type_is_refused(name: str, value: object) -> None:
    body = {**json.loads(PLAIN.to_bytes()), name: value}
    with pytest.raises(ConfigurationError, match="not a ticket"):
        Ticket.from_bytes(json.dumps(body).encode())


def test_a_ticket_of_another_version_says_what_to_do() -> None:
    with pytest.raises(ConfigurationError, match=r"version is 7.*same release"):
        Ticket.from_bytes(PLAIN.to_bytes().replace(b'"version":1', b'"version":7'))


def test_a_channel_goes_with_its_routing() -> None:
    for wrong in ({"channel": 0}, {"routing": Routing(channels=2)}, {"routing": Routing(channels=2), "channel": 2}):
        with pytest.raises(ConfigurationError, match="ticket names"):
            replace(PLAIN, **wrong)


def test_the_url_of_a_log_names_host_port_and_log() -> None:
    found = log_address("grpcs://:a%20token@router:7413/orders?ca=/ca.pem")
    assert (found.target, found.path, found.token) == ("router:7413", "orders", "a token")
    assert found.place == "grpcs://router:7413/orders"
    assert "a token" not in repr(found)
    assert log_address(found.url(with_token=True)) == found
    assert log_address(found.url(with_token=False)) == replace(found, token=None)
    assert router_address(found.url(with_token=True, with_path=False)) == replace(found, path="")


def test_a_log_of_the_routers_connection_has_its_token_and_any_other_log_its_own() -> None:
    router = "grpcs://:secret@router:7413?ca=/ca.pem"
    assert log_at_router("grpcs://router:7413/orders", router) == "grpcs://:secret@router:7413/orders?ca=/ca.pem"
    for other in (
        "/srv/log",
        "grpcs://other:7413/orders",
        "grpcs://:own@router:7413/orders",
        "grpcs://router:7413/a?ca=/b",
    ):
        assert log_at_router(other, router) == other


@pytest.mark.parametrize(
    ("url", "what"),
    [
        ("grpc://:secret@router:7413/orders", "token and rows would be open to the network"),
        ("grpcs://:secret@router:7413", "not complete"),
        ("grpcs://:secret@router/orders", "not complete"),
        ("grpc://:secret@127.0.0.1:7413/orders?ca=/ca.pem", "for grpcs"),
        ("grpcs://:secret@router:7413/orders?cert=/c.pem", "needs its key"),
        ("grpcs://:secret@router:port/orders", "cannot be read"),
    ],
)
def test_an_url_that_cannot_be_used_is_refused_without_its_token(url: str, what: str) -> None:
    with pytest.raises(ConfigurationError, match=what) as refused:
        log_address(url)
    assert "secret" not in str(refused.value)
    with pytest.raises(ConfigurationError):
        router_address("grpc://127.0.0.1:7413/orders")
