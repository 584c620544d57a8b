"""How the C library treats memory that is freed."""

import ctypes

# From malloc.h of glibc.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3


def keep_freed_memory() -> None:
    """Let glibc keep up to 1 GiB that is freed, instead of handing it back to the kernel.

    Every local step frees and asks anew for the same few megabytes, and would have them zeroed
    and mapped page by page each time: a tenth of a small CNN's step. Other C libraries stay as
    they are.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for option in (_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD):
            mallopt(option, 1 << 30)


def hand_back_freed_memory() -> None:
    """Let glibc return what is free now: dividing data leaves more than a run needs."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
