"""RLPTO: a research testbed for scheduling distributed deep-learning training."""

import os

__version__ = "0.2.0"


def _leave_out_avx512() -> None:
    """Make NumPy and SciPy compute without AVX-512, whose exp, log and products differ in the last digit: a seed then
    gives the same result on all CPUs. This works only if NumPy is imported later than this package."""
    try:
        with open("/proc/cpuinfo", encoding="ascii", errors="replace") as file:
            wide = "avx512f" in file.read(1 << 13)
    except OSError:  # another system than Linux
        wide = False
    if wide:
        os.environ.setdefault("NPY_DISABLE_CPU_FEATURES", "X86_V4 AVX512_ICL AVX512_SPR")
        os.environ.setdefault("OPENBLAS_CORETYPE", "Haswell")


_leave_out_avx512()
