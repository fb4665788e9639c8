"""The package for Node: its fixtures are the reference's answers of now, and its own tests pass where it is built."""

import json
import shutil
import subprocess
from pathlib import Path

import node_fixtures
import pytest

ROOT = Path(__file__).parents[2]
NODE = ROOT / "node"
pytestmark = pytest.mark.skipif(not NODE.is_dir(), reason="not in a checkout")


def test_fixtures_are_what_the_reference_says():
    made = json.loads(json.dumps(node_fixtures.fixtures()))
    assert made == json.loads((NODE / "test/fixtures.json").read_text())


def test_the_package_gives_the_references_answers():
    node = shutil.which("node")
    if node is None or not [*NODE.glob("prebuilds/*/ragsys_kernels.node")]:
        pytest.skip("needs node, and the package built: make node")
    ran = subprocess.run([node, "--test", "test/kernels.test.js"], cwd=NODE, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout[-3000:]
