#!/usr/bin/env bash
# The kernels of a profile that known_kernels.py finds in the ready folders, by the names that PyTorch's profiler tells.
set -eu -o pipefail
build=$(realpath "${BUILD:-build}")
PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=$(dirname "$0") python3 - "$build" <<'END'
import pathlib
import sys
from known_kernels import is_known, is_known_by, matcher_of

build = pathlib.Path(sys.argv[1])
is_known_name = is_known(build / "bin/fibshim", [build / "config" / name for name in ("vllm", "machete", "cublas", "flash_attention")])
combine = ("flash::FlashAttnFwdCombine<cute::tuple<cute::C<16>, cute::C<64> >, 4, 256, 1, false, true, cutlass::bfloat16_t, "
           "float, cutlass::arch::Sm90>")
problems = []


def expect(is_expected, name, knows=is_known_name):
    if bool(knows(name)) != is_expected:
        problems.append(f"{'not known' if is_expected else 'known'}: {name}")


# A pattern's symbol is a regular expression of the mangled name, or the whole of it.
expect(True, "void vllm::rms_norm_kernel<c10::BFloat16, 8, 2>(c10::BFloat16*, c10::BFloat16 const*, long, long, long, long, long, "
             "c10::BFloat16 const*, float, int, int)")
expect(True, "void vllm::rotary_embedding_kernel<c10::BFloat16, c10::BFloat16, true>(long const*, c10::BFloat16*, c10::BFloat16*, "
             "c10::BFloat16 const*, int, long, long, long, int, int, int, long, bool)")
expect(True, f"void cutlass::device_kernel<{combine} >({combine}::Params)")
expect(True, f"void cutlass::device_kernel<{combine}>({combine}::Params)")  # as newer demanglers write it
expect(False, "void vllm::rms_norm_kernel<c10::Half, 1, 3>(c10::Half*, c10::Half const*, long, long, long, long, long, c10::Half const*, "
              "float, int, int)")
expect(False, "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<int>, std::array<char*, 1ul> >(int, "
              "at::native::FillFunctor<int>, std::array<char*, 1ul>)")
# Compiled at run time: no table has all of their names.
expect(True, "nvjet_sm90_tst_64x8_64x16_4x1_v_bz_splitK_TNT")
expect(True, "triton_red_fused_fused_add_rms_norm_123456")
expect(True, "triton_red_fused_123456")
expect(False, "triton_red_fused__to_copy_embedding_rms_norm_0")
expect(False, "Memcpy DtoD (Device -> Device)")

# A symbol that the profiler leaves as it is, and patterns of each kind.
long_symbol = "_Z" + "x" * 2000
expect(True, long_symbol, is_known_by([{"symbol": "re:_Zx+", "fits": [{"symbol": long_symbol}]}]))
expect(False, "f(int)", is_known_by([{"symbol": "_Z1fi", "fits": []}]))
expect(True, "f(int)", is_known_by([{"symbol": "_Z1fi", "fits": [{"symbol": "_Z1fi"}]}]))
expect(True, "(anonymous namespace)::f(int)", is_known_by([{"symbol": "re:.*1f.*", "fits": [{"symbol": "_ZN12_GLOBAL__N_11fEi"}]}]))
expect(True, "norm_64_64", matcher_of(r"re:norm_(?<n>\d+)_\k<n>"))
expect(False, "norm_64_32", matcher_of(r"re:norm_(?<n>\d+)_\k<n>"))
expect(True, "norm_64", matcher_of("glob:norm_*"))
expect(True, "norm", matcher_of("norm"))
sys.exit("\n".join(problems) or 0)
END
