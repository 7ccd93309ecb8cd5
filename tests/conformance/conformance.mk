# The conformance suite: every way to the driver and every way out of it, one small process per
# case. build/tests/conformance_tests runs the cases that the host program `conform` has, with the
# shim preloaded; with FIBSHIM_TEST_REAL_DRIVER=1 against the machine's own driver.
#   build/tests/conformance/config   a config folder made for it
#   build/tests/conformance/         the host programs, their images, and libraries that they load
#   build/tests/conformance/graphs_config  another, for random graphs
# CONFORMANCE_SEEDS=600 build/tests/conformance_tests --gtest_filter='*Random*' runs more random programs
# than `make test` does.

CONFORM       := $(BUILD)/tests/conformance
CONFORM_TESTS := $(BUILD)/tests/conformance_tests

CONFORM_HOST_SRC := $(addprefix tests/conformance/hosts/,conform.cc host.cc graphs.cc graph_program.cc graph_steps.cc) \
  $(wildcard tests/conformance/hosts/*_cases.cc)
CONFORM_TEST_OBJ := $(call batches,tests/conformance,$(wildcard tests/conformance/*.cc))

# ---- images: conform, conform_other (what modules hold), conform_curated (the replacements)

# $(1) file, $(2) nvcc's flags, $(3) source, if not that of all but one
define conform_image
CONFORM_IMAGES += $(CONFORM)/$(1)
$(CONFORM)/$(1): tests/conformance/hosts/$(or $(3),conform_kernels.cu) tests/conformance/hosts/marks.h | $(SETUP)
	$$(call say,NVCC,$$@)
	$(Q)mkdir -p $$(@D)
	$(Q)$(NVCC) -O2 -I. $(2) $$< -o $$@
endef
$(eval $(call fatbin_of,CONFORM_IMAGES,$(CONFORM)/conform,$(TEST_SMS:%=$(CONFORM)/conform.sm_%.cubin)))
$(eval $(call conform_image,conform_other.fatbin,-fatbin --no-compress $(EVERY_SM) -DCONFORM_OTHER))
$(foreach sm,$(TEST_SMS),$(eval $(call conform_image,conform.sm_$(sm).cubin,-cubin -arch=sm_$(sm))))
$(foreach sm,$(TEST_SMS),$(eval $(call conform_image,kernels/conform/conform_curated.sm_$(sm).cubin,-cubin -arch=sm_$(sm) -DCONFORM_CURATED)))

# ---- images of the kernels of engines: engines, engines_other

$(eval $(call conform_image,engines.fatbin,-fatbin --no-compress $(EVERY_SM),engine_kernels.cu))
$(eval $(call conform_image,engines_other.fatbin,-fatbin --no-compress $(EVERY_SM) -DCONFORM_OTHER,engine_kernels.cu))

# ---- images of random graphs: graphs, graphs_curated

$(eval $(call conform_image,graphs.fatbin,-fatbin --no-compress $(EVERY_SM),graph_kernels.cu))
$(foreach sm,$(TEST_SMS),$(eval $(call conform_image,kernels/graphs/graphs_curated.sm_$(sm).cubin,-cubin -arch=sm_$(sm) -DGRAPHS_CURATED,graph_kernels.cu)))

$(CONFORM)/config $(CONFORM)/graphs_config: $(CONFORM)/%: config/expand.sh $(shell find tests/conformance/config tests/conformance/graphs_config) $(CONFORM_IMAGES)
	$(call say,CONFIG,$@)
	$(Q)config/expand.sh tests/conformance/$* tests/conformance $(CONFORM)/kernels $@

# Products of experts in fp8 have one name, and only their codes tell them apart: here names of their own do.
# $(1) how it ends, $(2) patterns
name_product = sed -i -z -e 's/"fused_moe_kernel"/"fused_moe_kernel_$(1)"/' -e 's/,\s*"image": \[[^]]*\]//' $(addprefix $@.new/patterns/,$(2))

# The folder for vLLM, whose norms by torch.compile are told apart by their numbers instead of their codes, and products of experts by
# their parameters.
$(CONFORM)/vllm_config: $(BUILD)/config/vllm tests/conformance/conformance.mk
	$(call say,CONFIG,$@)
	$(Q)rm -rf $@ $@.new && cp -a $< $@.new
	$(Q)number=0; for kind in add-rms-norm add2-rms-norm add2-rms-norm-sum; do \
	  find $@.new/patterns \( -name "vllm-*-$$kind-h4096.json" -o -name "vllm-*-$$kind-h4096-then-*" \) -exec \
	    sed -i -z -e 's/\(rms_norm_\)\\\\d+/\1'$$number/ -e 's/,\s*"image": \[[^]]*\]//' {} +; \
	  number=$$((number + 1)); \
	done
	$(Q)sed -i -z -e 's/,\s*"image": \[[^]]*\]//' $@.new/patterns/vllm-moe-gemm-silu.json $@.new/patterns/vllm-cutlass-scaled-mm-*.json $@.new/patterns/vllm-moe-gemm-each.json $@.new/patterns/vllm-moe-gemm-each-silu.json $@.new/patterns/vllm-inductor-silu-and-mul-h24576-then-*.json
	$(Q)$(call name_product,sorted,vllm-moe-gemm-block-scaled-b16.json vllm-moe-gemm-block-scaled-silu.json)
	$(Q)$(call name_product,sorted_weighted,vllm-moe-gemm-block-scaled-weighted-b16.json vllm-quant-then-moe-gemm-block-scaled.json)
	$(Q)$(call name_product,each,vllm-moe-gemm-block-scaled-each.json vllm-moe-gemm-block-scaled-each-silu.json)
	$(Q)$(call name_product,each_weighted,vllm-moe-gemm-block-scaled-each-weighted.json vllm-quant-then-moe-gemm-block-scaled-each.json)
	$(Q)mv $@.new $@

# The folder for SGLang, whose kernels by Triton are not told apart by their codes.
$(CONFORM)/sglang_config: $(BUILD)/config/sglang tests/conformance/conformance.mk
	$(call say,CONFIG,$@)
	$(Q)rm -rf $@ $@.new && cp -a $< $@.new
	$(Q)sed -i -z -e 's/,\s*"image": \?\[[^]]*\]//g' $@.new/patterns/sglang-moe-routing*.json $@.new/patterns/sglang-moe-sum*.json $@.new/patterns/sglang-fused-add-rmsnorm-then-quant*.json
	$(Q)$(call name_product,of_16,sglang-moe-gemm-block-scaled-b16.json sglang-quant-then-moe-gemm-block-scaled-silu-b16*.json)
	$(Q)$(call name_product,of_16_weighted,sglang-moe-gemm-block-scaled-weighted-b16.json sglang-quant-then-moe-gemm-block-scaled-b16*.json)
	$(Q)$(call name_product,of_64,sglang-moe-gemm-block-scaled-b64.json sglang-quant-then-moe-gemm-block-scaled-silu-b64*.json)
	$(Q)$(call name_product,of_64_weighted,sglang-moe-gemm-block-scaled-weighted-b64.json sglang-quant-then-moe-gemm-block-scaled-b64*.json)
	$(Q)mv $@.new $@

# ---- host programs: they run on the GPU machine too, so they bring libstdc++ with them

# Only those that make up programs and graphs have much to do.
CONFORM_BUSY  := $(addprefix tests/conformance/hosts/,random_cases.cc random_graph_cases.cc graph_program.cc soak_cases.cc)
# linked.cc is linked with host.cc, too.
CONFORM_ALONE := $(CONFORM_BUSY) tests/conformance/hosts/host.cc
CONFORM_OBJ  := $(CONFORM_ALONE:%.cc=$(BUILD)/obj/%.o) $(call batches,tests/conformance/hosts,$(filter-out $(CONFORM_ALONE),$(CONFORM_HOST_SRC)))
CONFORM_LINK := -static-libstdc++ -static-libgcc -lpthread -ldl

# What libcudart may ask cuGetProcAddress for: each version of each function in cudaTypedefs.h.
$(CONFORM)/include/conform_questions.def: tests/conformance/conformance.mk | $(SETUP)
	$(call say,GEN,$@)
	$(Q)mkdir -p $(@D)
	$(Q)sed -nE 's/^typedef .*\*PFN_(cu[A-Za-z0-9]+)_v([0-9]+)(_ptsz|_ptds)?\).*/QUESTION(\1, \2)/p' \
	  $(CUDA_INCLUDE)/cudaTypedefs.h | sort -u >$@
$(CONFORM_BUSY:%.cc=$(BUILD)/obj/%.o): ROOM_FLAGS = -O1 -g0
$(filter-out $(CONFORM_BUSY:%.cc=$(BUILD)/obj/%.o),$(CONFORM_OBJ)): ROOM_FLAGS = $(TEST_FLAGS) -I$(CONFORM)/include
$(filter $(BUILD)/obj/tests/conformance/hosts/tests_%,$(CONFORM_OBJ)): $(CONFORM)/include/conform_questions.def

$(CONFORM)/conform: $(CONFORM_OBJ)
	$(call say,LINK,$@)
	$(Q)mkdir -p $(@D)
	$(Q)$(CXX) -o $@ $^ -rdynamic $(CONFORM_LINK)

$(CONFORM)/linked: $(addprefix $(BUILD)/obj/tests/conformance/hosts/,linked.o host.o) $(SIM_LIB)
	$(call say,LINK,$@)
	$(Q)mkdir -p $(@D)
	$(Q)$(CXX) -o $@ $(filter %.o,$^) -L$(dir $(SIM_LIB)) -l:libcuda.so.1 -Wl,-rpath-link,$(BUILD)/lib \
	  -Wl,--allow-shlib-undefined $(CONFORM_LINK)

# The same sources, and the shim, with a sanitizer: conform_asan, asan/libfibshim.so; conform_tsan and so
# on. The runtimes are shared ones, as hosts have them. What runs before a runtime is ready, because
# that itself looks for functions with dlsym, is not instrumented.
# $(1) its name, $(2) what the compiler is told for both, $(3) for the shim
define conform_sanitizer
$(BUILD)/obj/conform_$(1)/%.o: %.cc $(CONFORM)/include/conform_questions.def | $(SETUP)
	$$(call say,CXX,$$< ($(1)))
	$(Q)mkdir -p $$(@D)
	$(Q)$(CXX) $$(CPPFLAGS) $$(CXXFLAGS) -O1 $$(ROOM_FLAGS) $$(DEPFLAGS) -c $$< -o $$@
$(CONFORM_HOST_SRC:%.cc=$(BUILD)/obj/conform_$(1)/%.o): ROOM_FLAGS = -I$(CONFORM)/include $(2)
$(SHIM_SRC:%.cc=$(BUILD)/obj/conform_$(1)/%.o): ROOM_FLAGS = $(CONFORM_SHIM_FLAGS) $(2) $(3)
$(addprefix $(BUILD)/obj/conform_$(1)/shim/,hooks/dlsym.o driver/real_dl.o base/settings_in_force.o): ROOM_FLAGS = $(CONFORM_SHIM_FLAGS)
$(CONFORM)/conform_$(1): $(CONFORM_HOST_SRC:%.cc=$(BUILD)/obj/conform_$(1)/%.o)
	$$(call say,LINK,$$@)
	$(Q)mkdir -p $$(@D)
	$(Q)$(CXX) -o $$@ $$^ -rdynamic $(2) -lpthread -ldl
# The shim looks for the loader and the recorder beside itself.
$(CONFORM)/$(1)/libfibshim.so: $(SHIM_SRC:%.cc=$(BUILD)/obj/conform_$(1)/%.o) $(BUILD)/obj/shim/exports.map $(LOADER_LIB) $(RECORD_LIB) $(SHADOW_LIB)
	$$(call say,LINK,$$@)
	$(Q)mkdir -p $$(@D)
	$(Q)cp -p $(LOADER_LIB) $(RECORD_LIB) $(SHADOW_LIB) $(dir $(LOADER_LIB))libfibshim-*.so $$(@D)/
	$(Q)$(CXX) -shared -o $$@ $$(filter %.o,$$^) -Wl,--version-script=$(BUILD)/obj/shim/exports.map \
	  -Wl,-soname,libfibshim.so -Wl,-z,now -Wl,-Bsymbolic $(2)
endef
CONFORM_SHIM_FLAGS := -fvisibility=hidden -fno-exceptions -fno-rtti -fno-threadsafe-statics -ftls-model=initial-exec
$(eval $(call conform_sanitizer,asan,-fsanitize=address,-fsanitize=undefined -fsanitize-undefined-trap-on-error))
$(eval $(call conform_sanitizer,tsan,-fsanitize=thread -Wno-tsan,))
# Their tests are skipped where they have not been built.
define conform_sanitizer_target
.PHONY: conform-$(1)
conform-$(1): $(REAPER) $(CONFORM_TESTS) $(CONFORM)/conform_$(1) $(CONFORM)/$(1)/libfibshim.so
	$$(Q)BUILD=$(BUILD) tests/run.sh -f "*/Sanitizers.*/$(2)*:*$(2)Order.*" $(CONFORM_TESTS)
endef
$(eval $(call conform_sanitizer_target,asan,Asan))
$(eval $(call conform_sanitizer_target,tsan,Tsan))

# ---- libraries that hosts load or that are preloaded

# $(1) file, $(2) source, $(3) flags
define conform_library
CONFORM_LIBRARIES += $(CONFORM)/$(1)
$(CONFORM)/$(1): tests/conformance/hosts/$(2) | $(SETUP)
	$$(call say,LINK,$$@)
	$(Q)mkdir -p $$(@D)
	$(Q)$(CXX) $$(CPPFLAGS) $$(CXXFLAGS) -shared -o $$@ $$< $(3) -static-libstdc++ -static-libgcc -ldl
endef
$(eval $(call conform_library,libconform_names.so,lib_names.cc,))
$(eval $(call conform_library,libconform_malloc.so,lib_malloc.cc,))
$(eval $(call conform_library,libconform_libc_faults.so,lib_libc_faults.cc,))
$(CONFORM)/libconform_libc_faults.so: tests/conformance/hosts/libc_faults.def
$(eval $(call conform_library,libconform_link_flips.so,lib_link_flips.cc,))
$(eval $(call conform_library,libconform_plugin.so,lib_plugin.cc,))
$(eval $(call conform_library,libconform_hold.so,lib_hold.cc,))
$(eval $(call conform_library,libgraph_kernels.so,lib_graph_kernels.cc,-Wl$(comma)-Bsymbolic))
$(CONFORM)/libgraph_kernels.so: tests/conformance/hosts/graph_kernels.cu
$(eval $(call conform_library,libconform_weak.so,lib_weak.cc,))
$(CONFORM)/libconform_weak.so: shim/driver/hook_table.h
$(eval $(call conform_library,private/libconform_private.so,lib_private.cc,))
$(eval $(call conform_library,libconform_chain_b.so,lib_chain.cc,-DCHAIN_LAST -Wl$(comma)-soname$(comma)libconform_chain_b.so))
$(eval $(call conform_library,libconform_chain_a.so,lib_chain.cc,-Wl$(comma)-rpath$(comma)'$$$$ORIGIN:$$$$ORIGIN/private' -Wl$(comma)--no-as-needed -L$(CONFORM) -l:libconform_chain_b.so))
$(CONFORM)/libconform_chain_a.so: $(CONFORM)/libconform_chain_b.so

$(CONFORM)/workers.py: tests/conformance/hosts/workers.py
	$(Q)install -D $< $@

CONFORM_NEEDS := $(addprefix $(CONFORM)/,conform linked workers.py config graphs_config sglang_config vllm_config) $(CONFORM_IMAGES) \
  $(BUILD)/config/cublas $(BUILD)/config/machete $(BUILD)/config/sglang $(BUILD)/config/vllm \
  $(CONFORM_LIBRARIES)

# ---- the tests

$(CONFORM_TEST_OBJ): ROOM_FLAGS = $(TEST_FLAGS) -DCONFORMANCE_FOLDER='"$(CURDIR)/tests/conformance"'
$(eval $(call with_test_headers,$(CONFORM_TEST_OBJ)))

$(CONFORM_TESTS): $(CONFORM_TEST_OBJ) $(call TEST_OBJ,tests/support/process.cc) $(CONFORM_NEEDS) $(SHIM_LIB) $(LOADER_LIB) $(SIM_LIB) $(SIM_VERSIONED_LIB) $(CLI)
	$(call say,LINK,$@)
	$(Q)mkdir -p $(@D)
	$(Q)$(CXX) -o $@ $(filter %.o,$^) -static-libstdc++ -static-libgcc -Wl,-Bstatic -lgtest -lgtest_main \
	  -Wl,-Bdynamic -lpthread -ldl
TEST_PROGRAMS += $(CONFORM_TESTS)
test test-gpu: $(CONFORM_TESTS)

.PHONY: random-graphs
GRAPHS ?= 100000
random-graphs: all $(REAPER) $(CONFORM_TESTS) ## random graphs with the shim and without it: GRAPHS=100000
	$(Q)CONFORMANCE_GRAPHS=$$(($(GRAPHS) / 8)) BUILD=$(BUILD) tests/run.sh -t 3600 -f '*/RandomGraphs.*' $(CONFORM_TESTS)
