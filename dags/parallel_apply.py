"""The DAG `parallel_apply`: any pipeline, from the trigger form or from `--conf`.

It needs only two connections of type postgres, `parallel_apply_source` and `parallel_apply_target`. For a pipeline with
a schedule write a DAG of its own: ten lines with `ParallelApply`.

Several pipelines may run at once, so the number of active runs is not limited here: runs of one pipeline wait for
each other at its lease, in the target, whoever started them.
"""

from __future__ import annotations

from airflow.sdk import DAG, Param

from airflow_parallel_apply.task_group import ParallelApply

DOC = """
Replays the history of one database onto another: in parallel, in order, exactly once. The form, or the same keys in
--conf, choose the pipeline. For a pipeline with a schedule write a DAG of its own: ten lines with ParallelApply.

- **changes_available** ends a run early and green if there is nothing to do.
- **capture** checks both sides and brings changes into the log. In a first run it also creates publication, slot and
  log, and copies the existing rows.
- **route** plans where units of work end and which transactions must run alone.
- **open** takes the pipeline's lease. Another run of the pipeline waits there, deferred.
- **apply** is one lane in each of its mapped tasks. Any lane serves any channel.
- **close** is green only if every channel stopped at the same transaction.

To stop a run cleanly, set the XCom **stop_marker** of the task **open** to {"stop": true}, or run *parallel-apply
stop*. After a failure fix the cause. Then clear **open** with everything downstream, or trigger again: nothing is lost
or applied twice.
"""

_CONNECTIONS = "Connections"
_FLOW = "Flow"
_PARALLELISM = "Parallelism"
_OPTIONAL = ["string", "null"]


def _one_of(values: dict[str, str], *, title: str, description: str) -> Param:
    """A parameter with few values, of which the form says what each means; the first is the default."""
    return Param(
        next(iter(values)),
        enum=list(values),
        values_display={value: f"{value}: {meaning}" for value, meaning in values.items()},
        title=title,
        description_md=description,
        section=_FLOW,
    )


