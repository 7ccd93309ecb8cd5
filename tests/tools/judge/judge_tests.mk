# The judge's tests: build/tests/judge_tests holds its core (comparison, references, inputs, records, the
# page) and, through the CLI and the simulated driver, solutions that are wrong in one way each.

JUDGE_OBJ      := $(filter-out %/tools/main.o,$(CLI_OBJ)) $(PLAN_OBJ)
JUDGE_TEST_SRC := $(wildcard tests/tools/judge/*_test.cc) tests/tools/fibshim_program.cc
JUDGED_CUBIN   := $(BUILD)/tests/data/judged_kernels.sm_90.cubin
JUDGED_HOST    := $(BUILD)/tests/data/libjudged_kernels.so

$(call TEST_OBJ,$(JUDGE_TEST_SRC)): ROOM_FLAGS = -O0 -g1 $(FMT_FLAGS) -DFIBSHIM_SOURCE_FOLDER='"$(CURDIR)"'

$(JUDGED_CUBIN): tests/tools/judge/judged_kernels.cu | $(SETUP)
	$(call say,NVCC,$@)
	$(Q)mkdir -p $(@D)
	$(Q)$(NVCC) -cubin -arch=sm_90 -o $@ $<

$(JUDGED_HOST): $(BUILD)/obj/tests/tools/judge/judged_kernels.o $(BUILD)/obj/tools/judge/element_types.o
	$(call say,LINK,$@)
	$(Q)mkdir -p $(@D)
	$(Q)$(CXX) -shared -o $@ $^ -static-libstdc++ -static-libgcc -Wl,--exclude-libs,ALL

$(eval $(call test_program,judge_tests,$(call TEST_OBJ,$(JUDGE_TEST_SRC) tests/support/process.cc),$(JUDGE_OBJ) $(LOADER_AR) $(PRIVATE_LIBELF) $(CLI) $(JUDGED_CUBIN) $(JUDGED_HOST) $(if $(SANITIZE),,$(SIM_LIB)),$(JUDGE_OBJ) $(LOADER_AR) $(LOADER_LINK) -Wl$(comma)-rpath$(comma)'$$$$ORIGIN/../lib'))
test: $(BUILD)/tests/judge_tests
