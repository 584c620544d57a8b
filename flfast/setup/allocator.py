"""Settings of glibc's memory allocator."""

import ctypes

# From malloc.h of glibc.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3


def keep_freed_memory() -> None:
    """Let glibc keep up to 1 GiB of freed memory instead of returning it to the kernel.

    Every local step frees and allocates the same few megabytes. Without this setting the kernel
    maps and zeroes them page by page each time, which is a tenth of a small CNN's step. Other C
    libraries are left alone.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for option in (_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD):
            mallopt(option, 1 << 30)


def return_freed_memory() -> None:
    """Let glibc return its free memory: partitioning the data frees more than a run needs."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