PARAMS = {
    "pipeline": Param(
        "parallel_apply",
        type="string",
        pattern="^[a-z][a-z0-9_]{0,39}$",
        title="Pipeline",
        description_md="Name under which the target keeps **positions**, plan and lease; "
        "another name is another pipeline.",
    ),
    "source_conn_id": Param(
        "parallel_apply_source",
        type="string",
        minLength=1,
        title="Source connection",
        description_md="A connection of type **postgres**; the server needs wal_level=logical.",
        section=_CONNECTIONS,
    ),
    "target_conn_id": Param(
        "parallel_apply_target",
        type="string",
        minLength=1,
        title="Target connection",
        description_md="A connection of type **postgres**; or of **parallel_apply_mariadb**, **parallel_apply_delta**, "
        "**parallel_apply_files** or **parallel_apply_kafka**, which need a **ledger connection**.",
        section=_CONNECTIONS,
    ),
    "spark_conn_id": Param(
        "",
        type=_OPTIONAL,
        title="Spark connection",
        description_md="A connection of type **spark** or **spark_connect**. Empty: an embedded local Spark.",
        section=_CONNECTIONS,
    ),
    "queue": Param(
        "",
        type=_OPTIONAL,
        title="Queue connection",
        description_md="A connection of type **parallel_apply_queue**, or **postgres**. "
        "Empty: the queue is in the ledger's database.",
        section=_CONNECTIONS,
    ),
    "ledger_conn_id": Param(
        "",
        type=_OPTIONAL,
        title="Ledger connection",
        description_md="A connection of type **postgres** to the database that says who owns the pipeline and what is "
        "planned. Empty: the target's own, where that is PostgreSQL.",
        section=_CONNECTIONS,
    ),
    "router_conn_id": Param(
        "",
        type=_OPTIONAL,
        title="Router connection",
        description_md="With store **memory**: a connection of type **parallel_apply_router**. Empty: an embedded "
        "router on the host of the task **route**.",
        section=_CONNECTIONS,
    ),
    "log_url": Param(
        "",
        type=_OPTIONAL,
        title="Log",
        description_md="Directory of the change log; **every worker must see it**. Or a log that a router serves: "
        "**grpcs://host:port/name**. Empty: a directory of the pipeline's name in AIRFLOW_HOME/parallel_apply.",
        section=_FLOW,
    ),
    "log_directory": Param(
        "",
        type=_OPTIONAL,
        title="Log directory",
        description_md="With a router's log: its directory, which only the task **capture** has to see.",
        section=_FLOW,
    ),
    "slot": Param(
        "",
        type=_OPTIONAL,
        title="Slot",
        description_md="Name of slot and publication at the source, which all pipelines of one log share. "
        "Empty: parallel_apply_ and the pipeline's name.",
        section=_FLOW,
    ),
    "tables": Param(
        {"include": ["public.*"], "exclude": []},
        type=["object", "array"],
        properties={
            "include": {"type": "array", "items": {"type": "string"}, "minItems": 1},
            "exclude": {"type": "array", "items": {"type": "string"}},
        },
        additionalProperties=False,
        items={"type": "string"},
        title="Tables",
        description_md="Patterns over schema.table with * and ?: a table that one of **include** matches, and none of "
        "**exclude**.",
        section=_FLOW,
    ),
    "start": _one_of(
        {
            "copy": "the target's tables have no rows, copy the source's into them",
            "empty": "the tables have no rows on either side",
            "equal": "both sides hold the same rows, I say so",
        },
        title="Start",
        description="What the **first** run does. Later runs go on where the one before stopped.",
    ),
    "create_tables": Param(
        False,
        type="boolean",
        title="Create tables",
        description_md="With start **copy**: make tables that the target lacks as the source has them, "
        "with keys, constraints and indexes after the load.",
        section=_FLOW,
    ),
    "until": Param(
        "",
        type=_OPTIONAL,
        title="Until",
        description_md="An offset of the source that it has reached, such as the LSN 0/16B3748: there the run ends. "
        "Empty: everything committed at the source when the run first opens.",
        section=_FLOW,
    ),
    "ddl": _one_of(
        {
            "refuse": "stop there with an error",
            "apply": "change the target as the source was changed",
            "skip": "pass over it, I change the target by hand",
        },
        title="DDL",
        description="What DDL does that the source sends by **parallel_apply.send_ddl**, and a change of a table's "
        "columns.",
    ),
    "consistency": _one_of(
        {
            "channel": "each channel commits by itself",
            "epoch": "all channels together, whole transactions of the source",
        },
        title="Consistency",
        description="When changes become visible. May change from run to run.",
    ),
    "epoch_protocol": _one_of(
        {
            "auto": "two_phase, the faster one, where the target can prepare transactions; else leader_merge",
            "leader_merge": "one lane merges what all channels staged",
            "two_phase": "each channel merges and prepares, one lane commits all",
        },
        title="Epoch protocol",
        description="With consistency=epoch: how all channels' rows become visible together. two_phase needs "
        "max_prepared_transactions at the target, and plain reads may see a part of a transaction while its branches "
        "are committed; under leader_merge they never do.",
    ),
    "channels": Param(
        4,
        type="integer",
        minimum=1,
        maximum=64,
        title="Channels",
        description_md="Ordered lanes of apply. Can change after a clean shutdown.",
        section=_PARALLELISM,
    ),
    "lanes": Param(
        0,
        type="integer",
        minimum=0,
        maximum=64,
        title="Lanes",
        description_md="Mapped tasks at a time. 0: as channels, at most 8. Any number completes, one too.",
        section=_PARALLELISM,
    ),
    "partitioner": Param(
        "key",
        type="string",
        pattern="^[a-z][a-z0-9_]*$",
        examples=["key", "shard", "shard_list", "round_robin"],
        title="Partitioner",
        description_md="How rows find their channel: by their **key**; by their **shard** or a **shard_list**, with "
        "transactions whole; transactions in turn with **round_robin**, for tables without a key; or an installed one.",
        section=_PARALLELISM,
    ),
    "shard_by": Param(
        "",
        type=["null", "string", "object"],
        additionalProperties={"type": "string"},
        title="Shard by",
        description_md='With shards: an expression such as **tenant_id**, or {"public.orders": "tenant_id"}.',
        section=_PARALLELISM,
    ),
    "shard_file": Param(
        "",
        type=_OPTIONAL,
        title="Shard file",
        description_md="With shard_list: the file (TOML) that gives shards their channels.",
        section=_PARALLELISM,
    ),
    "store": Param(
        "auto",
        enum=["auto", "log", "channel_log", "memory"],
        title="Store",
        description_md="Where a channel's changes wait. auto: as the partitioner reads least; log: in the log, scanned "
        "by channel; channel_log: in a log of its own beside it, for many channels by shard; memory: in a router, "
        "which streams them.",
        section=_PARALLELISM,
    ),
    "epoch_max_changes": Param(
        100_000,
        type="integer",
        minimum=1,
        title="Changes in an epoch",
        description_md="Consecutive whole transactions are one unit of work up to about this many changes.",
        section=_PARALLELISM,
    ),
    "error_values": Param(
        False,
        type="boolean",
        title="Values in errors",
        description_md="Errors quote the rows that the target refused. Task logs, XCom and the queue keep them.",
        section=_FLOW,
    ),
}

with DAG(
    "parallel_apply",
    description="Replay a database's history onto another one: in parallel, in order, exactly once",
    schedule=None,
    catchup=False,
    # Nothing starts by itself, and a run that is triggered while the DAG is paused waits for ever.
    is_paused_upon_creation=False,
    params=PARAMS,
    tags=["replication", "cdc"],
    doc_md=DOC,
):
    ParallelApply(
        group_id="parallel_apply",
        prefix_group_id=False,
        pipeline="{{ params.pipeline }}",
        source_conn_id="{{ params.source_conn_id }}",
        target_conn_id="{{ params.target_conn_id }}",
        spark_conn_id="{{ params.spark_conn_id or '' }}",
        queue="{{ params.queue or '' }}",
        ledger_conn_id="{{ params.ledger_conn_id or '' }}",
        router_conn_id="{{ params.router_conn_id or '' }}",
        log_url="{{ params.log_url or '' }}",
        log_directory="{{ params.log_directory or '' }}",
        slot="{{ params.slot or '' }}",
        tables="{{ params.tables | tojson }}",
        start="{{ params.start }}",
        create_tables="{{ params.create_tables }}",
        channels="{{ params.channels }}",
        lanes="{{ params.lanes }}",
        partitioner="{{ params.partitioner }}",
        shard_by="{{ params.shard_by | tojson if params.shard_by is mapping else params.shard_by or '' }}",
        shard_file="{{ params.shard_file or '' }}",
        store="{{ params.store }}",
        consistency="{{ params.consistency }}",
        epoch_protocol="{{ params.epoch_protocol }}",
        ddl="{{ params.ddl }}",
        epoch_max_changes="{{ params.epoch_max_changes }}",
        error_values="{{ params.error_values }}",
        until="{{ params.until or '' }}",
    )
