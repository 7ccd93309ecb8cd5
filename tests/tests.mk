# Tests mirror the tree: tests/<room>/*_test.cc become build/tests/<room>_tests. tests/driver is the
# simulated libcuda.so.1 (build/sim) and the contract that it shares with the real driver;
# tests/shim/hosts/*.cc are the small programs that are run under the shim.

GTEST_LIBS := -lgtest -lgtest_main -lpthread -ldl

LOADER_TEST_SRC   := $(filter-out $(if $(SANITIZE),tests/loader/memory_test.cc),$(wildcard tests/loader/*_test.cc))
TOOLS_TEST_SRC    := $(wildcard tests/tools/*.cc)
SHIM_TEST_SRC     := $(wildcard tests/shim/*.cc)
# A sanitized build has no config folders.
PLAN_TEST_SRC     := $(filter-out $(if $(SANITIZE),tests/shim/plan/flash_attention_test.cc tests/shim/plan/mxfp4_products_test.cc tests/shim/plan/sampling_test.cc tests/shim/plan/shipped_extents_test.cc tests/shim/plan/shipped_products_test.cc),$(wildcard tests/shim/*/*_test.cc) tests/shim/plan/planned_folder.cc)
# What they test beside shim/plan.
PLAN_TESTED_SRC   := shim/base/pool.cc shim/base/read_section.cc shim/shadow/pool.cc

SIM_LIB   := $(BUILD)/sim/libcuda.so.1
SIM_CUPTI := $(BUILD)/sim/cupti/libcupti.so.13
HOSTS     := $(addprefix $(BUILD)/tests/hosts/,engine engine_linked launch_cost no_cuda shadow_host)
TEST_OBJ   = $(1:%.cc=$(BUILD)/obj/%.o)
TEST_FLAGS ?= -O0 $(if $(SANITIZE),-g1,-g0 -fno-function-sections -fno-data-sections)

# Does for tests and clang what `precompiled` in the Makefile does for g++: one header serves all tests.
TEST_HEADERS := $(BUILD)/obj/tests/support/precompiled.pch
$(TEST_HEADERS): ROOM_FLAGS = $(TEST_FLAGS)
$(TEST_HEADERS): tests/support/precompiled.h tests/tests.mk | $(SETUP)
	$(call say,CXX,$<)
	$(Q)mkdir -p $(@D)
	$(Q)$(COMPILER) $(CPPFLAGS) $(CXXFLAGS) $(ROOM_FLAGS) $(DEPFLAGS) -fpch-instantiate-templates -x c++-header $< -o $@
# $(1) objects of tests
define with_test_headers
ifeq ($(findstring clang,$(QUICK_CXX))$(findstring ccache,$(QUICK_CXX))$(SANITIZE),clang)
$(1): $(TEST_HEADERS)
$(1): private CPPFLAGS += -include-pch $(TEST_HEADERS)
endif
endef

