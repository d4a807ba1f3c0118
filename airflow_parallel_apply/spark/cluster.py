"""A Spark cluster that applications are submitted to, as a user names it: its master and Spark's settings."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from airflow_parallel_apply.pipeline.errors import ConfigurationError
from airflow_parallel_apply.spark.session import UNMEASURED_BATCHES

_MASTER: Final = re.compile(r"yarn|spark://[^\s/:,]+:\d+(,[^\s/:,]+:\d+)*|k8s://\S+")
_LOCAL: Final = re.compile(r"local(\[.*\])?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Errors: `ConfigurationError` for a master that no cluster has. Spark would take some of them for `yarn`.

    `settings`: of Spark, over `spark-defaults.conf`; may be secret, so they go through a file that only its user reads.
    """

    master: str
    settings: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if _LOCAL.fullmatch(self.master):
            raise ConfigurationError(
                f"{self.master!r} is no cluster",
                hint="Leave spark_conn_id empty for a Spark on the worker's own host; "
                "PARALLEL_APPLY_SPARK_MASTER says how many cores it takes.",
            )
        if not _MASTER.fullmatch(self.master):
            raise ConfigurationError(
                f"{self.master!r} is no Spark master",
                hint="It looks like spark://host:7077, yarn, or k8s://https://host:6443.",
            )

    def properties(self, *, cores: int) -> dict[str, str]:
        """The properties of an application that uses at most `cores` cores, unless the user says otherwise.

        Standalone Spark gives an application every core there is, so that one lane would keep the others waiting.
        """
        bounded = {
            "spark.executor.cores": "1",
            **({"spark.cores.max": str(cores)} if self.master.startswith("spark:") else {}),
            **({} if self.master.startswith("spark:") else {"spark.executor.instances": str(cores)}),
        }
        return {
            **bounded,
            "spark.ui.port": "0",
            "spark.ui.showConsoleProgress": "false",
            "spark.log.level": "WARN",
            **UNMEASURED_BATCHES,
            **self.settings,
            "spark.master": self.master,
            "spark.submit.deployMode": "client",
        }
