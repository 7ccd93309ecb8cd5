# build/tests/judge_tests tests the judge's core (comparison, references, inputs, records, the
# page) and, through the CLI and the simulated driver, solutions that are wrong in one way each.

JUDGE_OBJ      := $(filter-out %/tools/main.o,$(CLI_OBJ)) $(PLAN_OBJ)
JUDGE_TEST_OBJ := $(call batches,tests/tools/judge,$(wildcard tests/tools/judge/*_test.cc) tests/tools/fibshim_program.cc)
JUDGED_CUBIN   := $(BUILD)/tests/data/judged_kernels.sm_90.cubin
JUDGED_HOST    := $(BUILD)/tests/data/libjudged_kernels.so

$(JUDGE_TEST_OBJ): ROOM_FLAGS = $(TEST_FLAGS) $(FMT_FLAGS) -DFIBSHIM_SOURCE_FOLDER='"$(CURDIR)"'
$(eval $(call with_test_headers,$(JUDGE_TEST_OBJ)))

$(JUDGED_CUBIN): tests/tools/judge/judged_kernels.cu | $(SETUP)
	$(call say,NVCC,$@)
	$(Q)mkdir -p $(@D)
	$(Q)$(NVCC) -cubin -arch=sm_90 -o $@ $<

$(JUDGED_HOST): $(BUILD)/obj/tests/tools/judge/judged_kernels.o $(BUILD)/obj/tools/judge/element_types.o
	$(call say,LINK,$@)
	$(Q)mkdir -p $(@D)
	$(Q)$(CXX) -shared -o $@ $^ -static-libstdc++ -static-libgcc -Wl,--exclude-libs,ALL

$(eval $(call test_program,judge_tests,$(JUDGE_TEST_OBJ) $(call TEST_OBJ,tests/support/process.cc),$(JUDGE_OBJ) $(LOADER_AR) $(PRIVATE_LIBELF) $(CLI) $(JUDGED_CUBIN) $(JUDGED_HOST) $(if $(SANITIZE),,$(SIM_LIB)),$(JUDGE_OBJ) $(LOADER_AR) $(LOADER_LINK) -Wl$(comma)-rpath$(comma)'$$$$ORIGIN/../lib'))
test: $(BUILD)/tests/judge_tests