# The tests of the tools run the CLI, which looks for the libraries beside it, on images made here.
# A sanitized build gets the plain libraries, and the same program runs its command: see `asan`.
TOOLS_TEST_IMAGES := $(addprefix $(BUILD)/tests/data/kernels.,sm_90.cubin fatbin compressed.fatbin lz4.fatbin ptx so)
TOOLS_TEST_NEEDS  := $(TOOLS_TEST_IMAGES) $(if $(SANITIZE),,$(SHIM_LIB) $(LOADER_LIB) $(SIM_LIB) $(HOSTS) $(BUILD)/tests/data/libshadow_faults.so)
LOADER_TEST_OBJ := $(call batches,tests/loader,$(LOADER_TEST_SRC))
TOOLS_TEST_OBJ  := $(call batches,tests/tools,$(TOOLS_TEST_SRC))
SHIM_TEST_OBJ   := $(call batches,tests/shim,$(SHIM_TEST_SRC))
# Of which one looks at millions of graphs, and so is optimised.
PLAN_TEST_OBJ   := $(call batches,tests/plan,$(filter-out %/rewrite_rules_test.cc,$(PLAN_TEST_SRC))) $(BUILD)/obj/tests/shim/plan/rewrite_rules_test.o
$(SHIM_TEST_OBJ) $(filter-out %/rewrite_rules_test.o,$(PLAN_TEST_OBJ)) $(call TEST_OBJ,$(wildcard tests/support/*.cc)): ROOM_FLAGS = $(TEST_FLAGS)
$(TOOLS_TEST_OBJ): ROOM_FLAGS = $(TEST_FLAGS) -DFIBSHIM_SOURCE_FOLDER='"$(CURDIR)"'
$(eval $(call with_test_headers,$(SHIM_TEST_OBJ) $(TOOLS_TEST_OBJ) $(filter-out %/rewrite_rules_test.o,$(PLAN_TEST_OBJ))))

EVERY_IMAGE := -gencode arch=compute_80,code=sm_80 -gencode arch=compute_90,code=[sm_90,compute_90]
$(BUILD)/tests/data/kernels.sm_90.cubin: IMAGE_FLAGS = -cubin -arch=sm_90
$(BUILD)/tests/data/kernels.fatbin: IMAGE_FLAGS = -fatbin --no-compress $(EVERY_IMAGE)
$(BUILD)/tests/data/kernels.compressed.fatbin: IMAGE_FLAGS = -fatbin --compress-mode=size $(EVERY_IMAGE)
$(BUILD)/tests/data/kernels.lz4.fatbin: IMAGE_FLAGS = -fatbin --compress-mode=speed -Xfatbin=-compress-all $(EVERY_IMAGE)
$(BUILD)/tests/data/kernels.ptx: IMAGE_FLAGS = -ptx -arch=compute_90
$(BUILD)/tests/data/kernels.so: IMAGE_FLAGS = -shared -Xcompiler -fPIC -cudart none --no-compress -arch=sm_90
$(TOOLS_TEST_IMAGES): tests/tools/data/kernels.cu | $(SETUP)
	$(call say,NVCC,$@)
	$(Q)mkdir -p $(@D)
	$(Q)$(NVCC) $(IMAGE_FLAGS) -o $@ $<

# What tests/run.sh runs each test under.
REAPER := $(BUILD)/tests/reaper
$(REAPER): tests/reaper.cc | $(SETUP)
	$(call say,LINK,$@)
	$(Q)mkdir -p $(@D)
	$(Q)$(CXX) -std=c++20 -O1 -o $@ $< -static-libstdc++ -static-libgcc

define test_program
$(BUILD)/tests/$(1): $(2) $(3)
	$$(call say,LINK,$$@)
	$$(Q)mkdir -p $$(@D)
	$$(Q)$(CXX) $(SANITIZE_LINK) -o $$@ $(2) $(4) $(GTEST_LIBS)
TEST_PROGRAMS += $(BUILD)/tests/$(1)
endef

# With the lint, whose findings stand among the loader's.
$(eval $(call test_program,loader_tests,$(LOADER_TEST_OBJ) $(LINT_OBJ) $(LOADER_MEMORY) $(call TEST_OBJ,tools/base/fmt_library.cc),$(LOADER_AR) $(PRIVATE_LIBELF),$(LOADER_AR) $(LOADER_LINK) -Wl$(comma)-rpath$(comma)'$$$$ORIGIN/../lib'))
$(eval $(call test_program,plan_tests,$(PLAN_TEST_OBJ) $(call TEST_OBJ,$(PLAN_SRC) $(PLAN_TESTED_SRC)),$(LOADER_AR) $(PRIVATE_LIBELF),$(LOADER_AR) $(LOADER_LINK) -Wl$(comma)-rpath$(comma)'$$$$ORIGIN/../lib'))
$(BUILD)/tests/plan_tests: | $(if $(SANITIZE),,$(addprefix $(BUILD)/config/,$(CONFIG_NAMES)))
$(eval $(call test_program,tools_tests,$(TOOLS_TEST_OBJ) $(call TEST_OBJ,tests/support/process.cc tools/base/json_input.cc),$(CLI) $(MAN_PAGES) $(TOOLS_TEST_NEEDS),))
$(eval $(call test_program,shim_tests,$(SHIM_TEST_OBJ) $(call TEST_OBJ,$(wildcard tests/support/*.cc)),$(CLI) $(SHIM_LIB) $(LOADER_LIB) $(SIM_LIB) $(SIM_CUPTI) $(HOSTS) $(BUILD)/tests/data/libshadow_faults.so,))
$(BUILD)/tests/shim_tests: $(BUILD)/tests/data/engine_kernels.only_sm_90.fatbin

.SECONDARY:

-include tests/driver/driver_tests.mk

# `make test`: everything is built and every test run; corpora are replayed. What takes long has targets of its
# own: recorded, models, asan, tsan, fuzz, lint; .ci/run runs what of those fits into 20 minutes. FILTER=Stats runs tests of that name only.
TEST_SCRIPTS := $(filter-out tests/model/% tests/conformance/recorded_test.sh,$(wildcard tests/*/*_test.sh))
test: all $(REAPER) $(TEST_PROGRAMS) ## build everything, run all tests that need no GPU
	$(Q)BUILD=$(BUILD) NVCC='$(NVCC)' KERNEL_SMS='$(KERNEL_SMS)' tests/run.sh -t 600 -j $$(($$(nproc) + 10)) $(if $(FILTER),-f '$(FILTER)') $(TEST_SCRIPTS) $(TEST_PROGRAMS)
