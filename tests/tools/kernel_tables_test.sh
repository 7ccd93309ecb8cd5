#!/usr/bin/env bash
# A table of sizes with another block, or without a size that is compiled, must not compile, and the build must hand the tables to
# the compiler: without them row.cuh compares nothing, and a kernel that its table launches wrongly shows only on a GPU.
set -eu -o pipefail
build=$(realpath "${BUILD:-build}")
cd "$(dirname "$0")/../.."
table=$(mktemp)
trap 'rm -f "$table"' EXIT
failures=0

expect_refused() {
  sed "$2" config/shared/sum_rmsnorm/sizes.table >"$table"
  if output=$("${NVCC:-nvcc}" -cubin -std=c++20 -Ikernels/common -arch=sm_90 "-DFIBSHIM_TABLE_LINES=$(awk -f kernels/table_lines.awk "$table")" \
    kernels/sum_rmsnorm/sum_rmsnorm.cu -o /dev/null 2>&1) || [[ $output != *"tables of sizes have another block or grid"* ]]; then
    printf 'kernel_tables_test: %s is not refused: %s\n' "$1" "$output"
    failures=$((failures + 1))
  fi
}

expect_refused 'another block' 's/^\(1536 .*\) 192 /\1 96 /'
expect_refused 'another grid' '/^hidden_size/s/ rows / grid /; s/^\(1536 .* 192 \) *8192/\1 ceil_div(batch_size,4)/'
expect_refused 'a size without a line' '/^1536 /d'
for family in fused_add_rmsnorm layernorm quant_per_block quant_per_token rmsnorm rmsnorm_quant sandwich_rmsnorm sum_rmsnorm then_quant_per_block; do
  commands=$(env -u MAKEFLAGS make -n -W kernels/common/row.cuh BUILD="$build" "$build/kernels/$family/$family.sm_90.cubin")
  if [[ $commands != *FIBSHIM_TABLE_LINES=*config/shared/$family/sizes.table* ]]; then
    echo "kernel_tables_test: $family is compiled without its tables"
    failures=$((failures + 1))
  fi
done
[ $failures = 0 ]
