"""Checks the target's tables whatever their columns: privileges, and what acts on applied rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from psycopg.rows import dict_row

from airflow_parallel_apply.pipeline.model.change import Relation
from airflow_parallel_apply.pipeline.model.finding import Finding, Severity, Side, command_line, new_finding
from airflow_parallel_apply.pipeline.model.reference import Reference
from airflow_parallel_apply.pipeline.target.postgres.catalog.tables import TargetTable, find_tables
from airflow_parallel_apply.pipeline.target.postgres.catalog.unfit import computing
from airflow_parallel_apply.pipeline.target.postgres.diagnosis.guards import keeping_references
from airflow_parallel_apply.pipeline.target.postgres.redefine.expressions import OTHERWISE, computed_otherwise
from airflow_parallel_apply.pipeline.target.postgres.replica_role import may_be_replica, replica_grant
from airflow_parallel_apply.pipeline.target.postgres.session import Connection, Session
from airflow_parallel_apply.pipeline.target.postgres.statements import statement
from airflow_parallel_apply.postgres.acting_references import acting_references
from airflow_parallel_apply.postgres.arrays import named
from airflow_parallel_apply.postgres.quoting import quoted

_AS_OWNER: Final = "As its owner."


def standing_findings(connection: Connection, relations: Sequence[Relation]) -> tuple[Finding, ...]:
    """Check tables whose columns DDL on its way may change. Missing tables are left out."""
    (role,) = connection.execute("SELECT current_user").fetchone() or ("",)
    tables = [table for table in find_tables(connection, relations) if table is not None]
    return (*privilege_findings(connection, tables, role), *guard_findings(connection, tables, role))


def privilege_findings(connection: Connection, tables: Sequence[TargetTable], role: str) -> Iterator[Finding]:
    """Find what the role may not do with the tables."""
    oids = [table.oid for table in tables]
    rows = connection.execute(statement("tables", "missing_privileges"), {"oids": oids})
    missing: dict[int, list[str]] = {}
    for number, privilege in rows:
        missing.setdefault(number, []).append(privilege)
    for number, privileges in missing.items():
        table, names = tables[number], ", ".join(privileges)
        yield about(
            table.relation,
            f"{table.relation.name}: the role has no privilege {names}",
            f"GRANT {names} ON TABLE {table_name(table)} TO {quoted(role)}",
            note="As the tables' owner.",
        )


def nested_findings(connection: Connection, session: Session, tables: Sequence[tuple[str, str]]) -> Iterator[Finding]:
    """Find those of these tables (schema, name) that are partitions of another of them here, which would then hold the
    rows of both.
    """
    for schema, table, root_schema, root in connection.execute(statement("check", "nested"), named(tables)).fetchall():
        recopy = command_line("recopy", [f"{root_schema}.{root}", f"{schema}.{table}"], session.pipeline)
        yield new_finding(
            Side.TARGET,
            f"{schema}.{table}",
            f"{schema}.{table} is a partition of {root_schema}.{root} at the target, and both are followed",
            f"ALTER TABLE {quoted(root_schema, root)} DETACH PARTITION {quoted(schema, table)}",
            note=f"At the source it is a table of its own. Then run `{recopy}`, since rows of the one may lie in the "
            "other.",
        )


def apart_findings(connection: Connection, session: Session, tables: Sequence[tuple[str, str]]) -> Iterator[Finding]:
    """Find those of these tables (schema, name) whose rows may be lost or kept while the positions are not."""
    values = named(dict.fromkeys(tables))
    for name, schema, table, parent in connection.execute(statement("check", "apart"), values).fetchall():
        recopy = f"`{command_line('recopy', [name], session.pipeline)}`"
        if parent is not None:
            yield new_finding(
                Side.TARGET,
                name,
                f"the partition {schema}.{table} of {name} is a foreign table: its rows and the positions are not "
                "committed together",
                f"ALTER TABLE {parent} DETACH PARTITION {quoted(schema, table)}",
                note=f"Then make an ordinary partition for its rows and run {recopy}: rows of {name} may lie there.",
            )
            continue
        part = "" if name == f"{schema}.{table}" else f"the partition {schema}.{table} of "
        yield new_finding(
            Side.TARGET,
            name,
            f"{part}{name} is unlogged: a crash of the target would empty it, and its positions would stay",
            f"ALTER TABLE {quoted(schema, table)} SET LOGGED",
            note=f"If the server has crashed since rows were applied, they are gone: then {recopy}.",
        )


def schema_findings(connection: Connection, tables: Sequence[tuple[str, str]], *, alters: bool) -> Iterator[Finding]:
    """Schemas of these tables (schema, name) that the role may not use; with `alters`, also those in which it could
    not give a table its new name.
    """
    names = sorted({schema for schema, _ in tables})
    cursor = connection.cursor(row_factory=dict_row)
    for row in cursor.execute(statement("check", "schemas"), {"schemas": names}).fetchall():
        schema, role = quoted(row["name"]), quoted(row["role"])
        where = f"schema of tables {row['name']}"
        if not row["can_use"]:
            yield new_finding(
                Side.TARGET,
                where,
                f"role {row['role']} may not use the schema {row['name']}",
                f"GRANT USAGE ON SCHEMA {schema} TO {role}",
                note=_AS_OWNER,
            )
        if alters and not row["can_create"]:
            on = f"SCHEMA {schema}" if row["is_there"] else f"DATABASE {quoted(row['database'])}"
            what = f"create tables in the schema {row['name']}" if row["is_there"] else f"make the schema {row['name']}"
            yield new_finding(
                Side.TARGET,
                where,
                f"role {row['role']} may not {what}, as it has to for a table that is renamed or moved there",
                f"GRANT CREATE ON {on} TO {role}",
                severity=Severity.WARNING,
                note=_AS_OWNER,
            )


def guard_findings(connection: Connection, tables: Sequence[TargetTable], role: str) -> Iterator[Finding]:
    """Row security, triggers, rules, and foreign keys where the role may not apply as a replica does."""
    as_replica = may_be_replica(connection)
    cursor = connection.cursor(row_factory=dict_row)
    cursor.execute(statement("check", "guards"), {"oids": [table.oid for table in tables]})
    grant = replica_grant(role)
    for row in cursor.fetchall():
        table = tables[row["index"]]
        name = table.relation.name
        if as_replica and table.references_act_as_replica:
            keys, commands = keeping_references(connection, table)
            yield about(
                table.relation,
                f"{name} has foreign keys ({keys}) that refer to it and act on applied rows, too",
                *commands,
                note="As a superuser. They were enabled for replicas, as by ENABLE ALWAYS TRIGGER ALL.",
            )
        if row["row_security"]:
            yield about(
                table.relation,
                f"{name} has row security, which hides or refuses rows for role {role}",
                f"ALTER ROLE {quoted(role)} BYPASSRLS",
                note="As a superuser.",
            )
        watching = [*row["triggers"], *row["rules"], *row["foreign_keys"]]
        if watching and not as_replica:
            yield about(
                table.relation,
                f"{name} has triggers, rules or foreign keys ({', '.join(watching)}), and role {role} may not set "
                "session_replication_role: they act on applied rows, too",
                grant,
                severity=Severity.WARNING,
                note="As a superuser.",
            )
        always = [("trigger", each) for each in row["always_triggers"]] + [
            ("rule", each) for each in row["always_rules"]
        ]
        for kind, each in always:
            yield about(
                table.relation,
                f"{name} has the {kind} {each}, which acts on applied rows, too",
                f"ALTER TABLE {table_name(table)} ENABLE {kind.upper()} {quoted(each)}",
                severity=Severity.WARNING,
                note="It may stay if it leaves the source's columns as they are; otherwise a run stops.",
            )


def computation_findings(connection: Connection, tables: Sequence[TargetTable]) -> Iterator[Finding]:
    """Columns that the source computes, and the target lacks, or computes by another expression."""
    version = connection.info.server_version
    for table in tables:
        for name in table.lacking_computed:
            yield about(
                table.relation,
                f"{table.relation.name} lacks the column {name}, which the source computes and does not send",
                *computing(table, name, version),
                column=name,
            )
    for column in computed_otherwise(connection, tables):
        yield about(
            column.relation,
            f"{column.relation.name}, column {column.name}: {OTHERWISE}: {column.difference}",
            column.fix(connection),
            column=column.name,
            note=column.at_source,
        )


def reference_findings(
    connection: Connection, relations: Sequence[Relation], references: Sequence[Reference]
) -> Iterator[Finding]:
    """Find foreign keys between these tables that act on applied rows, and do what none of the source's does."""
    if may_be_replica(connection):
        return
    followed = {(relation.schema, relation.table) for relation in relations}
    for found in acting_references(connection):
        ours = Reference(**found)
        if not {ours.child, ours.parent} <= followed or any(theirs.does_all_of(ours) for theirs in references):
            continue
        actions = [f"ON {event} {what.upper()}" for event, what in _actions(ours) if what]
        why = (
            "which acts on the rows of one partition, and the two sides may be partitioned differently"
            if ours.is_of_partition
            else "which no key of the source does"
        )
        yield new_finding(
            Side.TARGET,
            ".".join(ours.child),
            f"{'.'.join(ours.holder)} has the foreign key {ours.name} to {'.'.join(ours.referred)} with "
            f"{' '.join(actions)}, {why}: rows of {'.'.join(ours.child)} would change here alone",
            f"ALTER TABLE {quoted(*ours.holder)} DROP CONSTRAINT {quoted(ours.name)}",
            note="Or let the role set session_replication_role.",
        )


def _actions(reference: Reference) -> tuple[tuple[str, str], ...]:
    return ("DELETE", reference.on_delete), ("UPDATE", reference.on_update)


def about(
    relation: Relation,
    what: str,
    *fix: str,
    column: str | None = None,
    severity: Severity = Severity.ERROR,
    note: str = "",
) -> Finding:
    """Make a finding about a table, or about one of its columns."""
    return Finding(
        severity=severity,
        side=Side.TARGET,
        where=relation.name,
        is_table=True,
        column=column,
        what=what,
        fix=fix,
        note=note,
    )


def table_name(table: TargetTable) -> str:
    """Quoted, with its schema."""
    return quoted(table.relation.schema, table.relation.table)
