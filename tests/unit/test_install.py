"""`make` before there is an environment: packages from the configured index alone, Java found or named."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

CI = Path(__file__).resolve().parents[2] / ".ci"

# `make` gives every environment a pip; in one that was made without, the Python below it has one.
PYTHON = Path(sys.executable if importlib.util.find_spec("pip") else Path(sys.base_prefix) / "bin" / "python3")


@pytest.fixture
def install() -> ModuleType:
    spec = importlib.util.spec_from_file_location("parallel_apply_install", CI / "install.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def clean(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in os.environ:
        if name.startswith(("PIP_", "UV_")) or name == "SSL_CERT_FILE":
            monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    return monkeypatch


def test_uv_takes_the_indexes_that_pip_is_configured_with(install: ModuleType, clean: pytest.MonkeyPatch) -> None:
    clean.setenv("PIP_INDEX_URL", "https://mirror.example/simple")
    clean.setenv("PIP_EXTRA_INDEX_URL", "https://one.example/simple https://two.example/simple")
    clean.setenv("PIP_FIND_LINKS", "/wheels /more")
    clean.setenv("PIP_CERT", "/etc/ssl/mirror.pem")
    environment = install._uv_environment(PYTHON)
    assert environment["UV_DEFAULT_INDEX"] == "https://mirror.example/simple"
    assert environment["UV_INDEX"].split() == ["https://one.example/simple", "https://two.example/simple"]
    assert environment["UV_FIND_LINKS"] == "/wheels,/more"
    assert environment["SSL_CERT_FILE"] == "/etc/ssl/mirror.pem"


def test_uv_takes_the_indexes_of_pips_file_and_the_environment_wins(
    install: ModuleType, clean: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "pip.conf").write_text(
        "[global]\nindex-url = https://file.example/simple\nextra-index-url =\n    https://a.example\n    https://b.example\n"
    )
    clean.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))
    environment = install._uv_environment(PYTHON)
    assert environment["UV_DEFAULT_INDEX"] == "https://file.example/simple"
    assert environment["UV_INDEX"].split() == ["https://a.example", "https://b.example"]
    clean.setenv("PIP_INDEX_URL", "https://environment.example/simple")
    assert install._uv_environment(PYTHON)["UV_DEFAULT_INDEX"] == "https://environment.example/simple"


def test_what_the_user_told_uv_stays(install: ModuleType, clean: pytest.MonkeyPatch) -> None:
    clean.setenv("PIP_INDEX_URL", "https://pip.example/simple")
    clean.setenv("UV_DEFAULT_INDEX", "https://uv.example/simple")
    assert install._uv_environment(PYTHON)["UV_DEFAULT_INDEX"] == "https://uv.example/simple"


def test_without_settings_no_index_is_named(install: ModuleType, clean: pytest.MonkeyPatch) -> None:
    environment = install._uv_environment(PYTHON)
    assert {"UV_DEFAULT_INDEX", "UV_INDEX", "UV_FIND_LINKS"}.isdisjoint(environment)


def test_uv_itself_is_installed_by_hash(install: ModuleType) -> None:
    lines = install._pin("uv").splitlines()
    assert lines[0].startswith("uv==")
    assert len(lines) > 1
    assert all("--hash=sha256:" in line for line in lines[1:])


def test_an_old_python_is_told_so_in_one_line(install: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 10, 1))
    with pytest.raises(SystemExit, match=r"Python 3.11 or newer is needed"):
        install.main()


@pytest.mark.parametrize("version", ["17.0.15", "21", "25.0.1"])
def test_a_new_enough_java_is_silent(tmp_path: Path, version: str) -> None:
    done = _java_check(tmp_path, java=version, user="1000")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("version", [None, "1.8.0_392", "11.0.2"])
def test_without_a_new_enough_java_a_user_is_told_in_one_line_what_to_install(
    tmp_path: Path, version: str | None
) -> None:
    done = _java_check(tmp_path, java=version, user="1000")
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert "default-jre-headless" in done.stderr


def test_root_on_debian_gets_java_installed(tmp_path: Path) -> None:
    done = _java_check(tmp_path, java=None, user="0", apt="17.0.15")
    assert done.returncode == 0, done.stderr
    assert "installing it" in done.stdout


def test_root_is_told_when_the_distribution_has_no_new_enough_java(tmp_path: Path) -> None:
    done = _java_check(tmp_path, java=None, user="0", apt="11.0.2")
    assert done.returncode == 1
    assert "Java 17 or newer is missing" in done.stderr


def _java_check(
    folder: Path, *, java: str | None, user: str, apt: str | None = None
) -> subprocess.CompletedProcess[str]:
    """Run `.ci/java` where nothing but a made-up Java, user and apt-get exist."""
    for tool in ("bash", "sed", "head", "env", "cat", "chmod"):
        (folder / tool).symlink_to(shutil.which(tool) or tool)
    if java is not None:
        _script(folder / "java", f"echo 'openjdk version \"{java}\" 2025-01-01' >&2")
    _script(folder / "id", f"echo {user}")
    if apt is not None:
        line = f"#!/bin/sh\necho 'openjdk version \"{apt}\"' >&2\n"
        (folder / "java.new").write_text(line)
        _script(folder / "apt-get", f"cat {folder}/java.new > {folder}/java; chmod +x {folder}/java")
    environment = {"PATH": str(folder)}
    return subprocess.run([str(CI / "java")], env=environment, capture_output=True, text=True)


def _script(path: Path, body: str) -> None:
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
