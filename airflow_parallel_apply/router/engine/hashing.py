"""The hash of rows, for routing: the same for equal values, in every process and release."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from airflow_parallel_apply.pipeline.partition.key import SEED, hash_long

Hashes = npt.NDArray[np.uint64]

_NULL: Final = np.uint64(0x6E756C6C)


def can_hash(type_: pa.DataType) -> bool:
    """True for types whose equality is that of a number, or of a text."""
    if pa.types.is_dictionary(type_):
        return can_hash(type_.value_type)
    return (
        pa.types.is_boolean(type_)
        or pa.types.is_integer(type_)
        or pa.types.is_floating(type_)
        or (pa.types.is_temporal(type_) and not pa.types.is_interval(type_))
        or _is_text(type_)
        or pa.types.is_decimal(type_)
    )


def hashes(columns: Sequence[pa.Array]) -> Hashes:
    """One for each row: of each column's value, seeded by the hash of those before it."""
    found = np.full(len(columns[0]), SEED, dtype=np.uint64)
    with np.errstate(over="ignore"):
        for column in columns:
            found = hash_long(_numbers(column), found)
    return found


def _numbers(column: pa.Array) -> Hashes:
    """64 bits that are equal where the values are; of texts a hash."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    numbers = _texts(column) if _is_text(column.type) or pa.types.is_decimal(column.type) else _bits(column)
    if column.null_count:
        numbers = np.where(column.is_null().to_numpy(zero_copy_only=False), _NULL, numbers)
    return numbers


def _texts(column: pa.Array) -> Hashes:
    if pa.types.is_decimal(column.type):
        column = column.cast(pa.string())
    digest = xxhash.xxh64_intdigest
    texts = column.cast(pa.large_binary()).fill_null(b"").to_pylist()
    return np.array([digest(text, SEED) for text in texts], dtype=np.uint64)


def _bits(column: pa.Array) -> Hashes:
    if pa.types.is_floating(column.type):
        floats: npt.NDArray[np.float64] = column.cast(pa.float64()).fill_null(0.0).to_numpy(zero_copy_only=False)
        # Adding 0 makes -0 positive; all NaN get the same bits.
        return np.where(np.isnan(floats), np.nan, floats + 0.0).view(np.uint64)
    if not pa.types.is_uint64(column.type):
        if pa.types.is_temporal(column.type) and column.type.bit_width == 32:
            column = column.cast(pa.int32())
        column = column.cast(pa.int64())
    numbers: Hashes = column.fill_null(0).to_numpy(zero_copy_only=False).view(np.uint64)
    return numbers


def _is_text(type_: pa.DataType) -> bool:
    return bool(
        pa.types.is_string(type_)
        or pa.types.is_large_string(type_)
        or pa.types.is_binary(type_)
        or pa.types.is_large_binary(type_)
        or pa.types.is_fixed_size_binary(type_)
    )