.PHONY: recorded
recorded: all $(REAPER) $(BUILD)/tests/conformance_tests ## the conformance suite while every launch is recorded
	$(Q)BUILD=$(BUILD) tests/run.sh -t 600 tests/conformance/recorded_test.sh
.PHONY: shadow-proof
CHECKS ?= 10000000
shadow-proof: all $(REAPER) $(BUILD)/tests/shim_tests ## launches with shadow checks, of which none may report anything: CHECKS=10000000
	$(Q)SHADOW_CHECKS=$$((($(CHECKS) + 2) / 3)) BUILD=$(BUILD) tests/run.sh -t 7200 -f '*ManyChecks.*' $(BUILD)/tests/shim_tests
	$(Q)grep -h ' checks$$' $(BUILD)/tests/logs/shim_tests.*ManyChecks*
.PHONY: shadow-faults
shadow-faults: all $(REAPER) $(BUILD)/tests/shim_tests ## within how many launches shadow checks find each planted fault, of ROUNDS=9 processes: the median, and the most
	$(Q)SHADOW_ROUNDS=$(or $(ROUNDS),9) BUILD=$(BUILD) tests/run.sh -t 7200 -f '*PlantedFault.IsFound/*' $(BUILD)/tests/shim_tests
	$(Q)echo '| fault | 1/1 | 1/100 | 1/1000 |' && echo '|---|---|---|---|' && grep -h '^| ' $(BUILD)/tests/logs/shim_tests.*PlantedFault.IsFound_*
models: $(REAPER) $(BUILD)/setup-test ## check the models of the lock-free protocols with spin
	$(Q)BUILD=$(BUILD) tests/run.sh -t 1200 tests/model/model_test.sh

.PHONY: engines
engines: all ## get published engines by pip, write the tables of their kernels, show what our patterns fit, and fail where one fits nothing: ENGINE=vllm
	$(Q)BUILD=$(BUILD) NVCC='$(NVCC)' tests/engines/engines.py all $(ENGINE)

