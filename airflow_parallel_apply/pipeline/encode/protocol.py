"""An encoder's protocol: typed rows of one table → the bytes of a format."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

import pyarrow as pa


class Encoder(Protocol):
    """Encodes rows of one schema. Threads share one: it keeps nothing of what it has encoded.

    The bytes of a file are `head`, then what `body` gives, then `tail`. What an encoder cannot write it refuses when it
    is made (`EncodeError`), from the schema alone; so a row never fails because of its type.
    """

    @property
    def suffix(self) -> str:
        """The ending of file names, with its dot."""
        ...

    @property
    def is_joinable(self) -> bool:
        """True if one file may have several bodies one behind the other: then workers share one file."""
        ...

    def head(self) -> bytes:
        """The bytes that a file begins with."""
        ...

    def body(self, batches: Iterable[pa.RecordBatch]) -> Iterator[bytes]:
        """The bytes of these rows, in their order, piece by piece: a batch is read when the pieces before it are taken.
        Without rows there are none, unless the format needs them to be a file.
        """
        ...

    def tail(self) -> bytes:
        """The bytes that a file ends with."""
        ...


class MessageEncoder(Protocol):
    """Encodes each row as a message of its own, for topics. Threads share one."""

    def messages(self, batch: pa.RecordBatch) -> pa.BinaryArray:
        """The message of each row, in their order."""
        ...
