"""Canonical keys, their buckets and their order (law 1: same key, same channel).

Two keys that the target's unique index holds equal have one canonical text; its hash, together with the table's name,
gives the bucket. The hash is XXH64 with seed 42 of UTF-8 bytes, which is what Spark SQL computes::

    pmod(xxhash64(concat(schema, '.', table, decode(X'00', 'UTF-8'), key)), 1024)     a row with a key
    pmod(xxhash64(seqno, fragno), 1024)                                               a row without one
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from airflow_parallel_apply.pipeline.model.change import BUCKET_COUNT
from airflow_parallel_apply.pipeline.model.key_kind import KeyKind

SEED: Final = 42
"""Spark SQL's."""

Numbers = npt.NDArray[np.int64]

_SIGN: Final = np.uint64(1 << 63)
_P1: Final = np.uint64(0x9E3779B185EBCA87)
_P2: Final = np.uint64(0xC2B2AE3D27D4EB4F)
_P3: Final = np.uint64(0x165667B19E3779F9)
_P4: Final = np.uint64(0x85EBCA77C2B2AE63)
_P5: Final = np.uint64(0x27D4EB2F165667C5)
_USUAL_TIME: Final = r"^\d{4}-\d\d-\d\d( \d\d:\d\d:\d\d(\.\d{1,6})?(\+00)?)?$"
_NO_TIME: Final = "1970-01-01"
_EARLIEST, _LATEST = -(1 << 63), (1 << 63) - 1
_UUID_DIGITS: Final = np.r_[0:8, 9:13, 14:18]
_UUID_LENGTH: Final = 36


def canonical(kind: KeyKind, texts: pa.StringArray) -> pa.StringArray:
    """One text for all texts that are equal to the index."""
    match kind:
        case KeyKind.DECIMAL:
            fraction = pc.match_substring(texts, ".")
            if not pc.any(fraction).as_py():
                return texts
            return pc.if_else(fraction, pc.ascii_rtrim(pc.ascii_rtrim(texts, "0"), "."), texts)
        case KeyKind.FLOAT:
            return pc.if_else(pc.equal(texts, "-0"), "0", texts)
        case KeyKind.BLANK_PADDED:
            return pc.ascii_rtrim(texts, " ")
        case _:
            return texts


def join(columns: Sequence[pa.StringArray]) -> pa.StringArray:
    """One text of a key's canonical columns; of several, with commas between them and escaped ones inside."""
    if len(columns) == 1:
        return columns[0]
    return pc.binary_join_element_wise(*(_escaped(column) for column in columns), ",")


def buckets(table: str, keys: pa.StringArray) -> Numbers:
    """The buckets of keys of the table `schema.table`. Keys are not null."""
    prefix = table.encode() + b"\0"
    digest = xxhash.xxh64_intdigest
    # A call takes 70 ns, which is less than gathering keys of equal length for a vectorised hash does.
    hashes = [digest(prefix + key, SEED) for key in keys.cast(pa.binary()).to_pylist()]
    return (np.array(hashes, dtype=np.uint64) & np.uint64(BUCKET_COUNT - 1)).astype(np.int64)


def table_bucket(table: str) -> int:
    """The one bucket of a table whose key has no canonical text."""
    return xxhash.xxh64_intdigest(table.encode() + b"\0", SEED) % BUCKET_COUNT


def keyless_buckets(seqno: Numbers, fragno: Numbers) -> Numbers:
    """The buckets of rows without a key: spread evenly, and the same when the rows are captured again."""
    with np.errstate(over="ignore"):
        seeds = np.full(len(seqno), SEED, dtype=np.uint64)
        hashes = hash_long(fragno.astype(np.uint64), hash_long(seqno.astype(np.uint64), seeds))
    return (hashes & np.uint64(BUCKET_COUNT - 1)).astype(np.int64)


def key_order(kinds: Sequence[KeyKind], columns: Sequence[pa.StringArray]) -> Numbers:
    """A number that sorts about as the target's index does. Of several columns the first two count, 32 bits each.

    A function of each value alone, never of the batch that it came in: rows of one key are told by being neighbours
    in this order. Whoever changes what it returns raises `KEY_ORDER_VERSION`.
    """
    if len(columns) == 1:
        return _order(kinds[0], columns[0])
    first, second = (
        _order_32(kind, column, _order(kind, column)) for kind, column in zip(kinds[:2], columns[:2], strict=True)
    )
    return (first << 32) | (second + (1 << 31))


