# SPDX-License-Identifier: BSD-3-Clause
"""Write the notebook of an example whose cells are marked by ``# %%``: ``python examples/notebook.py``."""

import json
import re
from pathlib import Path
from typing import Any

SCRIPT = Path(__file__).with_name("dask_laptop.py")


def notebook(text: str) -> str:
    """Return the script `text` as a notebook, without output."""
    cells: list[dict[str, Any]] = []
    for kind, body in re.findall(r"^# %%( \[markdown\])?\n(.*?)(?=^# %%|\Z)", text, re.MULTILINE | re.DOTALL):
        source = re.sub(r"^# ?", "", body, flags=re.MULTILINE) if kind else body
        source = source.strip().replace('if __name__ == "__main__":\n    main()', "main()")
        cell = {"id": f"cell-{len(cells)}", "metadata": {}, "source": source.splitlines(keepends=True)}
        if kind:
            cells.append({"cell_type": "markdown", **cell})
        else:
            cells.append({"cell_type": "code", "execution_count": None, "outputs": [], **cell})
    whole = {"cells": cells, "metadata": {"language_info": {"name": "python"}}, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(whole, indent=1) + "\n"


if __name__ == "__main__":
    SCRIPT.with_suffix(".ipynb").write_text(notebook(SCRIPT.read_text()))
