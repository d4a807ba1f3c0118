from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Task(_message.Message):
    __slots__ = ("id", "queue", "version", "sequence", "at", "claimant", "claims", "attempt", "err", "value", "created", "modified")
    ID_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    CLAIMANT_FIELD_NUMBER: _ClassVar[int]
    CLAIMS_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    ERR_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    CREATED_FIELD_NUMBER: _ClassVar[int]
    MODIFIED_FIELD_NUMBER: _ClassVar[int]
    id: bytes
    queue: str
    version: int
    sequence: int
    at: int
    claimant: str
    claims: int
    attempt: int
    err: str
    value: str
    created: int
    modified: int
    def __init__(self, id: _Optional[bytes] = ..., queue: _Optional[str] = ..., version: _Optional[int] = ..., sequence: _Optional[int] = ..., at: _Optional[int] = ..., claimant: _Optional[str] = ..., claims: _Optional[int] = ..., attempt: _Optional[int] = ..., err: _Optional[str] = ..., value: _Optional[str] = ..., created: _Optional[int] = ..., modified: _Optional[int] = ...) -> None: ...

class TaskRef(_message.Message):
    __slots__ = ("id", "version")
    ID_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    id: bytes
    version: int
    def __init__(self, id: _Optional[bytes] = ..., version: _Optional[int] = ...) -> None: ...

class Arrival(_message.Message):
    __slots__ = ("at", "delay")
    AT_FIELD_NUMBER: _ClassVar[int]
    DELAY_FIELD_NUMBER: _ClassVar[int]
    at: int
    delay: int
    def __init__(self, at: _Optional[int] = ..., delay: _Optional[int] = ...) -> None: ...

class Insert(_message.Message):
    __slots__ = ("queue", "value", "sequence", "at", "id", "attempt", "err", "skip_colliding")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    ERR_FIELD_NUMBER: _ClassVar[int]
    SKIP_COLLIDING_FIELD_NUMBER: _ClassVar[int]
    queue: str
    value: str
    sequence: int
    at: Arrival
    id: bytes
    attempt: int
    err: str
    skip_colliding: bool
    def __init__(self, queue: _Optional[str] = ..., value: _Optional[str] = ..., sequence: _Optional[int] = ..., at: _Optional[_Union[Arrival, _Mapping]] = ..., id: _Optional[bytes] = ..., attempt: _Optional[int] = ..., err: _Optional[str] = ..., skip_colliding: _Optional[bool] = ...) -> None: ...

class Change(_message.Message):
    __slots__ = ("ref", "value", "queue", "sequence", "at", "delayed", "attempt", "err")
    REF_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    DELAYED_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    ERR_FIELD_NUMBER: _ClassVar[int]
    ref: TaskRef
    value: str
    queue: str
    sequence: int
    at: Arrival
    delayed: bool
    attempt: int
    err: str
    def __init__(self, ref: _Optional[_Union[TaskRef, _Mapping]] = ..., value: _Optional[str] = ..., queue: _Optional[str] = ..., sequence: _Optional[int] = ..., at: _Optional[_Union[Arrival, _Mapping]] = ..., delayed: _Optional[bool] = ..., attempt: _Optional[int] = ..., err: _Optional[str] = ...) -> None: ...

class ClaimRequest(_message.Message):
    __slots__ = ("queues", "claimant", "lease", "wait", "wake", "limit")
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    CLAIMANT_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    WAIT_FIELD_NUMBER: _ClassVar[int]
    WAKE_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    queues: _containers.RepeatedScalarFieldContainer[str]
    claimant: str
    lease: int
    wait: int
    wake: _containers.RepeatedScalarFieldContainer[str]
    limit: int
    def __init__(self, queues: _Optional[_Iterable[str]] = ..., claimant: _Optional[str] = ..., lease: _Optional[int] = ..., wait: _Optional[int] = ..., wake: _Optional[_Iterable[str]] = ..., limit: _Optional[int] = ...) -> None: ...

