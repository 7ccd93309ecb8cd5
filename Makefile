# fibshim: build, test, install. `make help` lists the targets; `make V=1` shows whole commands.
# Every room has its own rules in <room>/<room>.mk; this file holds what they share.

BUILD  ?= build
PREFIX ?= /usr/local
CC     := gcc
CXX    := g++
V      ?= 0
comma  := ,

OPT      ?= -O2 -g1
WARN     := -Wall -Wextra -Wpedantic -Wshadow -Wno-missing-field-initializers
CPPFLAGS += -I. -isystem $(CUDA_INCLUDE) -isystem $(PACKAGES)/usr/include
CXXFLAGS += -std=c++20 $(OPT) $(WARN) -fPIC -ffunction-sections -fdata-sections -fno-plt
# GCC spends a tenth of its time on collecting its garbage, of which there is less than a gigabyte.
CXXFLAGS += $(if $(findstring clang,$(COMPILER)),,--param ggc-min-heapsize=1000000)
DEPFLAGS  = -MMD -MP
# Without optimisation, as most tests are compiled, clang takes half of the time that g++ does. Another CXX than g++ compiles everything.
QUICK_CXX  = $(or $(if $(subst g++,,$(CXX)),,$(CLANG)),$(CXX))
COMPILER   = $(if $(filter -O0,$(if $(SANITIZE),,$(ROOM_FLAGS))),$(QUICK_CXX),$(CXX))

# SANITIZE=address,undefined (or thread): a build with that sanitizer. The runtimes go in statically, as
# clang has them: a shared libasan would not see what a static libstdc++ throws.
SANITIZE       ?=
SANITIZE_MORE  ?=
SANITIZE_FLAGS := $(if $(SANITIZE),-fsanitize=$(SANITIZE) -fno-sanitize-recover=all -fno-omit-frame-pointer $(SANITIZE_MORE))
SANITIZE_LINK   = $(SANITIZE_FLAGS) $(if $(findstring clang,$(CXX)),,$(if $(findstring address,$(SANITIZE)),-static-libasan) \
  $(if $(findstring undefined,$(SANITIZE)),-static-libubsan) $(if $(findstring thread,$(SANITIZE)),-static-libtsan))

# All processors, unless -j says otherwise.
ifeq ($(MAKELEVEL),0)
  MAKEFLAGS += -j$(shell nproc)
endif

ifeq ($(V),1)
  Q   :=
  say  = @:
else
  Q   := @
  say  = @printf '  %-8s%s\n' '$(1)' '$(patsubst $(BUILD)/%,%,$(2))'
endif

.DELETE_ON_ERROR:
.SUFFIXES:
.PHONY: all help setup demo test test-gpu bench models mutations asan ubsan tsan lint format check-format install clean

all: ## build the shim, the loader, the CLI and the config folders (the default)

# Packages that the build needs. Looked for once; a missing one is installed, saying what runs. The
# file names the CUDA toolkit to use, and clang. It is included, so that make starts over when it has been made:
# every other rule may rely on what it installs. Goals that build nothing install nothing.
SETUP := $(BUILD)/setup.mk
$(SETUP): tools/setup/packages.sh
	$(Q)mkdir -p $(@D)
	$(Q)tools/setup/packages.sh build $(@D) $@
setup: $(SETUP) ## install the packages that the build needs
	@:
ifneq ($(filter-out help clean format check-format,$(or $(MAKECMDGOALS),all)),)
include $(SETUP)
endif
NVCC         = $(CUDA_HOME)/bin/nvcc
CUDA_INCLUDE = $(CUDA_HOME)/include

# $(1) a header, compiled once with the flags $(3) for the objects $(2): the headers of libraries take half of the time that
# a file takes. Not with ccache, which would hash them again for each, nor with a sanitizer, which clang may bring. Made anew where the
# room's flags may have changed.
define precompiled
ifeq ($(findstring ccache,$(CXX))$(SANITIZE),)
$(BUILD)/obj/$(1).gch: $(1) $(firstword $(subst /, ,$(1)))/$(firstword $(subst /, ,$(1))).mk | $(SETUP)
	$$(call say,CXX,$$<)
	$$(Q)mkdir -p $$(@D)
	$$(Q)$(CXX) $$(CPPFLAGS) $$(CXXFLAGS) $(3) $$(DEPFLAGS) -x c++-header $$< -o $$@
$(2): $(BUILD)/obj/$(1).gch
$(2): private CPPFLAGS += -include $(BUILD)/obj/$(1) -Winvalid-pch
endif
endef

# Tests are compiled several files at a time, and the loader and the CLI a folder, as one that includes them: what they include takes longer than they themselves. So
# names that are a file's own must differ within a program's folder. BATCH=1 compiles each file by itself, while one is worked on.
BATCH ?= 14
# $(1) where the objects go, below build/obj; $(2) sources: their objects, of which each has a name of its own, as archives want. For :=
# alone, since it makes the rules.
batches = $(if $(2),$(call batch,$(1)/$(subst /,_,$(1))_$(words $(2)),$(wordlist 1,$(BATCH),$(2))) \
  $(call batches,$(1),$(filter-out $(wordlist 1,$(BATCH),$(2)),$(2))))
batch   = $(eval $(call batch_rule,$(BUILD)/obj/$(1),$(2)))$(BUILD)/obj/$(1).o
# A folder at a time: objects of parts of one would call each other in circles, which folders do not.
folder_objects = $(if $(filter 1,$(BATCH)),$(call batches,$(1),$(2)),$(call batch,$(1)/$(subst /,_,$(1)),$(2)))
define batch_rule
$(1).cc: FORCE
	$(Q)mkdir -p $$(@D)
	$(Q)printf '#include "%s"\n' $(2) | cmp -s - $$@ || printf '#include "%s"\n' $(2) >$$@
$(1).o: $(1).cc | $(SETUP)
	$$(call say,CXX,$(2))
	$(Q)$$(COMPILER) $$(CPPFLAGS) $$(CXXFLAGS) $(SANITIZE_FLAGS) $$(ROOM_FLAGS) $(DEPFLAGS) -c $$< -o $$@
endef
.PHONY: FORCE

include shim/shim.mk
include loader/loader.mk
include kernels/kernels.mk
include config/config.mk
include tools/tools.mk
include tests/tests.mk

all: $(SHIM_LIB) $(RECORD_LIB) $(SHADOW_LIB) $(LOADER_LIB) $(CLI) $(CONFIG_FOLDERS)

help: ## this list
	@printf 'make targets:\n'
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sort | sed -E 's/^([a-z-]+):.*## (.*)/  \1\t\2/' | expand -t 18
	@printf 'settings: V=1 whole commands; BUILD=dir; KERNEL_SMS="80 90 100" the GPUs that kernels are compiled for; DESTDIR= PREFIX=%s for install\n' '$(PREFIX)'

clean: ## remove what was built, but for downloaded packages
	$(Q)find $(BUILD) -mindepth 1 -maxdepth 1 ! -name cuda ! -name packages ! -name 'setup*' -exec rm -rf {} +

# Objects: build/obj/<source path>.o. Rooms add flags with target-specific variables.
$(BUILD)/obj/%.o: %.cc | $(SETUP)
	$(call say,CXX,$<)
	$(Q)mkdir -p $(@D)
	$(Q)$(COMPILER) $(CPPFLAGS) $(CXXFLAGS) $(SANITIZE_FLAGS) $(ROOM_FLAGS) $(DEPFLAGS) -c $< -o $@

-include $(shell find $(BUILD)/obj -name '*.d' 2>/dev/null)
