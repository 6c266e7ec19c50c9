"""fp8 products of a single row, as decoding one request needs them: a Triton kernel that reads each weight once."""
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-any-return"

import math
from collections.abc import Callable
from typing import TypedDict, Unpack

import torch
import triton
import triton.language as tl
from triton.language import constexpr

# The rows, columns and warps of a program by the shape of the weight: the fastest of 24 that were measured on an H200.
TILES = {(6144, 4096): (4, 512, 4), (4096, 4096): (16, 1024, 8), (28672, 4096): (4, 2048, 8)}
OTHER_TILE = (8, 1024, 8)  # for all other shapes; the fastest for (4096, 14336)
# A shape that is a multiple of these is one of every tile above, since all their sizes are powers of 2.
MOST_TILE_ROWS, MOST_TILE_COLUMNS = 16, 2048


@triton.jit
def kernel(x, weight, out, scale_x, scale_w, width: constexpr, rows: constexpr, cols: constexpr, pdl: constexpr):
    """Write the scaled products of the row `x` with `rows` rows of the weight to `out`.

    The weight has `width` columns, of which `cols` are read at a time. `pdl` turns on programmatic dependent launch.
    """
    row = tl.program_id(0) * rows + tl.arange(0, rows)  # the rows of this program of the grid
    column = tl.arange(0, cols)
    place = weight + row[:, None] * width + column[None, :]  # pointers to the first columns of these rows
    weights = tl.load(place)  # weights never change, so they may be read while the previous kernel still runs
    if pdl:  # let the next kernel begin, then wait for the previous one, which makes `x`
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    total = weights.to(tl.float32) * tl.load(x + column).to(tl.float32)[None, :]
    for start in range(cols, width, cols):
        total += tl.load(place + start).to(tl.float32) * tl.load(x + start + column).to(tl.float32)[None, :]
    tl.store(out + row, (tl.sum(total, 1) * tl.load(scale_x) * tl.load(scale_w)).to(tl.bfloat16))


class ScaledProduct(TypedDict):
    """The arguments of vLLM's `apply_scaled_mm`: A by B with a scale each, and the shape of the result."""

    A: torch.Tensor
    B: torch.Tensor
    As: torch.Tensor
    Bs: torch.Tensor
    out_dtype: torch.dtype
    bias: torch.Tensor | None
    output_shape: list[int]


def multiply(
    x: torch.Tensor, weight: torch.Tensor, scale_x: torch.Tensor, scale_w: torch.Tensor, pdl: bool = True
) -> torch.Tensor:
    """Return the product of the single row `x` and the transposed weight, both fp8 with a scale, in bf16.

    `pdl` turns on Hopper's programmatic dependent launch: the kernel may begin before the previous one has ended.
    """
    height, width = weight.shape
    rows, cols, warps = TILES.get((height, width), OTHER_TILE)
    out = torch.empty((1, height), dtype=torch.bfloat16, device=x.device)
    # The grid has a program for each `rows` rows of the weight.
    kernel[height // rows,](x, weight, out, scale_x, scale_w, width, rows, cols, pdl, num_warps=warps, launch_pdl=pdl)
    return out


def single_row_variant(apply_many: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Return a replacement of vLLM's method `apply_scaled_mm` that computes the product of a single row faster.

    Everything else is left to `apply_many`, vLLM's own method.
    """

    @torch.library.custom_op("llama31::scaled_product", mutates_args=())
    def product(a: torch.Tensor, b: torch.Tensor, scale_a: torch.Tensor, scale_b: torch.Tensor) -> torch.Tensor:
        """Return a times b in bf16. `b` is the transposed weight.

        torch.compile does not look into this operator, so the number of rows is checked anew at each call.
        """
        has_whole_tiles = b.shape[0] % MOST_TILE_COLUMNS == 0 and b.shape[1] % MOST_TILE_ROWS == 0
        if a.shape[0] == 1 and has_whole_tiles:
            return multiply(a, b.t(), scale_a, scale_b)
        result = {"out_dtype": torch.bfloat16, "bias": None, "output_shape": [a.shape[0], b.shape[1]]}
        no_self = None  # vLLM's method does not use it
        return apply_many(no_self, A=a, B=b, As=scale_a, Bs=scale_b, **result)

    # torch.compile learns the shape and the type of the product from this function, without computing it.
    product.register_fake(lambda a, b, *scales: a.new_empty((a.shape[0], b.shape[1]), dtype=torch.bfloat16))

    def apply_scaled_mm(self: object, **arguments: Unpack[ScaledProduct]) -> torch.Tensor:
        """Return what vLLM's method returns. A bias, or another type than bf16, is left to that method."""
        if arguments["bias"] is not None or arguments["out_dtype"] != torch.bfloat16:
            return apply_many(self, **arguments)
        out = product(arguments["A"], arguments["B"], arguments["As"], arguments["Bs"])
        shape = arguments["output_shape"]
        return out[: math.prod(shape[:-1])].view(*shape)  # vLLM may have added rows of padding to A.

    return apply_scaled_mm
