"""The kernel for one row beside cuBLASLt, on a card; without one all of it is skipped."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")
is_hopper = torch.cuda.is_available() and torch.cuda.get_device_capability() >= (9, 0)
pytestmark = pytest.mark.skipif(not is_hopper, reason="no GPU of compute capability 9.0 or higher")
SHAPES = [(6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336), (128256, 4096)]


@pytest.mark.parametrize("pdl", [True, False])
@pytest.mark.parametrize("shape", SHAPES)
def test_one_row_is_as_exact_as_cublaslt(shape: tuple[int, int], pdl: bool) -> None:
    from harness.engines.single_row import multiply

    x = torch.randn(1, shape[1], device="cuda").to(torch.float8_e4m3fn)
    weight = torch.randn(shape, device="cuda").to(torch.float8_e4m3fn)
    x_scale, weight_scale = (torch.tensor([value], device="cuda") for value in (0.5, 0.25))
    exact = 0.125 * (x.double() @ weight.double().t())
    library = torch._scaled_mm(x, weight.t(), out_dtype=torch.bfloat16, scale_a=x_scale, scale_b=weight_scale)
    product = multiply(x, weight, x_scale, weight_scale, pdl)
    error, library_error = (float((out.double() - exact).norm() / exact.norm()) for out in (product, library))
    assert error < 0.003 and error < 1.1 * library_error


def test_a_chain_of_rows_waits_for_the_row_before_it() -> None:
    """Each product reads what the one before it wrote: with dependent launch it must not read too early."""
    from harness.engines.single_row import multiply

    one = torch.ones(1, device="cuda")
    weights = [(torch.randn(4096, 4096, device="cuda") / 64).to(torch.float8_e4m3fn) for _ in range(32)]

    def chain(pdl: bool) -> Any:
        x = torch.ones(1, 4096, device="cuda", dtype=torch.bfloat16)
        for weight in weights:
            x = multiply(x.to(torch.float8_e4m3fn), weight, one, one, pdl)
        return x

    wanted = chain(False)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        chained = chain(True)
    for _ in range(100):
        graph.replay()
        assert torch.equal(chained, wanted)
