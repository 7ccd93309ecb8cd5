# `make bench`: measures the cost of a launch with the shim, how it grows, and the cost of loading.
#   build/bench/run             measures everything, prints tables, writes launch.json and others
#   build/bench/launch_bench    Google Benchmark: launches, lookups; one process for each preload
#   build/bench/overhead.svg    the plot, which overhead.gp draws from the results of `run`
#   build/bench/load_bench      Google Benchmark: the loader on large folders
#   build/bench/launch_loop     the same launches for callgrind; the instruction test runs it, too
#   build/bench/launch_turns    launches of two threads, for the test that they share no cache line
#   build/bench/launch_cold     launches, before each of which the first caches are filled with other things
#   build/bench/overhead_launch the same launches on a real GPU, for tests/gpu/overhead.sh
#   build/bench/launch_variety  many kernels, geometries and threads, for tests of recordings
#   build/bench/libforwarder.so a preload that only forwards: the cost of any interposition
#   build/bench/libswitch.so    the same, before another preload, which it can bypass
#   build/bench/libempty.so     an empty preload: the cost of any preload for a process
# step.py draws step.svg from the output of tests/gpu/engine_timeline.py on a GPU.
# On another machine: copy build/ and start build/bench/run there.
# PEER=library: another preload to compare one launch with, as peer_ns and peer_instructions.

BENCH       := $(BUILD)/bench
BENCH_IMAGES := $(addprefix $(BENCH)/images/launches/,launches.sm_90.cubin many_kernels.sm_90.cubin)
BENCH_CONFIG := $(BENCH)/config
LAUNCH_LOOP := $(BENCH)/launch_loop
LAUNCH_VARIETY := $(BENCH)/launch_variety
BENCH_TOOLS := $(addprefix $(BENCH)/,launch_bench launch_cold load_bench overhead_launch) $(LAUNCH_LOOP) $(LAUNCH_VARIETY) $(addprefix $(BENCH)/,libforwarder.so libswitch.so libempty.so)
MANY_KERNELS := 500

bench: $(BENCH)/run $(BENCH_TOOLS) $(CLI) $(BENCH_CONFIG) $(BENCH_IMAGES) $(SHIM_LIB) $(LOADER_LIB) $(SIM_LIB) $(BUILD)/setup-test $(BUILD)/setup-bench ## measure launches, scaling and loading; writes build/bench/*.json
	$(Q)$< $(if $(PEER),--peer '$(PEER)') $(BENCH_FLAGS)
	$(Q)[ ! -e $(BENCH)/launch.tsv ] || [ ! -e $(BENCH)/scaling.tsv ] || \
	  gnuplot -e "folder='$(BENCH)'" tests/bench/overhead.gp

$(BENCH)/images/launches/launches.sm_90.cubin: tests/bench/launches.cu | $(SETUP)
	$(call say,NVCC,$@)
	$(Q)mkdir -p $(@D)
	$(Q)$(NVCC) -O2 -cubin -arch=sm_90 $< -o $@
$(BENCH)/images/many_kernels.cu: tests/bench/many_kernels.sh tests/bench/bench.mk
	$(call say,GEN,$@)
	$(Q)mkdir -p $(@D)
	$(Q)$< $(MANY_KERNELS) >$@
$(BENCH)/images/launches/many_kernels.sm_90.cubin: $(BENCH)/images/many_kernels.cu | $(SETUP)
	$(call say,NVCC,$@)
	$(Q)mkdir -p $(@D)
	$(Q)$(NVCC) -O2 -cubin -arch=sm_90 $< -o $@

$(BENCH_CONFIG): config/expand.sh tests/bench/launches.cu $(BENCH)/images/launches/launches.sm_90.cubin $(shell find tests/bench/config)
	$(call say,CONFIG,$@)
	$(Q)config/expand.sh tests/bench/config tests/bench $(BENCH)/images $@

# The preloads are compiled and linked like the shim.
$(BUILD)/obj/tests/bench/forwarder.o $(BUILD)/obj/tests/bench/switch.o: ROOM_FLAGS = -fvisibility=hidden -fno-exceptions \
  -fno-rtti -fno-threadsafe-statics
$(BUILD)/obj/tests/bench/switch.o: tests/bench/forwarder.cc | $(SETUP)
	$(call say,CXX,$< (switch))
	$(Q)mkdir -p $(@D)
	$(Q)$(CXX) $(CPPFLAGS) $(CXXFLAGS) $(ROOM_FLAGS) -DFORWARDER_HAS_SWITCH $(DEPFLAGS) -c $< -o $@
