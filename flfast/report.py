"""`python -m flfast.report FOLDER... [output=report.html]` writes one page about runs and sweeps.

It prints the page's first two sentences, and in the last line the path of the page.

Exit code 0 if the page was written, 2 if a folder holds no run or the page cannot be written.
"""

import logging
import sys
from pathlib import Path

from flfast.output.report.content import Content
from flfast.output.report.page import write_page
from flfast.output.report.verdict import verdict
from flfast.output.results.runs import find_runs
from flfast.state.messages import first_line, printable
from flfast.state.output_streams import surviving_output

USAGE = "usage: python -m flfast.report FOLDER... [output=FILE.html]"
_OUTPUT = "output="


@surviving_output()
def main(words: list[str]) -> int:
    """Write the report; returns the exit code.

    Words are folders of runs or sweeps, and perhaps `output=FILE`. Without it the page is
    `report.html` in the folder if there is one, and in the current folder else.
    """
    if any(word in {"-h", "--help"} for word in words):
        print(f"{USAGE}\n\n{__doc__}")  # noqa: T201
        return 0
    outputs = [word.removeprefix(_OUTPUT) for word in words if word.startswith(_OUTPUT)]
    folders = [Path(word) for word in words if not word.startswith(_OUTPUT)]
    if not folders or len(outputs) > 1 or outputs == [""]:
        sys.stderr.write(f"flfast.report: a folder is needed, and at most one FILE\n{USAGE}\n")
        return 2
    default = folders[0] / "report.html" if len(folders) == 1 else Path("report.html")
    path = Path(outputs[0]) if outputs else default
    try:
        content = Content(find_runs(folders))
        write_page(content, path)
    except (OSError, ValueError) as error:
        print(f"flfast.report: {printable(first_line(error))}", file=sys.stderr)  # noqa: T201
        return 2
    found = verdict(content)
    print(*map(printable, (found.result, found.certainty, str(path))), sep="\n")  # noqa: T201
    return 0


if __name__ == "__main__":
    logging.basicConfig(format="%(message)s")
    sys.exit(main(sys.argv[1:]))
