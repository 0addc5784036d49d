"""
Run the examples, and keep what they print and draw for the gallery of the site.

    python docs/make_gallery.py [NAME ...]     # default: all examples, which takes some minutes
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
GALLERY = ROOT / "docs" / "gallery"


def main(names: list[str]) -> None:
    """Run the examples with these names."""
    for name in names or sorted(path.stem for path in GALLERY.glob("*.md")):
        print(name)
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, str(ROOT / "examples" / f"{name}.py"), "--out", folder]
            printed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
            (GALLERY / f"{name}.txt").write_text(printed.replace(folder, "out"))
            for figure in Path(folder).glob("*.png"):
                shutil.copy(figure, GALLERY)


if __name__ == "__main__":
    main(sys.argv[1:])
