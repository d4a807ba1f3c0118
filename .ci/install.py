"""Make `.venv` from `requirements.lock`, with nothing but Python 3.11 and its `venv` on the machine.

Everything comes from the lock, checked by hash: first uv by pip, then the rest by uv, or by pip where uv cannot run.
Package indexes are those that pip is configured with (pip.conf or environment); the lock names none. Done again only
when the lock, pyproject.toml or Python itself changed. Standard library only, since it runs before all else.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "requirements.lock"
VENV = ROOT / ".venv"
STAMP = VENV / ".installed"
OLDEST_PYTHON = (3, 11)

# What uv calls pip's settings that say where packages come from: uv reads neither pip's files nor its environment.
UV_NAMES = {
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_INDEX",
    "find-links": "UV_FIND_LINKS",
    "no-index": "UV_NO_INDEX",
    "trusted-host": "UV_INSECURE_HOST",
    "cert": "SSL_CERT_FILE",
    "timeout": "UV_HTTP_TIMEOUT",
    "default-timeout": "UV_HTTP_TIMEOUT",
}


def main() -> None:
    """Install, or say in one line why not."""
    if sys.version_info < OLDEST_PYTHON:
        sys.exit(f"Python 3.11 or newer is needed, this is {sys.version.split()[0]}: make PYTHON=/path/to/python3.11 …")
    wanted = _digest()
    if STAMP.exists() and STAMP.read_text() == wanted:
        STAMP.touch()
        return
    STAMP.unlink(missing_ok=True)
    python = _venv()
    pip = [str(python), "-m", "pip", "--disable-pip-version-check", "-qq", "install"]  # errors only
    # In a terminal uv shows how far its downloads are, and what it has installed.
    quiet = () if sys.stderr.isatty() else ("--quiet", "--no-progress")
    uv = [str(VENV / "bin" / "uv"), *quiet, "pip", "install", "--python", str(python)]
    environment = _uv_environment(python)
    with tempfile.TemporaryDirectory() as temporary:
        only_uv = Path(temporary) / "uv.lock"
        only_uv.write_text(_pin("uv"))
        have_uv = _runs([*pip, "--require-hashes", "--no-deps", "-r", str(only_uv)], dict(os.environ))
    _say("installing the pinned packages (about 30 seconds with a fast network)")
    locked = ["--require-hashes", "--no-deps", "-r", str(LOCK)]
    # Compiled once, here: where PYTHONDONTWRITEBYTECODE is set, each process would compile all that it imports.
    if not (have_uv and _runs([*uv, "--compile-bytecode", *locked], environment)):
        _say("uv cannot run here; pip does it, which takes some minutes")
        if not _runs([*pip, *locked], dict(os.environ)):
            sys.exit("The packages could not be installed; pip said why above. Behind a mirror, configure pip for it.")
    if not _runs([*pip, "--no-deps", "--no-build-isolation", "--editable", str(ROOT)], dict(os.environ)):
        sys.exit("The project itself could not be installed; pip said why above.")
    STAMP.write_text(wanted)


def _digest() -> str:
    """Of everything that the environment depends on."""
    digest = hashlib.sha256(sys.version.encode())
    for path in (LOCK, ROOT / "pyproject.toml"):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _venv() -> Path:
    """The interpreter of `.venv`, made anew when it is missing, broken or of another Python."""
    python = VENV / "bin" / "python"
    probe = "import pip, sys; print(sys.version)"
    if python.exists():
        found = subprocess.run([str(python), "-c", probe], capture_output=True, text=True, check=False)
        if found.stdout.strip() == sys.version:
            return python
    _say(f"making {VENV} with Python {sys.version.split()[0]}")
    made = subprocess.run(
        [sys.executable, "-m", "venv", "--clear", str(VENV)], capture_output=True, text=True, check=False
    )
    if made.returncode != 0:
        version = f"{sys.version_info[0]}.{sys.version_info[1]}"
        sys.exit(
            f"{sys.executable} cannot make a virtual environment: {(made.stdout + made.stderr).strip()[-300:]}\n"
            f"On Debian and Ubuntu: apt-get install python{version}-venv, then again."
        )
    return python


def _pin(name: str) -> str:
    """The lock's lines for one package."""
    found = re.search(rf"^{name}==.*(?:\n +--hash=.*)*", LOCK.read_text(), re.MULTILINE)
    if found is None:
        sys.exit(f"{LOCK.name} has no {name}: make lock")
    return found.group() + "\n"


def _uv_environment(python: Path) -> dict[str, str]:
    """The environment for uv: pip's configuration in uv's words. What the user told uv directly stays."""
    listed = subprocess.run(
        [str(python), "-m", "pip", "--disable-pip-version-check", "config", "list"],
        capture_output=True,
        text=True,
        check=False,
    )
    # Later lines win, as in pip: files from the widest to the nearest, then `:env:`.
    settings: dict[str, str] = {}
    for line in sorted(listed.stdout.splitlines(), key=lambda line: line.startswith(":env:")):
        key, _, value = line.partition("=")
        if key.rpartition(".")[2] in UV_NAMES:
            settings[UV_NAMES[key.rpartition(".")[2]]] = " ".join(value.strip("'\"").replace("\\n", " ").split())
    if "UV_FIND_LINKS" in settings:
        settings["UV_FIND_LINKS"] = settings["UV_FIND_LINKS"].replace(" ", ",")
    # pip looks at all indexes for the best version; hashes make that as safe here as the first index alone.
    return {"UV_INDEX_STRATEGY": "unsafe-best-match", **settings, **os.environ}


def _runs(command: list[str], environment: dict[str, str]) -> bool:
    """Whether the command ended well; one that cannot even start did not."""
    try:
        return subprocess.run(command, env=environment, check=False, cwd=ROOT).returncode == 0
    except OSError:
        return False


def _say(text: str) -> None:
    print(f"install: {text}", flush=True)  # the only way that this script has to speak


if __name__ == "__main__":
    main()
