"""The embedded Spark server's directory: its files, their contents, and the server's settings."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from airflow_parallel_apply.pipeline.embedded.layout import HostLayout, host_directory
from airflow_parallel_apply.pipeline.errors import ConfigurationError
from airflow_parallel_apply.spark import daemon
from airflow_parallel_apply.spark.session import UNMEASURED_BATCHES

IDLE_VARIABLE: Final = "PARALLEL_APPLY_SPARK_IDLE_SECONDS"
MEMORY_VARIABLE: Final = "PARALLEL_APPLY_SPARK_MEMORY"
MASTER_VARIABLE: Final = "PARALLEL_APPLY_SPARK_MASTER"
JAVA_VARIABLE: Final = "PARALLEL_APPLY_SPARK_JAVA_OPTIONS"

_MEMORY: Final = "2g"
_MASTER: Final = "local[*,4]"

# What runs once a job, planning, is called some thousand times before long, which the JVM takes for hot: compiling that
# again, by its last and most expensive compiler, cost more than the jobs did. What runs once a row gets there anyway.
_COMPILER: Final = (
    "-XX:Tier4InvocationThreshold=60000 -XX:Tier4MinInvocationThreshold=10000 -XX:Tier4CompileThreshold=180000"
)

_LOGGING: Final = """\
status = error
rootLogger.level = warn
rootLogger.appenderRef.file.ref = file
appender.file.type = RollingFile
appender.file.name = file
appender.file.fileName = {log}
appender.file.filePattern = {log}.%i
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d{{yyyy-MM-dd HH:mm:ss}} %p %c{{1}}: %m%n%ex
appender.file.policies.type = Policies
appender.file.policies.size.type = SizeBasedTriggeringPolicy
appender.file.policies.size.size = 8MB
appender.file.strategy.type = DefaultRolloverStrategy
appender.file.strategy.max = 1
logger.ports.name = org.apache.spark.util.Utils
logger.ports.level = info
logger.connect.name = org.apache.spark.sql.connect.service.SparkConnectServer
logger.connect.level = info
"""

# Jobs of several lanes share the slots evenly: FAIR is between pools, the default pool is FIFO inside unless told.
_POOLS: Final = """\
<?xml version="1.0"?>
<allocations><pool name="default"><schedulingMode>FAIR</schedulingMode></pool></allocations>
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """Settings of the embedded server. `idle`: how long it stays when nobody holds a lease."""

    idle: timedelta = timedelta(seconds=120)
    memory: str = _MEMORY
    master: str = _MASTER
    """Four attempts for a task: staging belongs to an attempt, so a retry is harmless."""
    java_options: str = ""
    """Behind those that every server has, so that these count."""
    start_timeout: timedelta = timedelta(seconds=180)

    @classmethod
    def from_environment(cls) -> ServerSettings:
        """Defaults, overridden by the PARALLEL_APPLY_SPARK_… variables. `ConfigurationError` for a bad number."""
        idle = os.environ.get(IDLE_VARIABLE, "120")
        try:
            seconds = float(idle)
        except ValueError as error:
            raise ConfigurationError(f"{IDLE_VARIABLE}={idle!r} is not a number of seconds", op="spark") from error
        return cls(
            idle=timedelta(seconds=seconds),
            memory=os.environ.get(MEMORY_VARIABLE, _MEMORY),
            master=os.environ.get(MASTER_VARIABLE, _MASTER),
            java_options=os.environ.get(JAVA_VARIABLE, ""),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerState:
    """The state that a running server tells its clients, through a file that only its user can read."""

    supervisor_pid: int
    server_pid: int
    port: int
    ui_url: str
    token: str = field(repr=False)

    @property
    def url(self) -> str:
        """The URL of Spark Connect. It names `localhost`, because only there the client sends a token without TLS."""
        return f"sc://localhost:{self.port}/;token={self.token}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout(HostLayout):
    """The files of one server."""

    @property
    def log(self) -> Path:
        """Spark's messages, bounded in size."""
        return self.directory / "spark.log"

    @property
    def configuration(self) -> Path:
        return self.work / "conf"

    def read_state(self) -> ServerState | None:
        """None while there is none, or none that this version can read."""
        return None if (values := self.read_values()) is None else server_state(values)

    def write_state(self, state: ServerState) -> None:
        """Whole or not at all, readable by the user alone."""
        self.write_values(asdict(state))

    def write_configuration(self, settings: ServerSettings) -> None:
        """Spark's configuration directory: its own, so that no file of the user's other Sparks has a say."""
        self.configuration.mkdir(parents=True, exist_ok=True)
        (self.configuration / "log4j2.properties").write_text(_LOGGING.format(log=self.log))
        pools = self.configuration / "pools.xml"
        pools.write_text(_POOLS)
        values = {
            "spark.master": settings.master,
            "spark.driver.memory": settings.memory,
            "spark.driver.extraJavaOptions": f"{_COMPILER} {settings.java_options}".rstrip(),
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.host": "127.0.0.1",
            # Tasks carry connection strings: only processes of this application may speak to its ports.
            "spark.authenticate": "true",
            "spark.ui.port": "0",
            # Spark's pages are open to everybody on the host: to look, not to end jobs.
            "spark.ui.killEnabled": "false",
            "spark.ui.threadDumpsEnabled": "false",
            "spark.ui.heapHistogramEnabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.ui.retainedJobs": "200",
            "spark.ui.retainedStages": "200",
            "spark.ui.retainedTasks": "5000",
            "spark.sql.ui.retainedExecutions": "100",
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.connect.grpc.binding.port": "0",
            "spark.scheduler.mode": "FAIR",
            "spark.scheduler.allocation.file": pools.as_uri(),
            "spark.eventLog.enabled": "false",
            "spark.python.daemon.module": daemon.MODULE,
            "spark.python.worker.reuse": "true",
            **UNMEASURED_BATCHES,
            "spark.local.dir": str(self.work / "local"),
            "spark.sql.warehouse.dir": (self.work / "warehouse").as_uri(),
        }
        lines = "".join(f"{name} {value}\n" for name, value in values.items())
        (self.configuration / "spark-defaults.conf").write_text(lines)


def server_state(values: Mapping[str, Any]) -> ServerState | None:
    """The state that a server says of itself; None where this version cannot read it."""
    try:
        return ServerState(**{entry.name: values[entry.name] for entry in fields(ServerState)})
    except (KeyError, TypeError):
        return None


def server_layout(root: Path | None = None) -> Layout:
    """The layout of this user's and installation's server, its directory made (mode 0700)."""
    from pyspark import __version__ as spark_version

    return Layout(directory=host_directory("spark", version=spark_version, root=root))
