# The tools, and the extension, for Arm and under the sanitizers. The top Makefile includes this file; alone it is
# `make -f tests/cpp/native.mk arm` in the repository root, with a python3 that has the package's test dependencies.
NATIVE_CORE ?= csrc/cpu
NATIVE_OUT ?= build/native
NATIVE_PYTHON ?= $(if $(BIN),$(BIN)/python,python3)
ARM ?= aarch64-linux-gnu-
ARM_PACKAGES := g++-aarch64-linux-gnu qemu-user
# The tests of the compiled ops; without those of folders, installs and other libraries, on which sanitizers have no
# bearing or a bad one.
native_not_sanitized := corpus/test_faiss corpus/test_folder ops/test_dispatch ops/test_parity ops/test_torch_ops
SANITIZE_TESTS ?= $(filter-out $(native_not_sanitized:%=tests/%.py), \
	$(wildcard $(patsubst %,tests/%/test_*.py,selection scoring corpus ops fuzz)))
SANITIZE_PYTEST ?= -q -x -n 2 --dist worksteal -k "not [reference and not [cuda and not little_memory and not memory_is_held and not process_that_dies"

# Those of setup.py that matter to what is computed and warned of.
NATIVE_FLAGS := -std=c++17 -ffp-contract=off -Wall -Wextra -Wno-psabi -pthread -I$(NATIVE_CORE)
# -O0 keeps what inlining hides: a function that belongs to no target region, and yet takes or returns its vectors. The
# tests of the extension run what -O3 makes of the kernels.
NATIVE_FLAGS_plain := -O0
# The AVX-512 kernels as processors without VNNI and a matrix unit run them.
NATIVE_FLAGS_no_vnni := -O1 -DRSK_NO_VNNI -DRSK_NO_AMX
# -O3 is how the extension is compiled, for which the NEON instructions are counted. -static: one file without a
# dynamic loader, which an emulator would look for in the root of the host.
NATIVE_FLAGS_arm := -O3 -static
# -O1: at -O3 the sanitizers' checks take minutes to compile.
NATIVE_FLAGS_asan := -O1 -g1 -fPIC -fvisibility=hidden -fno-omit-frame-pointer -fsanitize=address,undefined \
	-fno-sanitize-recover=all
NATIVE_FLAGS_tsan := -O1 -g1 -fsanitize=thread
native_cxx = $(if $(filter arm,$1),$(ARM)g++,$(CXX))
native_files = $(wildcard $(foreach end,$1,$(NATIVE_CORE)/*.$(end) $(NATIVE_CORE)/*/*.$(end) $(NATIVE_CORE)/*/*/*.$(end)))
native_headers := $(call native_files,h inl)
native_all := $(patsubst $(NATIVE_CORE)/%.cpp,%,$(call native_files,cpp))
native_bindings := module
native_kernels := $(filter-out $(native_bindings),$(native_all))
# A path from the root works in another folder too; a command stays one.
native_python := $(if $(findstring /,$(NATIVE_PYTHON)),$(abspath $(NATIVE_PYTHON)),$(NATIVE_PYTHON))
native_driver := PYTHONPATH=.:tests $(native_python) -m cpp.select_driver
native_score_driver := PYTHONPATH=.:tests $(native_python) -m cpp.score_driver
native_tools = $(NATIVE_OUT)/$1/select_tool $(NATIVE_OUT)/$1/score_tool

.PHONY: native arm arm-packages sanitize sanitize-tool sanitize-threads sanitize-extension
.SECONDARY:

native: $(call native_tools,plain) $(call native_tools,no_vnni) | native-python
	$(native_driver) $<
	$(native_driver) $(word 3,$^)
	$(native_score_driver) $(word 2,$^)
	$(native_score_driver) $(word 4,$^)

arm: $(call native_tools,arm) | native-python
	$(native_driver) --objdump $(ARM)objdump --runner qemu-aarch64 --threads 1,3 $<
	$(native_score_driver) --objdump $(ARM)objdump --runner qemu-aarch64 --threads 1,3 $(word 2,$^)

sanitize: sanitize-tool sanitize-threads sanitize-extension

sanitize-tool: $(call native_tools,asan) | native-python
	UBSAN_OPTIONS=print_stacktrace=1 $(native_driver) --threads 1,2 $<
	UBSAN_OPTIONS=print_stacktrace=1 $(native_score_driver) --threads 1,2 $(word 2,$^)

