"""JSON arrays of numbers as the extension of SQLite reads them, whatever the locale of the program that loads it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
ARRAYS = {
    "[0.5, 1.5]": [0.5, 1.5],
    "[0,5,1,5]": [0, 5, 1, 5],
    " [ 1e2 ,-0.25e-1] ": [100, -0.025],
    "[0.1000000000000000055511151231257827]": [0.1],
    "[]": [],
    "[1,]": None,
    "[.5]": None,
    "[0x10]": None,
    "[-inf]": None,
    "[-nan]": None,
    "[1;5]": None,
}


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    compiler = shutil.which("cc")
    if compiler is None or not sys.platform.startswith("linux"):
        pytest.skip("needs a C compiler, and Linux for its linker's options")
    found = tmp_path_factory.mktemp("numbers") / "sqlite_numbers"
    # Without what the rest of the file calls: SQLite and the kernels.
    unused = ("-ffunction-sections", "-fdata-sections", "-Wl,--gc-sections", "-Wno-unused-function")
    source, headers = ROOT / "tests" / "cpp" / "sqlite_numbers.c", ROOT / "csrc" / "include"
    command = [compiler, "-std=gnu11", "-O1", "-Wall", "-Werror", *unused, "-I", headers, source, "-o", found]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=60)
    if "sqlite3ext.h" in done.stderr:
        pytest.skip("needs SQLite's headers")
    assert done.returncode == 0, done.stderr
    return found


COMMA = """LC_NUMERIC
decimal_point ","
thousands_sep "."
grouping 3;3
END LC_NUMERIC
"""  # as in German, all of which takes seconds to compile


@pytest.mark.parametrize("locale", ["C", "comma"])
def test_numbers_are_those_of_json_in_every_locale(program, tmp_path, locale):
    environment = dict(os.environ)
    if locale != "C":
        if shutil.which("localedef") is None:
            pytest.skip("needs localedef")
        (tmp_path / "numbers").write_text(COMMA)
        made = ["localedef", "-c", "-i", "numbers", "-f", "UTF-8", f"./{locale}"]  # -c: although it warns of the rest
        subprocess.run(made, cwd=tmp_path, capture_output=True, timeout=60)
        if not (tmp_path / locale).exists():
            pytest.skip("needs the sources of localedef")
        environment["LOCPATH"] = str(tmp_path)
    done = subprocess.run(
        [str(program), locale, *ARRAYS], capture_output=True, text=True, timeout=60, env=environment, check=True
    )
    assert ("," in done.stdout) == (locale != "C")
    for (text, numbers), line in zip(ARRAYS.items(), done.stdout.splitlines(), strict=True):
        count, *found = line.split()
        assert int(count) == (-1 if numbers is None else len(numbers)), text
        assert [float.fromhex(x.replace(",", ".")) for x in found] == np.float32(numbers or []).tolist(), text