# Without torch, which its loader imports and does not call: `pip install flashinfer-bench` alone takes gigabytes.
BENCH_VENV := $(BUILD)/flashinfer_bench
$(BENCH_VENV)/installed:
	$(call say,PIP,flashinfer-bench)
	$(Q)python3 -m venv $(BENCH_VENV)
	$(Q)$(BENCH_VENV)/bin/pip install -q --disable-pip-version-check pydantic safetensors numpy
	$(Q)$(BENCH_VENV)/bin/pip install -q --disable-pip-version-check --no-deps flashinfer-bench
	$(Q)touch $@

.PHONY: flashinfer-bench
flashinfer-bench: all $(HOSTS) $(SIM_LIB) $(BENCH_VENV)/installed ## get flashinfer-bench by pip, and let its loader read what `fibshim record --tensors` keeps on the simulated driver
	$(Q)rm -rf $(BUILD)/workloads
	$(Q)$(BUILD)/bin/fibshim record --simulate -o $(BUILD)/workloads.jsonl -c $(BUILD)/config/pytorch --tensors $(BUILD)/workloads --tensors-keep shape:2 \
	  -- $(BUILD)/tests/hosts/shadow_host 400
	$(Q)$(BENCH_VENV)/bin/python tests/gpu/workloads.py check $(BUILD)/workloads

mutations: all $(REAPER) $(TEST_PROGRAMS) ## prove that the tests see faults: each of tests/mutations in a copy of the tree; MUTATIONS=name
	$(Q)tests/mutations/run.py --build $(BUILD) $(MUTATIONS)

# Kernels of engines that are not there, replacements that fault or are slow, and what only reads or only waits.
ENGINE_STUBS := $(addprefix $(BUILD)/tests/data/,engine_stubs.fatbin faulty_kernels.fatbin slow_kernels.fatbin reading_kernels.fatbin)
$(ENGINE_STUBS): $(BUILD)/tests/data/%.fatbin: tests/gpu/%.cu | $(SETUP)
	$(call say,NVCC,$@)
	$(Q)mkdir -p $(@D)
	$(Q)$(NVCC) -fatbin -std=c++20 $(foreach sm,$(KERNEL_SMS),-gencode arch=compute_$(sm)$(comma)code=sm_$(sm)) -o $@ $<
test-gpu: all $(REAPER) $(DRIVER_CONTRACT_TESTS) $(HOSTS) $(ENGINE_STUBS) ## the tests that need an NVIDIA GPU, and python3 with PyTorch
	$(Q)tests/gpu/run.sh $(BUILD)

