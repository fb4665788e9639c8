"""The site builds without a warning, has every public name, loads nothing from elsewhere; Python that is shown runs,
and prints what is shown."""

import ast
import doctest
import importlib.util
import re
import subprocess
import sys
import unicodedata
import warnings
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pages
import pytest
from tiny_encoder import TinyEncoder

import ragsys_kernels as rk
from ragsys_kernels import icl
from ragsys_kernels.integrations import _peers

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md"))

pytestmark = [
    pytest.mark.skipif(not DOCS.is_dir(), reason="the tests run outside of the source tree"),
    pytest.mark.filterwarnings("ignore::ragsys_kernels.PoolSizeWarning"),
]

# What a page's blocks import beside the library.
NEEDS = {
    "migration/langchain.md": ["langchain_core"],
    "migration/llama_index_haystack.md": ["llama_index.core", "haystack"],
    "migration/faiss.md": ["faiss"],
    "migration/sentence_transformers.md": ["sentence_transformers"],
    "migration/scikit_learn.md": ["sklearn"],
    "hybrid.md": ["bm25s"],
    "recipes.md": ["langchain_core", "llama_index.core", "haystack"],
    "offline.md": ["pyarrow"],
    "quality.md": ["transformers"],
    "papers/aicl.md": ["transformers", "sklearn"],
    "papers/ralm.md": ["transformers", "bm25s"],
    "papers/vrsd.md": ["bm25s"],
    "gpu.md": ["torch", "triton"],
    "tutorial.md": ["sklearn", "pyarrow", "transformers"],
}
# Pages that run in a fresh interpreter, because what they show is decided before anything is imported.
ENVIRONMENT = {"gpu.md": {"TRITON_INTERPRET": "1"}}
# Pages that ask a server; tests/serving/test_service_docs.py runs them.
SERVED = {"service.md", "service_stores.md"}
ELSEWHERE = {*ENVIRONMENT, *SERVED}


def blocks(path):
    """(code, output) of a file's blocks of Python."""
    return [shown[1:] for shown in pages.blocks(path, "python")]


def run_blocks(path, capsys):
    found = {}
    capsys.readouterr()
    for number, (code, shown) in enumerate(blocks(path)):
        exec(compile(code, f"{path.name}, block {number}", "exec"), found)
        assert capsys.readouterr().out.split() == shown.split(), f"{path.name}, block {number}"


@pytest.fixture
def stand_ins(monkeypatch):
    """In the place of what pages load and is not here: a tiny language model, a tiny encoder, a data set of Ray."""
    ray, data = ModuleType("ray"), ModuleType("ray.data")
    ray.put = ray.get = lambda value: value
    vectors = np.random.default_rng(0).standard_normal((3, 64), dtype=np.float32)

    def map_batches(selector, **options):
        assert options["batch_size"] > 0
        return selector()({"vector": vectors})

    queries = SimpleNamespace(map_batches=map_batches)
    ray.data, data.read_parquet, data.ActorPoolStrategy = data, lambda path: queries, lambda size: size
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setitem(sys.modules, "ray.data", data)
    if importlib.util.find_spec("transformers") and importlib.util.find_spec("torch"):
        import lm_models

        from ragsys_kernels.icl import HuggingFaceModel

        model = HuggingFaceModel(lm_models.model(), lm_models.tokenizer())
        monkeypatch.setattr(HuggingFaceModel, "from_pretrained", lambda name, **options: model)
    for place in (icl, icl.encoders):
        monkeypatch.setattr(place, "SentenceTransformerEncoder", lambda name, **_: TinyEncoder())


@pytest.mark.sampled(2)
@pytest.mark.usefixtures("stand_ins")
@pytest.mark.parametrize("page", [page for page in PAGES if blocks(DOCS / page) and page not in ELSEWHERE])
def test_python_of_a_page_runs_and_prints_what_is_shown(page, tmp_path, monkeypatch, capsys):
    with warnings.catch_warnings():  # of FAISS's wrapper, on some versions of Python
        warnings.simplefilter("ignore")
        for module in NEEDS.get(page, []):
            pytest.importorskip(module)
    monkeypatch.chdir(tmp_path)
    run_blocks(DOCS / page, capsys)


