"""A PostgreSQL of one's own, by a user without rights: of the package pgserver, with pgvector, or of the system."""

import contextlib
import importlib.util
import os
import pwd
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest


@contextlib.contextmanager
def cluster():
    """Yield the options of a connection, as a URL has them, to a server that listens on a socket of its own."""
    user = "postgres" if os.getuid() == 0 else pwd.getpwuid(os.getuid()).pw_name  # it refuses to run as root
    as_user = {"user": user, "group": user, "extra_groups": ()} if os.getuid() == 0 else {}
    with contextlib.suppress(KeyError), contextlib.ExitStack() as stack:
        pwd.getpwnam(user)
        folder = Path(tempfile.mkdtemp())
        stack.callback(shutil.rmtree, folder)
        shutil.chown(folder, user)
        options = {"cwd": "/", "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, **as_user}
        for initdb in _programs():
            made = [initdb, "--no-sync", "--auth=trust", f"--username={user}", "-D", folder / "data"]
            with contextlib.suppress(OSError):  # it may lie where that user may not look
                if subprocess.run(made, **options).returncode == 0:
                    break
            shutil.rmtree(folder / "data", ignore_errors=True)
        else:
            pytest.skip("needs PostgreSQL")
        control = [initdb.with_name("pg_ctl"), "-D", folder / "data", "-w"]
        settings = f"-c listen_addresses='' -c unix_socket_directories={folder} -c fsync=off"
        subprocess.run([*control, "-l", folder / "log", "-o", settings, "start"], check=True, **options)
        stack.callback(subprocess.run, [*control, "-m", "immediate", "stop"], check=True, **options)
        yield f"host={folder}&user={user}"
        return
    pytest.skip("needs PostgreSQL, and a user that may run it")


def _programs():
    own = importlib.util.find_spec("pgserver")
    if own is not None:
        yield Path(own.origin).parent / "pginstall" / "bin" / "initdb"
    yield from sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), reverse=True)
