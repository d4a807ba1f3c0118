"""Links from a lane's task."""

from __future__ import annotations

from typing import Final

import attrs
from airflow.sdk import BaseOperator, BaseOperatorLink
from airflow.sdk.types import TaskInstanceKey

SPARK_LINK_KEY: Final = "spark_ui"
"""XCom that a lane pushes as soon as it knows, so that the link works while the lane runs."""


@attrs.define()
class SparkLink(BaseOperatorLink):
    """Spark's own pages, where their address is known: those of the embedded server, while it runs."""

    name = "Spark"

    @property
    def xcom_key(self) -> str:
        return SPARK_LINK_KEY

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        del ti_key
        return getattr(operator, "spark_ui", None) or ""
