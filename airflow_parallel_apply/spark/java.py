"""The Java runtime that Spark needs: found, and checked before anything waits for it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from airflow_parallel_apply.pipeline.errors import ConfigurationError

MINIMUM_JAVA: Final = 17
_VERSION: Final = re.compile(r'version "(\d+)')
_HINT: Final = (
    f"Install Java {MINIMUM_JAVA} or newer (Debian: apt-get install openjdk-17-jre-headless; "
    "macOS: brew install openjdk@17), or let JAVA_HOME point to one."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Java:
    """A usable runtime."""

    executable: Path
    major: int


def find_java() -> Java:
    """JAVA_HOME's Java, or else the first one on the path. `ConfigurationError` when it is missing or too old."""
    home = os.environ.get("JAVA_HOME")
    found = shutil.which(str(Path(home) / "bin" / "java")) if home else shutil.which("java")
    if found is None:
        where = f"JAVA_HOME is {home}, which has no bin/java" if home else "no java on the path"
        raise ConfigurationError(f"Spark needs Java, and there is none: {where}", op="spark", hint=_HINT)
    try:
        done = subprocess.run([found, "-version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigurationError(f"Java at {found} does not run: {error}", op="spark", hint=_HINT) from error
    version = _VERSION.search(done.stderr) or _VERSION.search(done.stdout)
    if done.returncode != 0 or version is None:
        raise ConfigurationError(f"Java at {found} does not tell its version", op="spark", hint=_HINT)
    major = int(version.group(1))
    if major < MINIMUM_JAVA:
        raise ConfigurationError(f"Java at {found} is version {major}, too old for Spark", op="spark", hint=_HINT)
    return Java(executable=Path(found), major=major)
