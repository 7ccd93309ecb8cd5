# Fuzz targets: build/asan/fuzz/bin/<name>, one for each tests/fuzz/<name>_fuzz.cc, of clang's libFuzzer.
# They link the objects of the build with AddressSanitizer and UBSan, which is clang's for their sake.
#   make fuzz FUZZ_SECONDS=600 FUZZ=images   runs longer, of all targets or one; findings lie in
#                                            build/asan/fuzz/out/findings, each with how to repeat it
#   build/tests/fuzz_tests                   every target on its corpus, without libFuzzer and sanitizers: in `make test`
#   make fuzz-pack                           build/asan/fuzz/fuzz.tar.xz: all that another machine needs,
#                                            without a compiler: unpack, then fuzz/run.sh -s 600 fuzz/bin;
#                                            tests/fuzz/merge.sh takes the corpus it keeps back

FUZZ_NAMES   := $(patsubst tests/fuzz/%_fuzz.cc,%,$(wildcard tests/fuzz/*_fuzz.cc))
FUZZ_SECONDS ?= 60
FUZZ         ?= $(FUZZ_NAMES)
FUZZ_FOLDER  := $(BUILD)/asan/fuzz

# What the build with AddressSanitizer is told. The code of two large libraries is not what is tested.
FUZZ_BUILD = CXX='$(firstword $(shell command -v clang++-14 clang++) clang++-14)' WARN=-w \
  SANITIZE_MORE='-fsanitize=float-cast-overflow,fuzzer-no-link -fsanitize-ignorelist=tests/fuzz/not_sanitized.txt -D_GLIBCXX_ASSERTIONS'

ifneq ($(findstring fuzzer,$(SANITIZE_MORE)),)
# In that build.
FUZZ_TARGETS := $(FUZZ_NAMES:%=$(BUILD)/fuzz/bin/%)

# What reads files and images: the loader, and parts of the shim and the tools.
FUZZ_READERS := $(filter-out loader/read/find_object.cc loader/check/api.cc loader/memory/memory.cc,$(LOADER_SRC)) $(wildcard shim/*/image_bytes.cc) $(PLAN_SRC) \
  $(filter-out tools/commands/% tools/judge/%,$(wildcard tools/*/*.cc)) \
  $(wildcard $(addprefix tools/judge/,element_types.cc records.cc report_page.cc table.cc workloads.cc))
FUZZ_READER_OBJ := $(FUZZ_READERS:%.cc=$(BUILD)/obj/%.o)
$(FUZZ_READER_OBJ) $(FUZZ_NAMES:%=$(BUILD)/obj/tests/fuzz/%_fuzz.o): ROOM_FLAGS = -O1

$(BUILD)/fuzz/libreaders.a: $(FUZZ_READER_OBJ) tests/fuzz/fuzz.mk
	$(call say,AR,$@)
	$(Q)mkdir -p $(@D)
	$(Q)rm -f $@ && ar rcs $@ $(filter %.o,$^)

$(FUZZ_TARGETS): $(BUILD)/fuzz/bin/%: $(BUILD)/obj/tests/fuzz/%_fuzz.o $(BUILD)/fuzz/libreaders.a
	$(call say,LINK,$@)
	$(Q)mkdir -p $(@D)
	$(Q)$(CXX) $(SANITIZE_LINK) -fsanitize=fuzzer -o $@ $^ -Wl,-rpath,'$$ORIGIN' -static-libstdc++ -static-libgcc \
	  -Wl,-Bstatic -lpcre2-8 -lsodium -lelf -lz -llz4 -lzstd -Wl,-Bdynamic -ldl

.PHONY: fuzz-targets
fuzz-targets: $(FUZZ_TARGETS)
else

# What the targets read, as the libraries and the CLI have it.
FUZZ_OBJ := $(call batches,tests/fuzz,$(FUZZ_NAMES:%=tests/fuzz/%_fuzz.cc) tests/fuzz/replay_test.cc)
$(FUZZ_OBJ): ROOM_FLAGS = $(TEST_FLAGS) $(FMT_FLAGS) -DFUZZ_FOLDER='"$(CURDIR)/tests/fuzz"' -DFUZZ_TARGETS='$(foreach name,$(FUZZ_NAMES),TARGET($(name)))'
$(eval $(call with_test_headers,$(FUZZ_OBJ)))
$(BUILD)/obj/tests/fuzz/libreaders.a: $(filter-out $(BUILD)/obj/tools/main.o,$(CLI_OBJ)) $(PLAN_OBJ) $(patsubst %.cc,$(BUILD)/obj/%.o,$(wildcard shim/*/image_bytes.cc))
	$(call say,AR,$@)
	$(Q)mkdir -p $(@D)
	$(Q)rm -f $@ && ar rcs $@ $^
FUZZ_LIBS := $(BUILD)/obj/tests/fuzz/libreaders.a $(LOADER_AR)
$(eval $(call test_program,fuzz_tests,$(FUZZ_OBJ),$(FUZZ_LIBS) $(PRIVATE_LIBELF),$(FUZZ_LIBS) $(LOADER_LINK) -Wl$(comma)-rpath$(comma)'$$$$ORIGIN/../lib'))
test: $(BUILD)/tests/fuzz_tests

# After the loader's tests of that build: two makes must not work in one folder at once.
.PHONY: asan-fuzz fuzz fuzz-pack
asan-fuzz: asan-loader
	$(Q)$(MAKE) --no-print-directory BUILD=$(BUILD)/asan SETUP=$(SETUP) SANITIZE=address,undefined OPT='-O0 -g1' $(FUZZ_BUILD) \
	  fuzz-targets
asan-build: asan-fuzz
fuzz: asan-fuzz ## look for inputs that break the readers: FUZZ_SECONDS=600 FUZZ=target
	$(Q)tests/fuzz/run.sh -s $(FUZZ_SECONDS) -o $(FUZZ_FOLDER)/out $(FUZZ_FOLDER)/bin $(FUZZ)

fuzz-pack: asan-fuzz
	$(call say,PACK,$(FUZZ_FOLDER)/fuzz.tar.xz)
	$(Q)rm -rf $(FUZZ_FOLDER)/pack && mkdir -p $(FUZZ_FOLDER)/pack/fuzz/bin
	$(Q)for target in $(FUZZ_NAMES); do strip -s -o $(FUZZ_FOLDER)/pack/fuzz/bin/$$target $(FUZZ_FOLDER)/bin/$$target; done
	$(Q)cp -r tests/fuzz/run.sh tests/fuzz/corpus $(FUZZ_FOLDER)/pack/fuzz/
	$(Q)tar -C $(FUZZ_FOLDER)/pack -cJf $(FUZZ_FOLDER)/fuzz.tar.xz fuzz
endif