class ClaimReply(_message.Message):
    __slots__ = ("tasks", "woken")
    TASKS_FIELD_NUMBER: _ClassVar[int]
    WOKEN_FIELD_NUMBER: _ClassVar[int]
    tasks: _containers.RepeatedCompositeFieldContainer[Task]
    woken: bool
    def __init__(self, tasks: _Optional[_Iterable[_Union[Task, _Mapping]]] = ..., woken: _Optional[bool] = ...) -> None: ...

class ModifyRequest(_message.Message):
    __slots__ = ("claimant", "insert", "change", "delete", "depend")
    CLAIMANT_FIELD_NUMBER: _ClassVar[int]
    INSERT_FIELD_NUMBER: _ClassVar[int]
    CHANGE_FIELD_NUMBER: _ClassVar[int]
    DELETE_FIELD_NUMBER: _ClassVar[int]
    DEPEND_FIELD_NUMBER: _ClassVar[int]
    claimant: str
    insert: _containers.RepeatedCompositeFieldContainer[Insert]
    change: _containers.RepeatedCompositeFieldContainer[Change]
    delete: _containers.RepeatedCompositeFieldContainer[TaskRef]
    depend: _containers.RepeatedCompositeFieldContainer[TaskRef]
    def __init__(self, claimant: _Optional[str] = ..., insert: _Optional[_Iterable[_Union[Insert, _Mapping]]] = ..., change: _Optional[_Iterable[_Union[Change, _Mapping]]] = ..., delete: _Optional[_Iterable[_Union[TaskRef, _Mapping]]] = ..., depend: _Optional[_Iterable[_Union[TaskRef, _Mapping]]] = ...) -> None: ...

class RenewRequest(_message.Message):
    __slots__ = ("ref", "claimant", "lease")
    REF_FIELD_NUMBER: _ClassVar[int]
    CLAIMANT_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    ref: TaskRef
    claimant: str
    lease: int
    def __init__(self, ref: _Optional[_Union[TaskRef, _Mapping]] = ..., claimant: _Optional[str] = ..., lease: _Optional[int] = ...) -> None: ...

class ModifyReply(_message.Message):
    __slots__ = ("tasks", "refused", "inserted", "now")
    TASKS_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    INSERTED_FIELD_NUMBER: _ClassVar[int]
    NOW_FIELD_NUMBER: _ClassVar[int]
    tasks: _containers.RepeatedCompositeFieldContainer[Task]
    refused: Refused
    inserted: _containers.RepeatedScalarFieldContainer[bytes]
    now: int
    def __init__(self, tasks: _Optional[_Iterable[_Union[Task, _Mapping]]] = ..., refused: _Optional[_Union[Refused, _Mapping]] = ..., inserted: _Optional[_Iterable[bytes]] = ..., now: _Optional[int] = ...) -> None: ...

class Refused(_message.Message):
    __slots__ = ("inserts", "changes", "deletes", "depends")
    INSERTS_FIELD_NUMBER: _ClassVar[int]
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    DELETES_FIELD_NUMBER: _ClassVar[int]
    DEPENDS_FIELD_NUMBER: _ClassVar[int]
    inserts: _containers.RepeatedCompositeFieldContainer[Failure]
    changes: _containers.RepeatedCompositeFieldContainer[Failure]
    deletes: _containers.RepeatedCompositeFieldContainer[Failure]
    depends: _containers.RepeatedCompositeFieldContainer[Failure]
    def __init__(self, inserts: _Optional[_Iterable[_Union[Failure, _Mapping]]] = ..., changes: _Optional[_Iterable[_Union[Failure, _Mapping]]] = ..., deletes: _Optional[_Iterable[_Union[Failure, _Mapping]]] = ..., depends: _Optional[_Iterable[_Union[Failure, _Mapping]]] = ...) -> None: ...