def test_the_recipe_for_qdrant_takes_no_points_for_an_answer():
    found = {}
    exec(blocks(DOCS / "migration/qdrant.md")[0][0], found)
    assert found["select"]([], [1.0, 0.0], 3, 0.5) == []


@pytest.mark.slow
@pytest.mark.parametrize("page", ENVIRONMENT)
def test_python_of_a_page_runs_in_its_environment(page, run_python):
    for module in NEEDS[page]:
        pytest.importorskip(module)
    codes, shown = zip(*blocks(DOCS / page), strict=True)
    assert run_python("\n".join(codes), **ENVIRONMENT[page]).stdout.split() == " ".join(shown).split()


def test_python_of_the_readme_prints_what_is_shown(tmp_path, monkeypatch, capsys):
    for module in ("langchain_core", "llama_index.core", "haystack"):
        pytest.importorskip(module)
    monkeypatch.chdir(tmp_path)
    assert any(shown for _, shown in blocks(ROOT / "README.md"))
    run_blocks(ROOT / "README.md", capsys)


def test_readme_is_a_door():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 150


def prose(path):
    return re.sub(r"^```.*?^```$", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


def anchors(path):
    """Of a page's headings: those that GitHub gives them, and those of the site, which drops what is not ASCII."""
    headings = [
        re.sub(r"\[(.+?)\]\(.+?\)|[`*]", r"\1", line) for line in re.findall(r"^#+ (.+)$", prose(path), re.MULTILINE)
    ]
    github = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
    plain = [unicodedata.normalize("NFKD", heading).encode("ascii", "ignore").decode() for heading in headings]
    site = {re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower()) for heading in plain}
    return github, site


@pytest.mark.parametrize("page", ["README.md", *(f"docs/{page}" for page in PAGES)])
def test_links_lead_to_files_and_headings_of_the_repository(page):
    path = ROOT / page
    for target, anchor in re.findall(r"\]\(([^)\s#]*)#?([^)\s]*)\)", prose(path)):
        if "://" in target:
            continue
        file = path.parent / target if target else path
        assert file.exists(), target
        if anchor:
            assert all(anchor in found for found in anchors(file)), f"{target}#{anchor}"


@pytest.mark.parametrize(("folder", "kinds"), [("benchmarks", ["py"]), ("csrc", ["c", "cpp", "cu", "cuh", "h", "inl"])])
def test_readme_of_a_folder_names_every_file_in_it(folder, kinds):
    named = re.findall(r"`(?:[\w/]+/)?([\w.*]+)`", (ROOT / folder / "README.md").read_text(encoding="utf-8"))
    files = [path for kind in kinds for path in (ROOT / folder).rglob(f"*.{kind}") if not path.name.startswith("__")]
    assert len(files) > 20
    assert not [path.name for path in files if not any(map(path.match, named))]


def firsts(page):
    """What stands in backticks in the first column of a page's tables."""
    cells = re.findall(r"^\| (`.+?) \|", (DOCS / page).read_text(encoding="utf-8"), re.MULTILINE)
    return [name for cell in cells for name in re.findall(r"`([^`]+)`", cell)]


def test_page_on_installing_has_every_extra_variable_and_model():
    extras = re.search(
        r"\[project.optional-dependencies\]\n(.+?)\n\n", (ROOT / "pyproject.toml").read_text(), re.DOTALL
    )[1]
    extras = re.findall(r"^([\w-]+) = \[", extras, re.MULTILINE)
    variables = re.findall(r"^([A-Z_]+)  ", rk._base.env.__doc__, re.MULTILINE)
    assert (len(extras), len(variables)) > (20, 10)
    assert sorted(firsts("install.md")) == sorted([*extras, *variables, *icl.packaged.MODELS])


def raised_or_warned(call):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            call()
        except Exception as error:
            return f"{type(error).__name__}: {error}"
    return f"{caught[0].category.__name__}: {caught[0].message}"


