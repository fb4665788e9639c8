"""What the image, CI and releases install is locked: entries by hashes, actions by commits, images by digests."""

import re
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

tomllib = pytest.importorskip("tomllib")

ROOT = Path(__file__).parents[2]
REQUIREMENTS = ROOT / "requirements"
DOCKERFILE = ROOT / "packaging" / "docker" / "Dockerfile"
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
LOCKS = ("build", "ci", "docs", "image", "tools")
pytestmark = pytest.mark.skipif(not WORKFLOWS, reason="not in a checkout")

ENTRY = re.compile(r"([a-z0-9-]+)==([\w.!+]+)( ; [\w.'\"<>=!() *-]+)?((?: \\\n    --hash=sha256:[0-9a-f]{64})+)\n")


def locked(name):
    """The entries of a lock: versions by name, as many as there are markers."""
    text = (REQUIREMENTS / f"{name}.lock").read_text(encoding="utf-8")
    found, at = {}, 0
    for entry in ENTRY.finditer(text):
        assert entry.start() == at, f"{name}.lock has a line without version and hashes: {text[at : entry.start()]!r}"
        found.setdefault(entry[1], []).append((entry[2], entry[3]))
        at = entry.end()
    assert at == len(text), f"{name}.lock has a line without version and hashes: {text[at:][:200]!r}"
    return found


def lines(name):
    text = (REQUIREMENTS / f"{name}.txt").read_text(encoding="utf-8")
    return [line for line in text.splitlines() if line and not line.startswith("#")]


def extra(name):
    """What an extra asks for, with those that it names of the package itself and with what the package needs."""
    found = list(PROJECT["project"]["dependencies"])
    for line in PROJECT["project"]["optional-dependencies"][name]:
        own = Requirement(line)
        if own.name == PROJECT["project"]["name"]:
            for inner in own.extras:
                found += extra(inner)
        else:
            found.append(line)
    return found


@pytest.mark.parametrize("name", LOCKS)
def test_every_entry_of_a_lock_has_a_version_and_hashes_and_nothing_of_a_machine(name):
    """The files of `make lock` have no other lines: no address of an index, no path, no option."""
    assert len(locked(name)) > 1
    assert {path.stem for path in REQUIREMENTS.glob("*.lock")} == set(LOCKS)


@pytest.mark.parametrize(
    ("name", "asked"),
    [
        ("image", extra("serve")),
        ("ci", extra("test") + lines("lint")),
        ("docs", extra("docs")),
        ("build", PROJECT["build-system"]["requires"]),
        ("build", lines("build")),
        ("ci", PROJECT["build-system"]["requires"]),
        ("docs", PROJECT["build-system"]["requires"]),
        ("tools", lines("tools")),
    ],
)
def test_a_lock_covers_what_is_asked_for(name, asked):
    there = locked(name)
    for line in asked:
        wanted = Requirement(line)
        versions = [version for version, _ in there.get(canonicalize_name(wanted.name), [])]
        fits = [wanted.specifier.contains(version, prereleases=True) for version in versions]
        assert any(fits) if wanted.marker else fits and all(fits), f"{name}.lock lacks {line}, it has {versions}"


def test_the_lock_of_ci_keeps_the_constraints():
    there = locked("ci")
    for wanted in map(Requirement, lines("constraints")):
        versions = [version for version, _ in there.get(canonicalize_name(wanted.name), [])]
        fits = [wanted.specifier.contains(version) for version in versions]
        assert any(fits) if wanted.marker else all(fits), wanted


def test_the_image_has_the_extras_of_its_requirements():
    """An entry of a lock names no extras: what `uvicorn[standard]` brings has to stand there by itself."""
    assert {"uvloop", "httptools", "websockets", "starlette", "pydantic-core", "anyio"} <= set(locked("image"))


def test_actions_are_commits_and_images_digests():
    used = [line for path in WORKFLOWS for line in re.findall(r"uses: (.+)", path.read_text(encoding="utf-8"))]
    assert len(used) > 10
    assert [each for each in used if not re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", each)] == []
    pins = {each.split("@")[0]: set() for each in used}
    for each in used:
        pins[each.split("@")[0]].add(each)
    assert all(len(each) == 1 for each in pins.values())
    images = re.findall(r"^FROM (\S+)", DOCKERFILE.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(images) == 2
    assert len(set(images)) == 1
    assert re.fullmatch(r"python:3\.12-slim@sha256:[0-9a-f]{64}", images[0])


@pytest.mark.parametrize("path", [*WORKFLOWS, DOCKERFILE], ids=lambda path: path.name)
def test_what_is_installed_is_locked(path):
    """By hashes, or it is the package itself, without what it needs; `make` gets the lock by name."""
    text = path.read_text(encoding="utf-8").replace("\\\n", " ")
    for command in re.findall(r"\bpip (?:install|wheel) [^&\n]*", text):
        assert "--require-hashes -r " in command or "--no-deps" in command, command
        assert set(re.findall(r"(\w+)\.lock", command)) <= set(LOCKS)
    assert "pipx" not in text
    if re.search(r"run: make (?!audit|wheels|check-wheels)", text):  # these install tools.lock whatever they are told
        named = "".join(re.findall(r"LOCK[:=] ?requirements/(\w+)\.lock", text))
        assert named in LOCKS


def test_make_with_a_lock_installs_it_first():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for stamp in (".test", ".docs", ".lint"):
        rule = re.search(rf"^\$\(VENV\)/{re.escape(stamp)}:.*\n(.*)\n", makefile, re.MULTILINE)
        assert rule[1].strip() == "$(LOCKED)"
    assert re.search(
        r"^\$\(VENV\)-tools/\.tools: .*\n.*\n\t\S*/pip install .*--require-hashes -r \$<$", makefile, re.MULTILINE
    )
    for target in ("audit", "wheels", "check-wheels"):
        assert re.search(rf"^{target}: \$\(VENV\)-tools/\.tools$", makefile, re.MULTILINE)
    assert "LOCKED := $(if $(LOCK),$(PIP_BARE) --require-hashes -r $(LOCK))" in makefile
    assert set(re.search(r"^LOCKS := (.*)$", makefile, re.MULTILINE)[1].split()) == set(LOCKS)
