"""The hand-written Triton kernel of parts.py: a module of its own, for Triton reads its source from the file."""
import triton
import triton.language as tl


@triton.jit
def triton_plus_one(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, mask=at < n) + 1.0, mask=at < n)
