# A thin front door; the build itself is CMakeLists.txt.
#   make          build into build/, the program is build/ringattn        make install    PREFIX=/usr/local
#   make demo     install what is missing, build, run on real input       make format     clang-format in place
#   make test     install what is missing, build and test everything      make clean
BUILD ?= build
JOBS ?= $(shell nproc)
PREFIX ?= /usr/local
CMAKE_FLAGS ?=
NINJA := $(shell test -f $(BUILD)/CMakeCache.txt || command -v ninja)

all:
	@command -v cmake >/dev/null || { echo "cmake is missing; \`make deps\` installs what the build needs"; exit 1; }
	cmake -S . -B $(BUILD) $(if $(NINJA),-G Ninja) $(CMAKE_FLAGS)
	cmake --build $(BUILD) -j $(JOBS)

deps:
	tools/install_deps.sh

demo: deps
	$(MAKE) --no-print-directory all
	tools/demo.sh $(BUILD)

test:
	tools/install_deps.sh test
	JOBS=$(JOBS) tools/test_all.sh $(BUILD)

install: all
	cmake --install $(BUILD) --prefix $(PREFIX)

format:
	tools/check_format.sh --fix

clean:
	rm -rf $(BUILD)

.PHONY: all deps demo test install format clean
