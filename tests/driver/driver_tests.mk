# The simulated driver, the contract suite and the host programs, with the cubins that they load:
#   build/sim/libcuda.so.1               the simulated driver
#   build/sim/cupti/libcupti.so.13       CUPTI for it
#   build/sim/versioned/libcuda.so.1     the same with a symbol version, for programs that use dlvsym
#   build/tests/driver_contract_tests    runs against whichever libcuda.so.1 the linker finds first
#   build/tests/hosts/engine[_linked]    a small engine; build/tests/hosts/no_cuda
#   build/tests/hosts/launch_cost         measures the cost of a launch for the launching thread
#   build/tests/data/*.cubin, *.fatbin   for both; found by the programs relative to themselves
# The programs also run on the GPU machine, so they bring libstdc++ and GoogleTest with them.

TEST_SMS := 80 90 100

SIM_SRC      := $(wildcard tests/driver/*.cc)
CONTRACT_SRC := $(wildcard tests/driver/contract/*.cc)
SIM_OBJ      := $(call batches,tests/driver,$(SIM_SRC))
CONTRACT_OBJ := $(call batches,tests/driver/contract,$(CONTRACT_SRC))
$(SIM_OBJ): ROOM_FLAGS = $(if $(SANITIZE),,-O1 -g0)
$(CONTRACT_OBJ): ROOM_FLAGS = $(TEST_FLAGS)
$(eval $(call with_test_headers,$(CONTRACT_OBJ)))

SIM_LINK := -Wl,-soname,libcuda.so.1 -Wl,-Bsymbolic -Wl,-z,now -Wl,--gc-sections -Wl,--no-undefined \
  -static-libstdc++ -L$(BUILD)/lib -lfibshim-elf -lpthread -ldl
$(SIM_LIB): $(SIM_OBJ) tests/driver/exports.map $(PRIVATE_LIBELF)
	$(call say,LINK,$@)
	$(Q)mkdir -p $(@D)
	$(Q)$(CXX) -shared -o $@ $(SIM_OBJ) -Wl,--version-script=tests/driver/exports.map \
	  -Wl,-rpath,'$$ORIGIN/../lib:$$ORIGIN/..' $(SIM_LINK)

SIM_VERSIONED_LIB := $(BUILD)/sim/versioned/libcuda.so.1
$(SIM_VERSIONED_LIB): $(SIM_OBJ) tests/driver/exports.map $(PRIVATE_LIBELF)
	$(call say,LINK,$@)
	$(Q)mkdir -p $(@D)
	$(Q)sed '1s/^/libcuda.so.1 /' tests/driver/exports.map >$(@D)/exports.map
	$(Q)$(CXX) -shared -o $@ $(SIM_OBJ) -Wl,--version-script=$(@D)/exports.map \
	  -Wl,-rpath,'$$ORIGIN/../../lib' $(SIM_LINK)

# Kept apart from the driver: tests choose which programs find it.
$(SIM_CUPTI): $(BUILD)/obj/tests/driver/cupti/simcupti.o
	$(call say,LINK,$@)
	$(Q)mkdir -p $(@D)
	$(Q)$(CXX) -shared -o $@ $< -Wl,-soname,$(@F) -Wl,-Bsymbolic -Wl,--no-undefined -static-libstdc++ -static-libgcc -lpthread -ldl

# $(1) name, $(2) source, $(3) nvcc's flags
define test_image
TEST_IMAGES += $(BUILD)/tests/data/$(1)
$(BUILD)/tests/data/$(1): $(2) | $(SETUP)
	$$(call say,NVCC,$$@)
	$(Q)mkdir -p $$(@D)
	$(Q)$(NVCC) -O2 $(3) $$< -o $$@
endef
EVERY_SM := $(foreach sm,$(TEST_SMS),-gencode arch=compute_$(sm)$(comma)code=sm_$(sm))
# $(1) a list that it goes into, $(2) NAME of NAME.fatbin, $(3) the cubins in it, X.sm_80.cubin and so on: nvcc would compile them again.
define fatbin_of
$(1) += $(2).fatbin
$(2).fatbin: $(3)
	$$(call say,FATBIN,$$@)
	$(Q)$$(dir $$(NVCC))fatbinary --create=$$@ -64 -compress=false $(foreach cubin,$(3),--image3=kind=elf$(comma)sm=$(patsubst .sm_%,%,$(suffix $(basename $(cubin))))$(comma)file=$(cubin))
endef
define test_images
$(foreach sm,$(TEST_SMS),$(eval $(call test_image,$(1).sm_$(sm).cubin,$(2),-cubin -arch=sm_$(sm))))
$(eval $(call fatbin_of,TEST_IMAGES,$(BUILD)/tests/data/$(1),$(TEST_SMS:%=$(BUILD)/tests/data/$(1).sm_%.cubin)))
endef
$(call test_images,contract,tests/driver/contract/contract_kernels.cu)
$(call test_images,renamed,tests/driver/contract/renamed_kernels.cu)
$(call test_images,engine_kernels,tests/shim/hosts/engine_kernels.cu)
$(eval $(call fatbin_of,TEST_IMAGES,$(BUILD)/tests/data/engine_kernels.only_sm_90,$(BUILD)/tests/data/engine_kernels.sm_90.cubin))
$(eval $(call test_image,contract.ptx,tests/driver/contract/contract_kernels.cu,-ptx -arch=compute_80))

DRIVER_CONTRACT_TESTS := $(BUILD)/tests/driver_contract_tests
TEST_PROGRAMS += $(DRIVER_CONTRACT_TESTS)
$(DRIVER_CONTRACT_TESTS): $(CONTRACT_OBJ) $(SIM_LIB) $(TEST_IMAGES)
	$(call say,LINK,$@)
	$(Q)mkdir -p $(@D)
	$(Q)$(CXX) -o $@ $(CONTRACT_OBJ) -static-libstdc++ -static-libgcc -Wl,-Bstatic -lgtest -lgtest_main \
	  -Wl,-Bdynamic -lpthread -ldl

HOST_LINK := -static-libstdc++ -static-libgcc -lpthread -ldl
$(BUILD)/tests/hosts/engine: $(BUILD)/obj/tests/shim/hosts/engine.o $(SIM_LIB) $(SIM_VERSIONED_LIB) $(TEST_IMAGES)
	$(call say,LINK,$@)
	$(Q)mkdir -p $(@D)
	$(Q)$(CXX) -o $@ $< $(HOST_LINK)

# The same source, calling the driver by name: a NEEDED libcuda.so.1, as few programs have.
$(BUILD)/obj/tests/shim/hosts/engine_linked.o: tests/shim/hosts/engine.cc | $(SETUP)
	$(call say,CXX,$< (linked))
	$(Q)mkdir -p $(@D)
	$(Q)$(CXX) $(CPPFLAGS) $(CXXFLAGS) $(ROOM_FLAGS) -DENGINE_IS_LINKED $(DEPFLAGS) -c $< -o $@
$(BUILD)/obj/tests/shim/hosts/engine.o $(BUILD)/obj/tests/shim/hosts/engine_linked.o: ROOM_FLAGS = $(TEST_FLAGS)
$(BUILD)/tests/hosts/engine_linked: $(BUILD)/obj/tests/shim/hosts/engine_linked.o $(SIM_LIB) $(TEST_IMAGES)
	$(call say,LINK,$@)
	$(Q)mkdir -p $(@D)
	$(Q)$(CXX) -o $@ $< -L$(dir $(SIM_LIB)) -l:libcuda.so.1 -Wl,-rpath-link,$(BUILD)/lib \
	  -Wl,--allow-shlib-undefined $(HOST_LINK)

$(BUILD)/tests/hosts/launch_cost: $(BUILD)/obj/tests/shim/hosts/launch_cost.o $(TEST_IMAGES)
	$(call say,LINK,$@)
	$(Q)mkdir -p $(@D)
	$(Q)$(CXX) -o $@ $< $(HOST_LINK)

$(BUILD)/tests/hosts/shadow_host: $(BUILD)/obj/tests/shim/hosts/shadow_host.o $(TEST_IMAGES)
	$(call say,LINK,$@)
	$(Q)mkdir -p $(@D)
	$(Q)$(CXX) -o $@ $< $(HOST_LINK)

# The kernels that its solution uses, with faults in them.
$(BUILD)/tests/data/libshadow_faults.so: $(BUILD)/obj/tests/shim/hosts/shadow_faults.o
	$(call say,LINK,$@)
	$(Q)mkdir -p $(@D)
	$(Q)$(CXX) -shared -o $@ $< -static-libstdc++ -static-libgcc

$(BUILD)/tests/hosts/no_cuda: $(BUILD)/obj/tests/shim/hosts/no_cuda.o
	$(call say,LINK,$@)
	$(Q)mkdir -p $(@D)
	$(Q)$(CXX) -o $@ $<
