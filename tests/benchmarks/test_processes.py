import os
import time

import psutil
import pytest

from benchmarks import processes
from benchmarks.processes import ContenderError, memory, run

# A parent and a forked child; each of them writes to 40 MB of its own.
FORKING = """
import os, sys, time
child = os.fork()
held = bytearray(40_000_000)
for start in range(0, len(held), 4096):
    held[start] = 1
if child == 0:
    time.sleep(1)
    os._exit(0)
with open(sys.argv[1], "w") as table:
    table.write("round\\n0\\n")
    table.flush()
    time.sleep(0.4)
    table.write("1\\n")
    table.flush()
    time.sleep(0.4)
os.wait()
print("done")
"""


def test_memory_is_that_of_all_processes_and_round_1_ends_with_its_row(tmp_path, monkeypatch):
    monkeypatch.setattr(processes, "SHARE", 0.5)  # look often: the run is short
    ended = run(["-c", FORKING, str(tmp_path / "table.csv")], table=tmp_path / "table.csv")
    assert ended.output == "done\n"
    assert 80e6 < ended.memory_bytes < 160e6
    assert 0.4 <= ended.first_row_s <= ended.wall_s - 0.4


def test_without_a_table_nobody_knows_when_round_1_ended():
    assert run(["-c", "pass"]).first_row_s is None


def test_shared_pages_count_once_where_the_system_can_tell(monkeypatch):
    shared, kind = memory(os.getpid())
    monkeypatch.setattr(processes, "_pss", lambda _: (_ for _ in ()).throw(PermissionError))
    summed, fallback = memory(os.getpid())
    assert (kind, fallback) == ("PSS", "RSS")
    assert 0 < shared < summed


def test_a_process_that_fails_is_an_error_with_what_it_said():
    with pytest.raises(ContenderError, match=r"ended with 3:\n.*too bad"):
        run(["-c", "import sys; sys.stderr.write('too bad'); sys.exit(3)"])


@pytest.mark.slow
def test_a_process_that_takes_too_long_is_killed_with_its_children(tmp_path):
    code = f"""
import os, time
if os.fork() == 0:
    open({str(tmp_path / "child")!r}, "w").write(str(os.getpid()))
time.sleep(60)
"""
    with pytest.raises(ContenderError, match=r"ended with a kill, after 2 s"):
        run(["-c", code], limit_s=2)
    child = int((tmp_path / "child").read_text())
    for _ in range(100):
        if not runs(child):
            break
        time.sleep(0.1)
    assert not runs(child)


def runs(pid):
    """Whether a process runs: a killed one may wait for its parent as a zombie."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
