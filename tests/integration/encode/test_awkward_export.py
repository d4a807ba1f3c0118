"""Random transactions over tables of every awkward kind: whoever applies an export's changes has the source's rows, to
the last letter.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_parallel_apply.pipeline.config import DdlPolicy, PipelineConfig, TablePatterns
from airflow_parallel_apply.pipeline.encode.columns.texts import texts
from airflow_parallel_apply.pipeline.encode.files.dataset import Dataset
from airflow_parallel_apply.pipeline.encode.files.place import FilePlace
from airflow_parallel_apply.pipeline.encode.formats import Format
from airflow_parallel_apply.pipeline.export import ExportOptions, export_changes
from airflow_parallel_apply.pipeline.log.open import open_reader
from airflow_parallel_apply.pipeline.model.change import Relation
from airflow_parallel_apply.pipeline.model.copy_text import values_of
from airflow_parallel_apply.postgres.settings import EXACT
from tests.support.awkward_tables import make_tables
from tests.support.awkward_writer import write_awkwardly
from tests.support.ddl_messages import install
from tests.support.rig import Rig
from tests.support.variants import gated

TRANSACTIONS = 150
FLOATS = ("real", "double precision")
Row = tuple[str | None, ...]


@pytest.fixture
def rig(source_dsn: str, target_dsn: str, tmp_path: Path) -> Rig:
    config = PipelineConfig(
        pipeline="awkward", log_url=str(tmp_path / "log"), tables=TablePatterns(include=("*.*",)), ddl=DdlPolicy.APPLY
    )
    made = Rig(config=config, source_dsn=source_dsn, target_dsn=target_dsn)
    make_tables(made)
    install(source_dsn)
    made.prepare()
    write_awkwardly(source_dsn, TRANSACTIONS, seed=11)
    made.write(
        "INSERT INTO toast VALUES (900, repeat('big ', 3000), 'o', 1)",
        "UPDATE toast SET id = 901 WHERE id = 900",
        "UPDATE toast SET n = 2 WHERE id = 901",
        "INSERT INTO log_only VALUES ('infinity', 'a'), ('2020-01-01', 'b')",
    )
    made.capture("captured")
    return made


@gated
def test_whoever_applies_the_changes_has_the_sources_rows(rig: Rig, tmp_path: Path) -> None:
    place = str(tmp_path / "out")
    log = open_reader(rig.config.log_url)
    last = log.state().last_seqno
    # Two commits, and small windows, so that a key's changes lie in several files.
    for until in (last // 2, None):
        report = export_changes(log, place, ExportOptions(threads=3, until_seqno=until, window_bytes=20_000))
    assert report.last_seqno == last
    assert "public.log_only.at" in report.texts
    assert not {"public.rich.f", "public.rich.b", "public.rich.m", "public.rich.d"} & set(report.texts)
    definitions = defaultdict(list)
    for relation in log.state().relations:
        definitions[relation.name].append(relation)
    applied = _applied(place, {relation.relation_id: relation for relation in log.state().relations})
    compared = 0
    for name, known in definitions.items():
        # Rows of a table whose columns changed are older rows' affair, too.
        if len(known) == 1:
            assert applied[name] == _source_rows(rig, known[0]), name
            compared += sum(applied[name].values())
    assert compared > 50
    changes = sum(
        batch.filter(pa.compute.not_equal(batch.column("operation"), "M")).num_rows for batch in log.rows(-1, last)
    )
    for format_ in Format:
        exported = export_changes(log, f"{place}-{format_}", ExportOptions(format=format_))
        assert exported.rows == changes, f"{format_} takes every table"


def _applied(place: str, relations: dict[int, Relation]) -> dict[str, Counter[Row]]:
    """The rows that are left when all changes are applied in order."""
    changes: list[tuple[int, int, Relation, dict[str, Any], Row]] = []
    for manifest in Dataset(FilePlace(place)).manifests():
        for file in manifest.files:
            table = pq.read_table(Path(place) / file.path)
            relation = relations[file.relation_id]
            columns = [texts(table.column(column.name).combine_chunks()).to_pylist() for column in relation.columns]
            values = list(zip(*columns, strict=True)) if columns else [()] * table.num_rows
            for row, value in zip(table.to_pylist(), values, strict=True):
                changes.append((row["_seqno"], row["_fragno"], relation, row, value))
    keyed: dict[str, dict[Row, Row]] = defaultdict(dict)
    bags: dict[str, Counter[Row]] = defaultdict(Counter)
    left: dict[str, dict[Row, Row]] = defaultdict(dict)
    for _, _, relation, row, value in sorted(changes, key=lambda change: change[:2]):
        name = relation.name
        operation = row["_operation"]
        if operation == "truncate":
            keyed[name].clear()
            bags[name].clear()
        elif not relation.key_indexes:
            bags[name][value] += 1 if operation == "insert" else -1
            assert bags[name][value] >= 0
        else:
            key = tuple(value[place] for place in relation.key_indexes)
            if operation == "delete":
                left[name][key] = keyed[name].pop(key)
                continue
            assert (key in keyed[name]) == (operation == "update")
            old_key = None if row["_old_key"] is None else tuple(values_of(row["_old_key"]))
            old = left[name].get(old_key) if old_key is not None else keyed[name].get(key)
            unsent = json.loads(row["_unsent"] or "[]")
            keyed[name][key] = tuple(
                (old or ())[place] if column.name in unsent else value[place]
                for place, column in enumerate(relation.columns)
            )
    found = {name: Counter(rows.values()) for name, rows in keyed.items()}
    found.update({name: +rows for name, rows in bags.items() if name not in found or rows})
    return defaultdict(Counter, found)


def _source_rows(rig: Rig, relation: Relation) -> Counter[Row]:
    """The source's own texts; of floats those that Arrow writes."""
    with psycopg.connect(rig.source_dsn) as connection:
        for name, setting in EXACT.items():
            connection.execute("SELECT set_config(%s, %s, false)", [name, setting])
        table = psycopg.sql.Identifier(relation.schema, relation.table)
        (kind,) = connection.execute("SELECT relkind FROM pg_class WHERE oid = %s", [relation.oid]).fetchone() or ("r",)
        query = psycopg.sql.SQL("COPY (SELECT {} FROM {}{}) TO STDOUT").format(
            psycopg.sql.SQL(", ").join(psycopg.sql.Identifier(column.name) for column in relation.columns),
            psycopg.sql.SQL("" if kind == "p" else "ONLY "),
            table,
        )
        with connection.cursor().copy(query) as copy:
            lines = b"".join(bytes(part) for part in copy).decode().split("\n")[:-1]
    rows = [values_of(line) for line in lines]
    return Counter(
        tuple(
            _float(value, column.type_name) if column.type_name in FLOATS and value is not None else value
            for value, column in zip(row, relation.columns, strict=True)
        )
        for row in rows
    )


def _float(text: str, type_name: str) -> str:
    if text in ("NaN", "Infinity", "-Infinity"):
        return text
    kind = pa.float32() if type_name == "real" else pa.float64()
    written: str = pa.array([text]).cast(kind).cast(pa.string())[0].as_py()
    return written
