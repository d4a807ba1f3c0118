"""Real servers for every test that wants one; a database of its own for each test; one embedded Spark for all."""

from __future__ import annotations

import atexit
import gc
import os
import shutil
import tempfile
import uuid
from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
from xdist.scheduler import LoadFileScheduling

from airflow_parallel_apply.demo.mariadb import MariaDbServer, missing_programs
from airflow_parallel_apply.demo.postgres import PostgresServer
from airflow_parallel_apply.pipeline.embedded.layout import RUNTIME_DIR_VARIABLE
from airflow_parallel_apply.spark.layout import JAVA_VARIABLE
from tests.support.clusters import CopiedServer, share_clusters
from tests.support.compiled import compile_all
from tests.support.databases import Databases
from tests.support.examples import load_profile
from tests.support.handed_on import handed_on
from tests.support.handed_on import new_sessions as with_new_sessions
from tests.support.memory_directory import memory_directory
from tests.support.shares import split

if TYPE_CHECKING:
    from airflow_parallel_apply.spark.server import ServerLease

# Airflow reads its home when it is imported, which some test modules do.
_AIRFLOW_HOME = Path(tempfile.mkdtemp(prefix="parallel-apply-airflow-"))
atexit.register(shutil.rmtree, _AIRFLOW_HOME, ignore_errors=True)
os.environ["AIRFLOW_HOME"] = str(_AIRFLOW_HOME)
# No Spark server of the user's own is touched.
os.environ.setdefault(RUNTIME_DIR_VARIABLE, str(_AIRFLOW_HOME / "runtime"))
# Each of many servers lives for a few small units: compile them quickly rather than well, and start few threads.
os.environ.setdefault(JAVA_VARIABLE, "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
(_AIRFLOW_HOME / "airflow.cfg").write_text(
    f"""\
[core]
dags_folder = {Path(__file__).parents[1] / "dags"}
load_examples = False
[logging]
logging_level = WARNING
"""
)

load_profile()

_SHARED: Final = {
    "tests/contract/test_stage.py": "spark",
    "tests/integration/encode/test_readers.py": "spark",
    "tests/integration/tables/test_awkward_tables.py": "spark",
    "tests/integration/airflow/test_dags_test.py": "spark",
    "tests/crash/test_random_kills.py": "spark that is killed",
    "tests/crash/test_copy_kills.py": "spark that is killed",
    "tests/contract/test_ledger.py": "mariadb",
    "tests/contract/test_staging.py": "mariadb",
    "tests/integration/target_mariadb/test_changed_by_hand.py": "mariadb",
    "tests/integration/target_mariadb/test_check.py": "mariadb",
    "tests/integration/target_mariadb/test_computed_columns.py": "mariadb",
    "tests/integration/target_mariadb/test_kills.py": "mariadb",
    "tests/integration/target_mariadb/test_rows.py": "mariadb",
    "tests/integration/target_mariadb/test_values.py": "mariadb",
    "tests/crash/test_target_kills.py": "spark that is killed",
    "tests/provider/test_connections.py": "airflow",
    "tests/provider/test_deferred_runs.py": "airflow",
    "tests/provider/test_export.py": "airflow",
    "tests/provider/test_interval_triggers.py": "airflow",
    "tests/provider/test_intervals.py": "airflow",
    "tests/provider/test_queue.py": "airflow",
    "tests/provider/test_runs.py": "airflow",
}

_SPARK: Final = "tests/integration/spark/"

_LONG: Final = {
    "tests/crash/test_bank.py",
    "tests/crash/test_named_kills.py",
    "tests/hunt/test_short_hunt.py",
    "tests/integration/airflow/test_scheduler.py",
    "tests/integration/copy/test_recopy.py",
    "tests/integration/demo/test_demo.py",
    "tests/integration/migrations/test_values_are_recast.py",
    "tests/integration/run/test_stores.py",
    "tests/integration/target/test_colocated_tables.py",
}
"""Each a minute or more on a busy machine."""

_QUICK: Final = {
    "fsync": "off",
    "max_prepared_transactions": "10",
    "max_active_replication_origins": "200",
    "track_commit_timestamp": "on",
    "full_page_writes": "off",
    "autovacuum": "off",
    "io_method": "sync",
    "shared_buffers": "64MB",
    "max_wal_size": "128MB",
    "wal_init_zero": "off",
    "wal_writer_delay": "10ms",
}
"""The settings of servers that hold little and need not survive the machine's crash: a tenth less work for each test.
And there is room for the replication origins of all databases that tests make beside those that are lent to them.
"""

_QUICK_MARIADB: Final = {
    "innodb_buffer_pool_size": "32M",
    "innodb_log_file_size": "16M",
    "innodb_flush_method": "nosync",
}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--share", metavar="N/COUNT", help="of the chosen tests, play the Nth of COUNT shares")


def pytest_configure(config: pytest.Config) -> None:
    """Temporary directories of this run's own: as root, servers run as another user, which has to pass the directories
    above its own, and pytest forbids that for the shared default each time that another run begins.
    """
    if config.option.basetemp is None:
        config.option.basetemp = base = str(memory_directory("paths"))
        config.add_cleanup(lambda: shutil.rmtree(base, ignore_errors=True))
    if hasattr(config, "workerinput"):
        return
    share_clusters(config)
    if config.getoption("numprocesses", None):
        compile_all(config)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put first what runs long in one process and would come last by its name: else the others wait for it. Of what
    the marks have left, one share is played if only one is asked for.
    """
    items.sort(key=lambda item: _turn(item.nodeid.partition("::")[0]))
    if share := config.getoption("share"):
        items[:], others = split(items, share)
        config.hook.pytest_deselected(items=others)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep what collection makes out of the garbage collector's sight: nearly all of it stays to the end."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def _turn(file: str) -> int:
    return 0 if file in _SHARED else 1 if file.startswith(_SPARK) else 2 if file in _LONG else 3


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadFileScheduling:
    """Files that need the same warm Spark, MariaDB's server or Airflow's database run in one process, one after the
    other: to start or make it costs more than most of them.
    """

    class Together(LoadFileScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            return _SHARED.get(file, "spark" if file.startswith(_SPARK) else file)

    return Together(config, log)


@pytest.fixture(scope="session")
def source_server() -> Iterator[PostgresServer]:
    yield from _server("source")


@pytest.fixture(scope="session")
def target_server() -> Iterator[PostgresServer]:
    yield from _server("target")


@pytest.fixture(scope="session")
def source_databases(source_server: PostgresServer) -> Iterator[Databases]:
    with closing(Databases(server=source_server)) as found:
        yield found


@pytest.fixture(scope="session")
def target_databases(target_server: PostgresServer) -> Iterator[Databases]:
    with closing(Databases(server=target_server)) as found:
        yield found


@pytest.fixture
def source_database(source_databases: Databases) -> Iterator[str]:
    """Name of an empty database on the source server."""
    name = source_databases.lend()
    yield name
    source_databases.take_back(name)


@pytest.fixture
def target_database(target_databases: Databases) -> Iterator[str]:
    """Name of an empty database on the target server."""
    name = target_databases.lend()
    yield name
    target_databases.take_back(name)


@pytest.fixture
def source_dsn(source_server: PostgresServer, source_database: str) -> str:
    return source_server.dsn(source_database)


@pytest.fixture
def target_dsn(target_server: PostgresServer, target_database: str) -> str:
    return target_server.dsn(target_database)


@pytest.fixture
def new_sessions() -> Iterator[None]:
    """Each connection is a new session: for tests of what holds from a session's beginning to its end."""
    with with_new_sessions():
        yield


@pytest.fixture(scope="session")
def mariadb_server() -> Iterator[MariaDbServer]:
    if missing := missing_programs():
        pytest.skip(f"MariaDB is not installed here: {', '.join(missing)} (apt-get install mariadb-server-core)")
    directory = memory_directory("mariadb")
    try:
        with MariaDbServer(directory / "data", settings=_QUICK_MARIADB) as server:
            yield server
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture
def mariadb_url(mariadb_server: MariaDbServer) -> Iterator[str]:
    """An empty database on a server that has no other, and no pipeline's tables."""
    mariadb_server.run("CREATE DATABASE test")
    yield mariadb_server.url("test")
    others = "SELECT SCHEMA_NAME FROM information_schema.SCHEMATA WHERE SCHEMA_NAME NOT IN ('sys', 'mysql')"
    found = mariadb_server.run(f"{others} AND SCHEMA_NAME NOT LIKE '%\\_schema'").splitlines()
    mariadb_server.run("".join(f"DROP DATABASE `{name}`;" for name in found))


@pytest.fixture
def ledger_dsn(target_server: PostgresServer, target_databases: Databases) -> Iterator[str]:
    """A third empty database, for what neither source nor target holds."""
    name = target_databases.lend()
    yield target_server.dsn(name)
    target_databases.take_back(name)


@pytest.fixture(scope="session")
def spark_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The server's directory; processes find it through `PARALLEL_APPLY_RUNTIME_DIR`."""
    return tmp_path_factory.mktemp("spark")


@pytest.fixture(scope="session")
def spark_server(spark_directory: Path) -> Iterator[ServerLease]:
    from airflow_parallel_apply.spark.layout import ServerSettings
    from airflow_parallel_apply.spark.server import connect_server, stop_server

    try:
        with connect_server(
            settings=replace(ServerSettings.from_environment(), idle=timedelta(seconds=30)), directory=spark_directory
        ) as lease:
            yield lease
    finally:
        stop_server(directory=spark_directory)


@pytest.fixture(scope="session")
def spark_session_id(spark_server: ServerLease) -> Iterator[str]:
    """One warm session for every test that does not end it."""
    from airflow_parallel_apply.spark.session import release_session

    session_id = str(uuid.uuid4())
    yield session_id
    release_session(spark_server.url, session_id)


def _server(side: str) -> Iterator[PostgresServer]:
    # Not under pytest's own directory: another session's start takes the server's user the way to it.
    directory = memory_directory(side)
    try:
        with CopiedServer(directory / "data", settings=_QUICK, cluster=side) as server, handed_on(server.port):
            yield server
    finally:
        shutil.rmtree(directory, ignore_errors=True)
