"""What LLVM makes of products for aarch64, compiled on any machine."""

from __future__ import annotations

import re

import pytest

from ostinato.devices.cpu import runner
from ostinato.devices.cpu.compiler import assembly
from ostinato.devices.cpu.emit.builder import Module
from ostinato.devices.cpu.isa import ISAS
from ostinato.devices.cpu.kernels.product import Product

K = 256
SETS = {"neon_i8mm": "usdot", "neon_dotprod": "sdot"}


def instructions(name: str, form: str) -> list[str]:
    module = Module(ISAS[name])
    Product(form, K, 16).emit(module)
    return re.findall(r"^\t([a-z]\w*(?:\.\w+)?\t.*)", assembly(module.text(), ISAS[name]), re.MULTILINE)


@pytest.mark.parametrize("name", list(SETS))
@pytest.mark.parametrize("form", ["q4_0.r16", "q4_1.r16", "q8_0.r16", "q4_k.r16", "q6_k.r16", "iq4_nl.r16"])
def test_products_use_the_byte_products_and_call_nothing(name: str, form: str) -> None:
    found = instructions(name, form)
    dots = [line for line in found if line.startswith(f"{SETS[name]}\t")]
    assert len(dots) == 128, "two blocks and their rests: 8 times 64 bytes each, 16 to an instruction"
    assert all(re.search(r"\.4b\[[0-3]\]$", line) for line in dots), "activations are taken from lanes"
    assert not [line for line in found if re.match(r"(bl|blr)\t", line)]


@pytest.mark.parametrize("form", ["q8_0.r16", "iq4_nl.r16"])
def test_bytes_with_128_too_much_are_made_signed_and_need_no_more(form: str) -> None:
    """What a block starts from is then 0, not 128 times the sum of the activations."""
    found = instructions("neon_dotprod", form)
    assert len([line for line in found if line.startswith("eor\tv")]) == 64
    assert not [line for line in found if line.startswith("ld1r\t")]


@pytest.mark.parametrize("name", list(SETS))
def test_threads_work_in_the_default_mode_and_give_it_back(name: str) -> None:
    code = assembly(runner.emit(ISAS[name]), ISAS[name])
    work = code[code.index("pool_work:") :].split(".cfi_endproc")[0]
    assert re.search(r"mrs\tx\d+, FPCR.*msr\tFPCR, xzr.*msr\tFPCR, x\d", work, re.DOTALL | re.IGNORECASE)
    assert re.search(r"\byield\b", code)
    assert len(re.findall(r"mrs\tx\d+, CNTVCT_EL0", work, re.IGNORECASE)) == 2, "for profiles"