# $(1) its folder, $(2) what -fsanitize= takes, $(3) settings of its build
define sanitizer
.PHONY: $(1)-loader $(1)-build
$(1)-loader: $(REAPER) $(addprefix $(BUILD)/config/,demo pytorch) $(SHIM_LIB) $(LOADER_LIB) $(SIM_LIB) $(HOSTS) $(BUILD)/tests/loader_tests
	$$(Q)mkdir -p $(BUILD)/$(1)/lib $(BUILD)/$(1)/sim $(BUILD)/$(1)/tests/hosts
	$$(Q)cp -pu $(BUILD)/lib/*.so $(BUILD)/$(1)/lib/
	$$(Q)cp -pru $(BUILD)/sim/. $(BUILD)/$(1)/sim/
	$$(Q)cp -pru $(BUILD)/tests/hosts/. $(BUILD)/$(1)/tests/hosts/
	$$(Q)mkdir -p $(BUILD)/$(1)/config && cp -pru $(addprefix $(BUILD)/config/,demo pytorch) $(BUILD)/$(1)/config/
	$$(Q)mkdir -p $(BUILD)/$(1)/tests/data && cp -pru $(BUILD)/tests/data/. $(BUILD)/$(1)/tests/data/
	$$(Q)$$(MAKE) --no-print-directory BUILD=$(BUILD)/$(1) SETUP=$(SETUP) SANITIZE=$(2) OPT='-O0 -g1' $(3) \
	  $(BUILD)/$(1)/tests/loader_tests
$(1)-build: $(1)-loader $(BUILD)/tests/tools_tests \
  $(if $(findstring address,$(2)),$(filter $(BUILD)/obj/tools/judge/%,$(CLI_OBJ)))
	$$(Q)$$(MAKE) --no-print-directory BUILD=$(BUILD)/$(1) SETUP=$(SETUP) SANITIZE=$(2) OPT='-O0 -g1' $(3) \
	  $(if $(findstring address,$(2)),JUDGE_BUILD=$(BUILD)) $(BUILD)/$(1)/bin/fibshim
	$$(Q)cp -pu $(BUILD)/tests/tools_tests $(BUILD)/$(1)/tests/
	$$(Q)cp -pru $(BUILD)/man $(BUILD)/$(1)/
$(1): $(1)-build
	$$(Q)BUILD=$(BUILD)/$(1) tests/run.sh $(if $(FILTER),-f '$(FILTER)') $(BUILD)/$(1)/tests/loader_tests $(BUILD)/$(1)/tests/tools_tests
endef
asan: conform-asan ## the loader's, the tools' and part of the conformance tests under AddressSanitizer and UBSan
ubsan: ## the loader's and the tools' under UBSan alone
$(eval $(call sanitizer,asan,address$(comma)undefined,$(FUZZ_BUILD)))
asan-loader: $(BUILD)/setup-fuzz
$(eval $(call sanitizer,ubsan,undefined))
# The conformance suite alone: what the judge does in threads (tools/judge/references.cc) is not covered.
tsan: conform-tsan ## part of the conformance tests under ThreadSanitizer

-include tools/packaging/packaging.mk

# Here and not in tools.mk, which is read before the driver and the host programs are named.
demo: all $(SIM_LIB) $(HOSTS) ## redirect a kernel, on the GPU or on the simulated driver, and show the counters
	$(Q)tools/demo.sh $(BUILD)

# ---- style

FORMATTED  := $(wildcard $(foreach room,shim/* loader/* tools tools/* kernels tests tests/* tests/*/*,$(addprefix $(room)/*.,cc h)) kernels/*/*.cu kernels/*/*.cuh)
CLANG_FORMAT = $(firstword $(shell command -v clang-format-14 clang-format))
CLANG_TIDY   = $(firstword $(shell command -v clang-tidy-14 clang-tidy))
format: $(BUILD)/setup-format ## format the C++ sources
	$(Q)$(CLANG_FORMAT) -i $(FORMATTED)
check-format: $(BUILD)/setup-format ## fail where a C++ source is not formatted
	$(Q)$(CLANG_FORMAT) --dry-run -Werror $(FORMATTED)

# Rooms to lint: the tools take four fifths of the time.
# make has a LINT of its own.
ifneq ($(filter default undefined,$(origin LINT)),)
LINT := shim loader tools
endif
LINTED := $(filter $(LINT:%=%/%.cc),$(FORMATTED))
lint: check-format $(BUILD)/setup-lint ## check the format; clang-tidy over the sources of shim, loader and tools: LINT=room
	$(Q)printf '%s\0' $(LINTED) | xargs -0 -n 1 -P $$(nproc) sh -c \
	  '$(CLANG_TIDY) --quiet "$$1" -- -std=c++20 -fPIC $(CPPFLAGS)' lint

$(BUILD)/setup-format $(BUILD)/setup-lint $(BUILD)/setup-fuzz: $(BUILD)/setup-%: tools/setup/packages.sh
	$(Q)mkdir -p $(@D)
	$(Q)tools/setup/packages.sh $* $(@D) $@

.SECONDARY:

-include tests/loader/loader_tests.mk
-include tests/bench/bench.mk
-include tests/gpu/frameworks/frameworks.mk
-include tests/tools/judge/judge_tests.mk
-include tests/fuzz/fuzz.mk
# Last, since it is in many small parts, which keep all processors busy to the end.
-include tests/conformance/conformance.mk
