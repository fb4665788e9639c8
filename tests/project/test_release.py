"""What a release says of itself agrees: versions, what the conda package needs."""

import re
from pathlib import Path

import pytest

import ragsys_kernels as rk

yaml = pytest.importorskip("yaml")
tomllib = pytest.importorskip("tomllib")

ROOT = Path(__file__).parents[2]
RECIPE = ROOT / "packaging" / "conda" / "recipe.yaml"
pytestmark = pytest.mark.skipif(not RECIPE.exists(), reason="the tests run outside of the source tree")


def loaded(path):
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def plain(requirements):
    return {re.sub(r"\s", "", each) for each in requirements}


def test_versions_are_one():
    assert loaded(ROOT / "CITATION.cff")["version"] == loaded(RECIPE)["context"]["version"] == rk.__version__


def test_the_conda_package_needs_what_pyproject_says():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    project, recipe = settings["project"], loaded(RECIPE)
    needs = recipe["requirements"]
    assert plain(needs["run"]) == {"python", *plain(project["dependencies"])}
    build = plain(settings["build-system"]["requires"])
    assert plain(needs["host"]) == {"python", "pip", *build}
    (cross,) = (each["then"] for each in needs["build"] if isinstance(each, dict))
    assert build < plain(cross)  # on a machine of another kind the tools run in the environment that builds
    assert plain(needs["run_constraints"]) == plain(project["optional-dependencies"]["cli"])
    oldest = project["requires-python"].removeprefix(">=")
    assert f'match(python, "<{oldest}")' in recipe["build"]["skip"]
    assert {key: recipe["about"][key] for key in ("summary", "license")} == {
        "summary": project["description"],
        "license": project["license"],
    }
    for name in (recipe["about"]["license_file"], *recipe["tests"][1]["files"]["source"]):
        assert (ROOT / name).exists()


@pytest.mark.parametrize("platform", ["linux-64", "linux-aarch64", "osx-arm64"])
def test_rattler_build_renders_the_recipe(platform):
    rattler = pytest.importorskip("rattler_build")
    variants = "python: ['3.10.* *_cpython', '3.14.* *_cp314']\nc_stdlib: [sysroot]\nc_stdlib_version: ['2.28']\n"
    machine = rattler.PlatformConfig(target_platform=platform, host_platform=platform, build_platform="linux-64")
    found = rattler.Stage0Recipe.from_file(RECIPE).render(
        rattler.VariantConfig.from_yaml(variants), rattler.RenderConfig(machine)
    )
    packages = [each.recipe.to_dict() for each in found]
    assert [each["build"]["string"][:5] for each in packages] == ["py310", "py314"]
    for each in packages:
        assert each["package"] == {"name": "ragsys_kernels", "version": rk.__version__}
        assert (f"cross-python_{platform}" in each["requirements"]["build"]) is (platform != "linux-64")
