# Fuzz targets: build/fuzz/bin/<name>, one for each tests/fuzz/<name>_fuzz.cc, with clang's libFuzzer,
# AddressSanitizer and UBSan. The readers are compiled once, into an archive that all targets share.
#   make fuzz FUZZ_SECONDS=600 FUZZ=images   runs longer, of all targets or one; findings lie in
#                                            build/fuzz/out/findings, each with how to repeat it
#   build/fuzz/fuzz.tar.xz                   all that another machine needs, without a compiler: unpack,
#                                            then fuzz/run.sh -s 600 fuzz/bin; what it keeps lies in
#                                            fuzz/bin/out, and tests/fuzz/merge.sh takes the corpus back

FUZZ_FOLDER  := $(BUILD)/fuzz
FUZZ_NAMES   := $(patsubst tests/fuzz/%_fuzz.cc,%,$(wildcard tests/fuzz/*_fuzz.cc))
FUZZ_TARGETS := $(FUZZ_NAMES:%=$(FUZZ_FOLDER)/bin/%)
FUZZ_SECONDS ?= 60
FUZZ         ?= $(FUZZ_NAMES)

# What reads files and images: the loader, and parts of the shim and the tools.
FUZZ_READERS := $(filter-out loader/find_object.cc loader/api.cc,$(LOADER_SRC)) \
  $(BUILD)/obj/loader/identity.cc shim/image_bytes.cc \
  $(addprefix tools/,atomic_file.cc counters_files.cc fatbin_payload.cc folders_in_force.cc image_report.cc kernel_signature.cc \
    launch_groups.cc prometheus.cc recording.cc secret_key.cc suggestion.cc swept_counts.cc terminal.cc) \
  $(addprefix tools/judge/,element_types.cc records.cc report_page.cc table.cc workloads.cc)

FUZZ_CXX   = $(firstword $(shell command -v clang++-14 clang++))
FUZZ_FLAGS := -O1 -g1 -fsanitize=address,undefined,float-cast-overflow -fno-sanitize-recover=all \
  -fno-omit-frame-pointer -D_GLIBCXX_ASSERTIONS -DFMT_HEADER_ONLY
FUZZ_LINK  := -static-libstdc++ -static-libgcc -Wl,-Bstatic -lpcre2-8 -lsodium -lelf -lz -llz4 -lzstd -Wl,-Bdynamic -ldl

FUZZ_OBJ = $(patsubst %.cc,$(FUZZ_FOLDER)/obj/%.o,$(1:$(BUILD)/obj/%=%))

$(FUZZ_FOLDER)/obj/%.o: %.cc | $(SETUP) $(BUILD)/setup-fuzz
	$(call say,CLANG,$<)
	$(Q)mkdir -p $(@D)
	$(Q)$(FUZZ_CXX) $(CPPFLAGS) -std=c++20 $(FUZZ_FLAGS) -fsanitize=fuzzer-no-link $(DEPFLAGS) -c $< -o $@
$(FUZZ_FOLDER)/obj/loader/identity.o: $(BUILD)/obj/loader/identity.cc | $(BUILD)/setup-fuzz
	$(Q)mkdir -p $(@D)
	$(Q)$(FUZZ_CXX) $(CPPFLAGS) -std=c++20 $(FUZZ_FLAGS) -c $< -o $@

$(FUZZ_FOLDER)/libreaders.a: $(call FUZZ_OBJ,$(FUZZ_READERS)) tests/fuzz/fuzz.mk
	$(call say,AR,$@)
	$(Q)rm -f $@ && ar rcs $@ $(filter %.o,$^)

$(FUZZ_TARGETS): $(FUZZ_FOLDER)/bin/%: $(FUZZ_FOLDER)/obj/tests/fuzz/%_fuzz.o $(FUZZ_FOLDER)/libreaders.a
	$(call say,LINK,$@)
	$(Q)mkdir -p $(@D)
	$(Q)$(FUZZ_CXX) $(FUZZ_FLAGS) -fsanitize=fuzzer -o $@ $^ $(FUZZ_LINK)

.SECONDARY:
.PHONY: fuzz
fuzz: $(FUZZ_TARGETS) ## look for inputs that break the readers: FUZZ_SECONDS=600 FUZZ=target
	$(Q)tests/fuzz/run.sh -s $(FUZZ_SECONDS) -o $(FUZZ_FOLDER)/out $(FUZZ_FOLDER)/bin $(FUZZ)

$(FUZZ_FOLDER)/fuzz.tar.xz: $(FUZZ_TARGETS) tests/fuzz/run.sh $(shell find tests/fuzz/corpus -type f)
	$(call say,PACK,$@)
	$(Q)rm -rf $(FUZZ_FOLDER)/pack && mkdir -p $(FUZZ_FOLDER)/pack/fuzz/bin
	$(Q)for target in $(FUZZ_TARGETS); do strip -s -o $(FUZZ_FOLDER)/pack/fuzz/bin/$${target##*/} $$target; done
	$(Q)cp -r tests/fuzz/run.sh tests/fuzz/corpus $(FUZZ_FOLDER)/pack/fuzz/
	$(Q)tar -C $(FUZZ_FOLDER)/pack -cJf $@ fuzz

# tests/fuzz/fuzz_test.sh runs each for a minute.
test: $(FUZZ_TARGETS)

-include $(shell find $(FUZZ_FOLDER)/obj -name '*.d' 2>/dev/null)
