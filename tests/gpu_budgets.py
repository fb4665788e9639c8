"""What the GPU kernels may need of a device: the one table, and the rules for every kernel."""

from fnmatch import fnmatchcase
from typing import NamedTuple

# Shared memory that a block can have, in bytes: CUDA C++ Programming Guide, technical specifications per compute
# capability; 64 KiB of local data share on CDNA 3.
SHARED = {"sm_80": 163 * 1024, "sm_90": 227 * 1024, "sm_100": 227 * 1024, "gfx942": 64 * 1024}
MATRIX = {"sm_80": {"mma.sync"}, "sm_90": {"wgmma", "mma.sync"}, "sm_100": {"tcgen05", "mma.sync"}, "gfx942": {"mfma"}}


class Budget(NamedTuple):
    """The most registers of a thread, by architecture; sm_80, sm_90, sm_100, gfx942 (vector registers, of 512)."""

    kernels: str  # shell pattern of names
    sm_80: int
    sm_90: int
    sm_100: int
    gfx942: int = 0
    wide_loads: bool = False  # of CUDA C++ kernels, which cannot say it themselves

    def matches(self, name):
        return fnmatchcase(name, self.kernels)


TRITON = ()

CUDA = ()


def violations(compiled, table):
    """What is wrong with a compiled kernel, as lines of text; none where it keeps to its budget."""
    found = [budget for budget in table if budget.matches(compiled.name)]
    if len(found) != 1:
        return [f"{compiled.name}: {len(found)} budgets, not one: {[budget.kernels for budget in found]}"]
    registers = getattr(found[0], compiled.arch)
    wrong = []
    if compiled.registers > registers:
        wrong.append(f"{compiled.registers} registers, budget {registers}")
    if compiled.stack:
        wrong.append(f"{compiled.stack} bytes of stack")
    if compiled.spills:
        wrong.append(f"{compiled.spills} spilled")
    if compiled.shared > SHARED[compiled.arch]:
        wrong.append(f"{compiled.shared} bytes of shared memory, a block can have {SHARED[compiled.arch]}")
    if compiled.dot16 and not MATRIX[compiled.arch] & set(compiled.matrix):
        wrong.append("no matrix instructions")
    if (compiled.wide_loads or found[0].wide_loads) and compiled.widest_load < 16:
        wrong.append(f"global loads of {compiled.widest_load} bytes at most")
    return [f"{compiled.name}, {compiled.arch}: {line}" for line in wrong]