$(BENCH)/libforwarder.so: $(BUILD)/obj/tests/bench/forwarder.o
$(BENCH)/libswitch.so: $(BUILD)/obj/tests/bench/switch.o $(BUILD)/obj/shim/driver/real_dl.o
$(BENCH)/libforwarder.so $(BENCH)/libswitch.so:
	$(call say,LINK,$@)
	$(Q)mkdir -p $(@D)
	$(Q)$(CC) -shared -o $@ $^ -Wl,-soname,$(@F) -Wl,-z,now -Wl,-z,relro -Wl,-Bsymbolic -Wl,--no-undefined

$(BENCH)/libempty.so: | $(SETUP)
	$(call say,LINK,$@)
	$(Q)mkdir -p $(@D)
	$(Q)$(CC) -shared -o $@ -x c /dev/null -Wl,-soname,libempty.so -Wl,-z,now -Wl,-z,relro

BENCH_ENGINE := $(call TEST_OBJ,tests/bench/engine.cc shim/driver/real_dl.cc)
$(LAUNCH_LOOP): $(call TEST_OBJ,tests/bench/launch_loop.cc) $(BENCH_ENGINE)
$(BENCH)/launch_turns: $(call TEST_OBJ,tests/bench/launch_turns.cc) $(BENCH_ENGINE)
$(BENCH)/launch_cold: $(call TEST_OBJ,tests/bench/launch_cold.cc) $(BENCH_ENGINE)
$(BENCH)/launch_bench: $(call TEST_OBJ,tests/bench/launch_bench.cc) $(BENCH_ENGINE)
$(BENCH)/overhead_launch: $(call TEST_OBJ,tests/gpu/overhead_launch.cc) $(BENCH_ENGINE)
$(LAUNCH_VARIETY): $(call TEST_OBJ,tests/bench/launch_variety.cc) $(BENCH_ENGINE)
$(BENCH)/load_bench: $(call TEST_OBJ,tests/bench/load_bench.cc)
$(BENCH)/run: $(call TEST_OBJ,$(addprefix tests/bench/,run.cc growth_tables.cc large_folder.cc launch_table.cc measure.cc report.cc \
  spawn_cost.cc thread_table.cc) \
  tests/support/process.cc)
$(LAUNCH_LOOP) $(LAUNCH_VARIETY) $(addprefix $(BENCH)/,launch_cold launch_turns overhead_launch run):
	$(call say,LINK,$@)
	$(Q)mkdir -p $(@D)
	$(Q)$(CXX) -o $@ $(filter %.o,$^) -static-libstdc++ -static-libgcc -lpthread -ldl

# Debian has no static library of Google Benchmark. The shared one is copied beside the programs, so that they run
# on machines without the package.
$(BENCH)/launch_bench $(BENCH)/load_bench:
	$(call say,LINK,$@)
	$(Q)mkdir -p $(@D)
	$(Q)$(CXX) -o $@ $(filter %.o,$^) -Wl,-rpath,'$$ORIGIN' -lbenchmark -lpthread -ldl
	$(Q)library=$$(ldd $@ | awk '$$1 ~ /^libbenchmark/ {print $$3}'); \
	  [ -z "$$library" ] || [ "$${library%/*}" -ef $(@D) ] || cp -uL "$$library" $(@D)/

# The sources that need the packages depend on their installation.
$(call TEST_OBJ,tests/bench/launch_bench.cc tests/bench/load_bench.cc): | $(BUILD)/setup-bench
$(call TEST_OBJ,tests/bench/launch_loop.cc): | $(BUILD)/setup-test
$(BUILD)/setup-bench $(BUILD)/setup-test: $(BUILD)/setup-%: tools/setup/packages.sh
	$(Q)mkdir -p $(@D)
	$(Q)tools/setup/packages.sh $* $(@D) $@

# tests/shim/instruction_test.cc counts the instructions of a launch; cache_line_test.cc finds the
# memory that it touches.
$(BUILD)/tests/shim_tests: $(LAUNCH_LOOP) $(LAUNCH_VARIETY) $(BENCH)/launch_turns $(BENCH_IMAGES) $(BENCH_CONFIG) $(BUILD)/setup-test