# Without address randomisation: more than 28 bits of it is more than GCC 12's ThreadSanitizer can map.
native_fixed = $(shell setarch -R true 2>/dev/null && echo setarch -R)
sanitize-threads: $(call native_tools,tsan) | native-python
	$(native_driver) --only-threaded --runner "$(native_fixed)" --threads 2,7 $<
	$(native_score_driver) --only-threaded --runner "$(native_fixed)" --threads 2,7 $(word 2,$^)

# libstdc++ too, since python itself does not link it and AddressSanitizer looks for __cxa_throw at the start.
sanitize-extension: $(NATIVE_OUT)/asan/package | native-python
	cd $< && export PYTHONPATH=$(abspath $<) ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1 \
		RAGSYS_KERNELS_TEST_BACKENDS=cpu \
		LD_PRELOAD="$$($(CXX) -print-file-name=libasan.so) $$($(CXX) -print-file-name=libstdc++.so)" && \
	$(native_python) -c "import os, ragsys_kernels._C as c; assert c.__file__.startswith(os.getcwd()), c" && \
	$(native_python) -m pytest $(SANITIZE_PYTEST) -p no:cacheprovider --capture=sys $(abspath $(SANITIZE_TESTS))

# A variant's objects: of the kernels and of the bindings as they lie in the core, and of the tools.
define native_variant
$(NATIVE_OUT)/$1/%.o: $(NATIVE_CORE)/%.cpp $(native_headers)
	@mkdir -p $$(@D)
	$(call native_cxx,$1) $$(NATIVE_FLAGS) $(NATIVE_FLAGS_$1) -c $$< -o $$@

$(NATIVE_OUT)/$1/%_tool.o: tests/cpp/%_tool.cpp tests/cpp/tool.h $(native_headers)
	@mkdir -p $$(@D)
	$(call native_cxx,$1) $(NATIVE_FLAGS) $(NATIVE_FLAGS_$1) -c $$< -o $$@

$(NATIVE_OUT)/$1/%_tool: $(native_kernels:%=$(NATIVE_OUT)/$1/%.o) $(NATIVE_OUT)/$1/%_tool.o
	$(call native_cxx,$1) $(NATIVE_FLAGS) $(NATIVE_FLAGS_$1) $$^ -o $$@
endef
$(foreach variant,plain no_vnni arm asan tsan,$(eval $(call native_variant,$(variant))))

$(native_bindings:%=$(NATIVE_OUT)/asan/%.o): NATIVE_FLAGS += $$($(native_python) -m pybind11 --includes)
$(native_bindings:%=$(NATIVE_OUT)/asan/%.o): | native-python

# The package beside an extension of its own; the one built in place stays as it is.
$(NATIVE_OUT)/asan/package: $(native_all:%=$(NATIVE_OUT)/asan/%.o) \
		$(wildcard ragsys_kernels/*.py ragsys_kernels/*/*.py)
	rm -rf $@
	mkdir -p $@
	cp -r ragsys_kernels $@
	rm -f $@/ragsys_kernels/_C*.so
	$(CXX) $(NATIVE_FLAGS_asan) -shared -pthread $(filter %.o,$^) -o $@/ragsys_kernels/_C$$($(native_python) -c \
		"import sysconfig; print(sysconfig.get_config_var('EXT_SUFFIX'))")

$(patsubst %,$(NATIVE_OUT)/arm/%.o,$(native_kernels) select_tool score_tool): | arm-packages

arm-packages:
	@command -v $(ARM)g++ >/dev/null && command -v qemu-aarch64 >/dev/null || \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $(ARM_PACKAGES); \
	else \
		echo "make arm: $(ARM)g++ and qemu-aarch64 are needed; on Debian: apt-get install $(ARM_PACKAGES)" >&2; exit 1; \
	fi

# In the top Makefile: its virtual environment with the test dependencies, and pybind11's headers.
.PHONY: native-python
ifdef VENV
native-python: $(VENV)/.test $(VENV)/.pybind11
$(VENV)/.pybind11: | $(VENV)/.test
	$(PIP_INSTALL) "pybind11>=2.13"
	touch $@
else
native-python:
endif