def test_page_of_messages_quotes_them_as_they_are():
    rows, queries = np.random.default_rng(0).standard_normal((2, 100, 32), dtype=np.float32)
    corpus, dated, broken = rk.Corpus(rows), rk.Corpus(rows, time=np.full(100, 1e6)), rows.copy()
    broken[3, 1] = np.nan
    calls = [
        lambda: rk.mmr(queries, rows.tolist(), 3),
        lambda: rk.mmr(None, rows, 3, relevance=np.arange(100.0)[None]),
        lambda: rk.mmr(None, rows, 3, relevance=1 / (60 + np.arange(100.0))[None]),
        lambda: dated.select(queries, 3, half_life=90, now=1e9),
        lambda: dated.select(queries, 3, half_life=90, now=1e5),
        lambda: corpus.select(queries, 4, pool=4),
        lambda: rk.mmr(queries[0], rows, 3),
        lambda: rk.mmr(queries[:, :30], rows, 3),
        lambda: rk.mmr(queries, np.ones((5, 32), np.int64), 3),
        lambda: rk.Corpus(broken),
        lambda: rk.mmr(queries[:1], rows, 1, candidates=np.array([[1, 300]])),
        lambda: rk.mmr(queries[:1], rows, 1, candidates=np.array([[2, 2]])),
        lambda: corpus.select(queries, 3, method="vrsd", lambda_d=0.5),
        lambda: rk.mmr(queries, rows, 3, backend="cuda"),
    ]
    quoted = firsts("faq.md")
    assert len(quoted) == len(calls) + 1  # that of a package that is missing
    for message, call in zip(quoted, calls, strict=False):
        assert message.removesuffix("...") in raised_or_warned(call)
    with pytest.raises(ModuleNotFoundError) as missing, _peers.needed("langchain"):
        raise ModuleNotFoundError(name="elsewhere")
    assert all(part in str(missing.value) for part in quoted[-1].split("..."))


def test_pages_say_what_has_run_on_a_gpu():
    measured = (ROOT / "benchmarks" / "results" / "gpu.csv").exists()
    for page in (ROOT / "README.md", DOCS / "gpu.md"):
        assert ("not yet on a GPU" in page.read_text() or "not run on a GPU yet" in page.read_text()) is not measured


def test_no_block_of_python_escapes():
    """Every fence that says Python in some way is one that is run."""
    for path in [ROOT / "README.md", *(DOCS / page for page in PAGES)]:
        text = path.read_text(encoding="utf-8")
        fences = re.findall(
            r"^[ >]*(?:```|~~~)+ *\{?\.?(?:py|python|python3|pycon)\b.*$", text, re.MULTILINE | re.IGNORECASE
        )
        assert fences == ["```python"] * len(blocks(path)), path.name
    for path in [ROOT / "csrc" / "README.md", *(ROOT / "ragsys_kernels").glob("*/README.md")]:  # pages of the site too
        assert "```python" not in path.read_text(encoding="utf-8"), path


def docstrings():
    """All that have examples, by name, and the modules whose names they use."""
    finder = doctest.DocTestFinder(exclude_empty=True)
    for path in sorted((ROOT / "ragsys_kernels").rglob("*.py")):
        if ">>> " in path.read_text(encoding="utf-8"):
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
            try:
                module = importlib.import_module(name)
            except ModuleNotFoundError:  # of a peer that is not installed
                continue
            yield from (each for each in finder.find(module) if each.examples)


EXAMPLES = list(docstrings())
assert len(EXAMPLES) > 20
# Their examples show a use, not a result: a store, a server and a cluster would be needed, and FAISS.
SHOWN_ONLY = {
    "ragsys_kernels.integrations.langchain_stores.MaxMarginalRelevanceMixin",
    "ragsys_kernels.offline.ray.selector.selector_for_ray",
    "ragsys_kernels.corpus.Corpus.to_faiss",
    "ragsys_kernels.serving.app.create_app",
    "ragsys_kernels.serving.client.Client",
    "ragsys_kernels.serving.ray_serve.ray_deployment",
}


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name.removeprefix("ragsys_kernels."))
def test_examples_of_a_docstring_give_what_they_show(example):
    if example.name in SHOWN_ONLY:
        assert not any(each.want for each in example.examples)
        return
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
    failed, tried = runner.run(example)
    assert (failed, tried > 0) == (0, True)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    for module in ("mkdocs", "material", "mkdocstrings"):
        pytest.importorskip(module)
    out = tmp_path_factory.mktemp("site")
    # Not with --quiet, which takes the warnings away that --strict is to count.
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", out]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stdout + result.stderr
    return out