class Failure(_message.Message):
    __slots__ = ("id", "reason", "version", "claimant", "until")
    ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    CLAIMANT_FIELD_NUMBER: _ClassVar[int]
    UNTIL_FIELD_NUMBER: _ClassVar[int]
    id: bytes
    reason: str
    version: int
    claimant: str
    until: int
    def __init__(self, id: _Optional[bytes] = ..., reason: _Optional[str] = ..., version: _Optional[int] = ..., claimant: _Optional[str] = ..., until: _Optional[int] = ...) -> None: ...

class TasksRequest(_message.Message):
    __slots__ = ("queue", "claimant", "limit", "ids", "after", "omit_values")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    CLAIMANT_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    OMIT_VALUES_FIELD_NUMBER: _ClassVar[int]
    queue: str
    claimant: str
    limit: int
    ids: _containers.RepeatedScalarFieldContainer[bytes]
    after: Task
    omit_values: bool
    def __init__(self, queue: _Optional[str] = ..., claimant: _Optional[str] = ..., limit: _Optional[int] = ..., ids: _Optional[_Iterable[bytes]] = ..., after: _Optional[_Union[Task, _Mapping]] = ..., omit_values: _Optional[bool] = ...) -> None: ...

class TasksReply(_message.Message):
    __slots__ = ("tasks",)
    TASKS_FIELD_NUMBER: _ClassVar[int]
    tasks: _containers.RepeatedCompositeFieldContainer[Task]
    def __init__(self, tasks: _Optional[_Iterable[_Union[Task, _Mapping]]] = ...) -> None: ...

class StatsRequest(_message.Message):
    __slots__ = ("prefix", "exact", "limit")
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    EXACT_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    prefix: _containers.RepeatedScalarFieldContainer[str]
    exact: _containers.RepeatedScalarFieldContainer[str]
    limit: int
    def __init__(self, prefix: _Optional[_Iterable[str]] = ..., exact: _Optional[_Iterable[str]] = ..., limit: _Optional[int] = ...) -> None: ...

class StatsReply(_message.Message):
    __slots__ = ("queues",)
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    queues: _containers.RepeatedCompositeFieldContainer[QueueStats]
    def __init__(self, queues: _Optional[_Iterable[_Union[QueueStats, _Mapping]]] = ...) -> None: ...

class QueueStats(_message.Message):
    __slots__ = ("queue", "size", "claimed", "available", "future", "max_claims")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    CLAIMED_FIELD_NUMBER: _ClassVar[int]
    AVAILABLE_FIELD_NUMBER: _ClassVar[int]
    FUTURE_FIELD_NUMBER: _ClassVar[int]
    MAX_CLAIMS_FIELD_NUMBER: _ClassVar[int]
    queue: str
    size: int
    claimed: int
    available: int
    future: int
    max_claims: int
    def __init__(self, queue: _Optional[str] = ..., size: _Optional[int] = ..., claimed: _Optional[int] = ..., available: _Optional[int] = ..., future: _Optional[int] = ..., max_claims: _Optional[int] = ...) -> None: ...

class WaitEmptyRequest(_message.Message):
    __slots__ = ("prefix", "exact", "wait")
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    EXACT_FIELD_NUMBER: _ClassVar[int]
    WAIT_FIELD_NUMBER: _ClassVar[int]
    prefix: _containers.RepeatedScalarFieldContainer[str]
    exact: _containers.RepeatedScalarFieldContainer[str]
    wait: int
    def __init__(self, prefix: _Optional[_Iterable[str]] = ..., exact: _Optional[_Iterable[str]] = ..., wait: _Optional[int] = ...) -> None: ...

class WaitEmptyReply(_message.Message):
    __slots__ = ("empty",)
    EMPTY_FIELD_NUMBER: _ClassVar[int]
    empty: bool
    def __init__(self, empty: _Optional[bool] = ...) -> None: ...

class SnapshotRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SnapshotReply(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...
