"""Bytecode of the package and of the tests, made once before several workers begin: in a fresh clone each of them would
compile all of it, and rewrite the assertions of all test modules, at the same time.
"""

from __future__ import annotations

import compileall
import multiprocessing
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest

# What pytest's import hook does with a module that it meets, which has no public name.
from _pytest.assertion import rewrite

_ROOT: Final = Path(__file__).parents[2]
_FOLDERS: Final = ("airflow_parallel_apply", "tests")


def compile_all(config: pytest.Config) -> None:
    """Bring all bytecode up to date, in as many processes as there are processors."""
    if sys.dont_write_bytecode:
        return
    fork = multiprocessing.get_context("fork")
    files = sorted(file for folder in _FOLDERS for file in (_ROOT / folder).rglob("*.py"))
    count = os.cpu_count() or 1
    processes = [fork.Process(target=_compile, args=(files[part::count], config)) for part in range(count)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()


def _compile(files: Sequence[Path], config: pytest.Config) -> None:
    for file in files:
        if file.name == "conftest.py" or file.name.startswith("test_"):
            _rewrite(file, config)
        else:
            compileall.compile_file(file, quiet=2)


def _rewrite(file: Path, config: pytest.Config) -> None:
    directory = rewrite.get_cache_dir(file)
    kept = directory / f"{file.stem}{rewrite.PYC_TAIL}"
    if rewrite._read_pyc(file, kept) is None and rewrite.try_makedirs(directory):
        stat, code = rewrite._rewrite_test(file, config)
        rewrite._write_pyc(config.stash[rewrite.assertstate_key], code, stat, kept)