def public_modules():
    """Packages, and modules of the drop-ins, that say what is public, and the modules whose functions are."""
    packages = [path for path in (ROOT / "ragsys_kernels").rglob("*.py") if path.parent.name == "integrations"]
    packages += (ROOT / "ragsys_kernels").glob("*/__init__.py")
    named = [path for path in packages if re.search(r"^__all__ = ", path.read_text(), re.MULTILINE)]
    modules = [path.with_suffix("").relative_to(ROOT).as_posix().removesuffix("/__init__") for path in named]
    return ["ragsys_kernels", *(path.replace("/", ".") for path in modules), "ragsys_kernels.metrics"]


def names(module):
    path = ROOT / module.replace(".", "/")
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    tree = ast.parse(file.read_text())
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return ast.literal_eval(node.value)
    return [node.name for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))]


@pytest.mark.slow
def test_every_public_name_is_on_a_page(site):
    anchors = set()
    for page in (site / "api").glob("*.html"):
        anchors |= set(re.findall(r'id="(ragsys_kernels\.[\w.]+)"', page.read_text()))
    modules = public_modules()
    assert {"ragsys_kernels.icl", "ragsys_kernels.integrations.langchain"} <= set(modules)
    expected = {f"{module}.{name}" for module in modules for name in names(module) if not name.startswith("_")}
    assert not {name for name in expected - anchors if _wants_a_place(name)}


def _wants_a_place(name):
    """Constants have no docstring to show, and what the library itself exports is there."""
    module, _, attribute = name.rpartition(".")
    return attribute not in rk.__all__ and callable(getattr(importlib.import_module(module), attribute))


@pytest.mark.slow
def test_every_page_is_in_the_menu_or_listed_by_a_page_there(site):
    def linked(path, text):
        found = re.findall(r'<a\b[^>]*? href="([^"#:]+\.html)', text)
        return {(path.parent / each).resolve() for each in found}

    start = site / "index.html"
    menu = re.search(
        r'<nav class="md-nav md-nav--primary.*?</nav>\s*</div>\s*</div>\s*</div>', start.read_text(), re.DOTALL
    )
    entries = linked(start, menu[0])
    assert 40 < len(entries) <= 60
    listed = set()
    for name in ("examples.html", "reports.html", "papers/tables.html", "design/index.html"):
        assert site / name in entries
        listed |= linked(site / name, re.search(r"<article.*?</article>", (site / name).read_text(), re.DOTALL)[0])
    pages = {page for page in site.rglob("*.html") if page.name != "404.html"}
    assert not pages - entries - listed
    assert all(
        '<div class="toc">' in page.read_text() for page in pages - entries
    )  # the menu shows the others' sections


@pytest.mark.slow
def test_nothing_is_loaded_from_elsewhere(site):
    loaded = re.compile(r"<(?:script|img|iframe|link)\b[^>]*?(?:src|href)=\"((?:https?:)?//[^\"]+)\"")
    pages = list(site.rglob("*.html"))
    assert len(pages) > len(PAGES)
    assert not {url for page in pages for url in loaded.findall(page.read_text())}
    assert "fonts.googleapis" not in (site / "index.html").read_text()


@pytest.mark.slow
def test_pages_take_sections_of_other_files_and_tables_from_results(site):
    text = (site / "migration" / "langchain.html").read_text()
    assert "LangChain, arrays, P=20, K=4" in text
    table = (ROOT / "benchmarks" / "results" / "lambda.md").read_text()
    first = re.search(r"^\| 0 \| ([\d.]+)", table, re.MULTILINE).group(1)
    assert f">{first}<" in (site / "parameters.html").read_text()
    assert not re.search(r"<!-- (from|names)", text)
