"""A comparison cuts nothing, however narrow the terminal is."""

from __future__ import annotations

from io import StringIO

from rich.console import Console

from airflow_parallel_apply.cli.compare_view import comparison_view
from airflow_parallel_apply.pipeline.compare import TableComparison
from airflow_parallel_apply.pipeline.compare.compare import Comparison

ONE = TableComparison(
    name="warehouse.a_rather_long_name_of_a_table",
    source_rows=1_234_567,
    target_rows=1_234_567,
    source_checksum="0123456789abcdef",
    target_checksum="0123456789abcdef",
)


def shown(width: int) -> str:
    file = StringIO()
    Console(file=file, width=width).print(comparison_view(Comparison(tables=(ONE,))))
    return file.getvalue()


def test_a_wide_terminal_shows_checksums_beside_the_name() -> None:
    row = f"{ONE.name}       1,234,567       1,234,567  {ONE.source_checksum}    {ONE.target_checksum}    equal"
    assert row in shown(140)


def test_a_narrow_terminal_shows_whole_names_and_no_checksum() -> None:
    narrow = shown(80)
    assert ONE.name in narrow
    assert "equal" in narrow
    assert "checksum" not in narrow


def test_nothing_is_cut_where_even_that_has_no_room() -> None:
    assert "…" not in shown(60)
    assert "equal" in shown(60)
