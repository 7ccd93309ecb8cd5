// SGLang's quantisation in groups of 128 from bfloat16 to fp8, with scales column by column and row by row, of the sources in its
// wheel. SGLang compiles it at run time, with fast math. Compiled for its symbols, and for tests/gpu/quant_per_block.py.
#include "gemm/per_token_group_quant.cuh"

using namespace sglang;

template <auto... kRuns>
void take() {}

template <bool kByRows>
using Quant =
    PerTokenGroupQuantFlatKernel<bf16_t, fp8_e4m3_t, 128, false, kByRows, true, false, true>;

void instantiate() { take<&Quant<false>::run, &Quant<true>::run>(); }
