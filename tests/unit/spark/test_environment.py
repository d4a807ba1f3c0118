"""The environment of the embedded server, the machine's, and of a driver: nothing that is one pipeline's."""

from __future__ import annotations

import pytest

from airflow_parallel_apply.spark.submitted.process import _environment
from airflow_parallel_apply.spark.supervisor import passed_on


def test_workers_have_the_machine_s_rights_to_buckets_and_no_connections() -> None:
    machine = {
        "AWS_ROLE_ARN": "arn:aws:iam::1:role/lanes",
        "AWS_WEB_IDENTITY_TOKEN_FILE": "/var/run/token",
        "AWS_REGION": "eu-west-1",
        "GOOGLE_APPLICATION_CREDENTIALS": "/etc/google.json",
        "SSL_CERT_FILE": "/etc/ca.pem",
        "PGSSLROOTCERT": "/etc/pg.pem",
        "PATH": "/usr/bin",
    }
    others = {"AIRFLOW_CONN_SHOP": "postgresql://u:secret@h/db", "SECRET": "x", "PARALLEL_APPLY_TOKEN": "y"}
    assert passed_on(machine | others) == machine


@pytest.mark.parametrize("name", ["AIRFLOW_CONN_SHOP", "PARALLEL_APPLY_LEDGER", "PARALLEL_APPLY_ROUTER"])
def test_a_driver_has_no_connection_of_its_starter(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "postgresql://u:secret@h/db")
    assert name not in _environment()