def _escaped(column: pa.StringArray) -> pa.StringArray:
    for special in ("\\", ","):
        if pc.any(pc.match_substring(column, special)).as_py():
            column = pc.replace_substring(column, special, "\\" + special)
    return column


def _order(kind: KeyKind, texts: pa.StringArray) -> Numbers:
    match kind:
        case KeyKind.INTEGER:
            return _numbers(texts.cast(pa.int64()))
        case KeyKind.DECIMAL | KeyKind.FLOAT:
            return _float_order(_floats(texts))
        case KeyKind.UUID:
            return _uuid_order(texts)
        case KeyKind.TIME:
            return _time_order(texts)
        case _:
            return _prefix_order(texts)


def _numbers(values: pa.Int64Array) -> Numbers:
    numbers: Numbers = values.to_numpy()
    return numbers


def _order_32(kind: KeyKind, texts: pa.StringArray, order: Numbers) -> Numbers:
    if kind is KeyKind.INTEGER:
        return np.clip(order, -(1 << 31), (1 << 31) - 1)
    if kind is KeyKind.TIME:
        return _prefix_order(texts) >> 32
    return order >> 32


def _float_order(values: npt.NDArray[np.float64]) -> Numbers:
    bits = np.ascontiguousarray(values).view(np.int64)
    return np.where(bits >= 0, bits, bits ^ np.int64((1 << 63) - 1))


def _floats(texts: pa.StringArray) -> npt.NDArray[np.float64]:
    """Values beyond a double's range, which a numeric may have, are as far as a double reaches."""
    try:
        values = texts.cast(pa.float64())
    except pa.ArrowInvalid:
        values = pa.array([float(text) for text in texts.to_pylist()], pa.float64())
    return values.to_numpy()  # type: ignore[no-any-return]


def _time_order(texts: pa.StringArray) -> Numbers:
    """Microseconds, with what Arrow cannot read (infinity, BC, five-digit years) at the ends."""
    is_usual = pc.match_substring_regex(texts, _USUAL_TIME)
    late = pc.or_(pc.equal(texts, "infinity"), pc.match_substring_regex(texts, r"^\d{5}.*[^C]$"))
    usual = pc.replace_substring_regex(pc.if_else(is_usual, texts, _NO_TIME), r"\+00$", "")
    micros = usual.cast(pa.timestamp("us")).cast(pa.int64())
    ends = pc.if_else(late, _LATEST, _EARLIEST)
    return _numbers(pc.if_else(is_usual, micros, ends))


def _uuid_order(texts: pa.StringArray) -> Numbers:
    padded = _bytes(texts, _UUID_LENGTH)[:, _UUID_DIGITS]
    digits = np.where(padded <= ord("9"), padded - ord("0"), padded - ord("a") + 10)
    packed = (digits[:, 0::2] << 4) | digits[:, 1::2]
    return _signed(np.ascontiguousarray(packed).view(">u8").reshape(-1))


def _prefix_order(texts: pa.StringArray) -> Numbers:
    return _signed(_bytes(texts, 8).view(">u8").reshape(-1))


def _bytes(texts: pa.StringArray, width: int) -> npt.NDArray[np.uint8]:
    """The first bytes of every text, zeros behind shorter ones."""
    texts = texts.cast(pa.binary())
    fixed = pc.binary_slice(texts, 0, width)
    array = np.array(fixed.to_pylist(), dtype=f"S{width}")
    return array.view(np.uint8).reshape(len(texts), width)


def _signed(values: npt.NDArray[np.uint64]) -> Numbers:
    return (values.astype(np.uint64) ^ _SIGN).view(np.int64)


def hash_long(value: npt.NDArray[np.uint64], seed: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """XXH64 of an 8-byte integer, as Spark hashes a bigint."""
    state = seed + _P5 + np.uint64(8)
    state ^= _rotated(value * _P2, 31) * _P1
    state = _rotated(state, 27) * _P1 + _P4
    state = (state ^ (state >> np.uint64(33))) * _P2
    state = (state ^ (state >> np.uint64(29))) * _P3
    return state ^ (state >> np.uint64(32))


def _rotated(value: npt.NDArray[np.uint64], bits: int) -> npt.NDArray[np.uint64]:
    return (value << np.uint64(bits)) | (value >> np.uint64(64 - bits))
