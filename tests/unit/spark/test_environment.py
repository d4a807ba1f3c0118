"""The environment of the embedded server: the machine's, and nothing that is one pipeline's."""

from __future__ import annotations

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
