# For tests/gpu/frameworks.sh: replacements, and C++ hosts as programs and as libraries for Python.
#   build/tests/frameworks/curated.sm_*.cubin             the replacements
#   build/tests/frameworks/{static,shared,per_thread,driver}[.so]   the hosts
#   build/tests/frameworks/devices                        for tests/gpu/two_devices.py

FRAMEWORKS      := $(BUILD)/tests/frameworks
FRAMEWORKS_FROM := tests/gpu/frameworks
FRAMEWORKS_SMS  := $(EVERY_SM) -gencode arch=compute_100$(comma)code=compute_100

FRAMEWORKS_IMAGES := $(TEST_SMS:%=$(FRAMEWORKS)/curated.sm_%.cubin)
$(FRAMEWORKS_IMAGES): $(FRAMEWORKS)/curated.sm_%.cubin: $(FRAMEWORKS_FROM)/curated.cu | $(SETUP)
	$(call say,NVCC,$@)
	$(Q)mkdir -p $(@D)
	$(Q)$(NVCC) -cubin -O2 -arch=sm_$* -o $@ $<

FRAMEWORKS_FATBINS := $(FRAMEWORKS)/driver_kernels.fatbin $(FRAMEWORKS)/devices_kernels.fatbin
$(FRAMEWORKS_FATBINS): $(FRAMEWORKS)/%.fatbin: $(FRAMEWORKS_FROM)/%.cu $(wildcard $(FRAMEWORKS_FROM)/*.h) | $(SETUP)
	$(call say,NVCC,$@)
	$(Q)mkdir -p $(@D)
	$(Q)$(NVCC) -fatbin -O2 -I. $(FRAMEWORKS_SMS) -o $@ $<

# Programs and libraries bring libstdc++ with them, and the shared libcudart: they run on machines
# that have not built them. NVIDIA's Python wheels have no lib64,
# and no libcudart.so to link with -lcudart.
FRAMEWORKS_BRING = -L$(CUDA_HOME)/lib -Xcompiler -static-libstdc++,-static-libgcc -Xlinker -rpath,'$$ORIGIN'
SHARED_CUDART    = $(firstword $(wildcard $(foreach folder,lib64 lib,$(CUDA_HOME)/$(folder)/libcudart.so.[1-9][0-9])))

# $(1) host, $(2) nvcc's flags
define runtime_host
FRAMEWORKS_HOSTS += $(FRAMEWORKS)/$(1) $(FRAMEWORKS)/$(1).so
$(FRAMEWORKS)/$(1): $(FRAMEWORKS_FROM)/main.cc
$(FRAMEWORKS)/$(1).so: SHARED_FLAGS = -shared
$(FRAMEWORKS)/$(1) $(FRAMEWORKS)/$(1).so: $(FRAMEWORKS_FROM)/runtime_host.cu $(wildcard $(FRAMEWORKS_FROM)/*.h) | $(SETUP)
	$$(call say,NVCC,$$@)
	$(Q)mkdir -p $$(@D)
	$(Q)$(NVCC) -O2 -I. -std=c++17 -Xcompiler -fPIC $(FRAMEWORKS_SMS) -DFLAVOUR=$(1) $(2) $$(SHARED_FLAGS) \
	  $$(FRAMEWORKS_BRING) -o $$@ $$(filter %.cu %.cc,$$^)
endef
$(eval $(call runtime_host,static,-cudart static))
$(eval $(call runtime_host,shared,-cudart none -Xlinker --no-as-needed -Xlinker $$(SHARED_CUDART)))

$(eval $(call runtime_host,per_thread,-cudart static --default-stream per-thread))

$(FRAMEWORKS)/libcudart.copied: | $(SETUP)
	$(Q)mkdir -p $(@D)
	$(Q)cp -L $(SHARED_CUDART) $(@D)/
	$(Q)touch $@

DRIVER_HOST_LINK := -L$(dir $(SIM_LIB)) -l:libcuda.so.1 -Wl,-rpath-link,$(BUILD)/lib -Wl,--allow-shlib-undefined \
  -static-libstdc++ -static-libgcc -ldl
DRIVER_HOST_OBJ  := $(BUILD)/obj/$(FRAMEWORKS_FROM)/driver_host.o
$(FRAMEWORKS)/driver: $(DRIVER_HOST_OBJ) $(BUILD)/obj/$(FRAMEWORKS_FROM)/main.o $(SIM_LIB)
	$(call say,LINK,$@)
	$(Q)mkdir -p $(@D)
	$(Q)$(CXX) -o $@ $(filter %.o,$^) $(DRIVER_HOST_LINK)
$(FRAMEWORKS)/driver.so: $(DRIVER_HOST_OBJ) $(SIM_LIB)
	$(call say,LINK,$@)
	$(Q)mkdir -p $(@D)
	$(Q)$(CXX) -shared -o $@ $(filter %.o,$^) $(DRIVER_HOST_LINK)
FRAMEWORKS_HOSTS += $(FRAMEWORKS)/driver $(FRAMEWORKS)/driver.so

DEVICES_HOST := $(FRAMEWORKS)/devices
$(DEVICES_HOST): $(BUILD)/obj/$(FRAMEWORKS_FROM)/devices.o $(SIM_LIB)
	$(call say,LINK,$@)
	$(Q)mkdir -p $(@D)
	$(Q)$(CXX) -o $@ $(filter %.o,$^) $(DRIVER_HOST_LINK) -lpthread
FRAMEWORKS_HOSTS += $(DEVICES_HOST)

FRAMEWORKS_NEEDS := $(FRAMEWORKS_HOSTS) $(FRAMEWORKS_IMAGES) $(FRAMEWORKS_FATBINS) $(FRAMEWORKS)/libcudart.copied
test-gpu: $(FRAMEWORKS_NEEDS)
