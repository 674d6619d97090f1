"""One notebook through papermill: `python -m curlnb.companion.execute NOTEBOOK OUTPUT PROFILE
CHANGE`, where CHANGE is JSON: settings to change, by name.

`make reproduce` starts such a process for each notebook, so that one can be stopped without the
others. Where the notebook does not run to its end, the process ends with status 1 and a last line
that says why. It also ends soon after its parent does.
"""

import json
import os
import re
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any

# Lets jsonschema check the syntax of addresses, which no notebook has; it takes two seconds.
sys.modules["rfc3987_syntax"] = None  # type: ignore[assignment]

import nbformat  # noqa: E402
import papermill  # noqa: E402


def main(path: Path, output: Path, profile: str, change: dict[str, Any]) -> None:
    """Execute the notebook at `path` and write it to `output`, as far as it got where it fails."""
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    # written cell by cell: what is at `output` is whole
    draft = output.with_name(f".{output.name}")
    cells = nbformat.read(path, as_version=4).cells
    tagged = [cell.source for cell in cells if "parameters" in cell.metadata.get("tags", [])]
    said = f'profile = "{profile}"' in "\n".join(tagged).splitlines()
    parameters: dict[str, Any] = {} if said else {"profile": profile}
    parameters |= {"change": change} if change else {}
    try:
        book = papermill.execute_notebook(
            path,
            draft,
            parameters,
            kernel_name="python3",
            language="python",
            progress_bar=False,
            coalesce_streams=True,  # a line of two messages is one output
            start_timeout=600,  # seconds, for a kernel on a machine that is busy
            cwd=path.parent,
        )
        code = (cell for cell in book.cells if cell.cell_type == "code" and cell.source.strip())
        ended = any(cell.execution_count is None for cell in code)  # after sys.exit(0)
        why = "a cell ends the kernel: what stands behind it was not run" if ended else ""
    except papermill.PapermillExecutionError as error:
        print(re.sub(r"\x1b\[[\d;]*m", "", str(error)), file=sys.stderr)
        why = f"{error.ename}: {error.evalue}"
    except Exception as error:
        traceback.print_exc()
        died = type(error).__name__ == "DeadKernelError"
        reason = "its kernel ended: out of memory, or a cell calls exit()"
        why = reason if died else f"{type(error).__name__}: {error}"
    finally:
        if draft.exists():
            os.replace(draft, output)
    if why:
        print(f"FAILED: {why.splitlines()[0]}", file=sys.stderr)
    sys.exit(bool(why))


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], json.loads(sys.argv[4]))
