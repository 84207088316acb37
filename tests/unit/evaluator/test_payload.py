"""The programs that go into boxes run alike on the Python that they are compiled for and on any other."""

import marshal
import subprocess
import sys
from importlib.util import MAGIC_NUMBER
from pathlib import Path

import pytest

from services.evaluator.payload import FOLDER, program
from services.evaluator.payload.values import dump, load


@pytest.mark.parametrize("magic", [MAGIC_NUMBER, b"another"], ids=["compiled", "from its source"])
def test_the_driver_answers_on_the_python_it_is_compiled_for_and_on_another(
    tmp_path: Path, magic: bytes
) -> None:
    files = {path.removeprefix(f"{FOLDER}/"): data for path, data in program("driver").items()}
    _, *code_and_source = marshal.loads(files["driver.parts"])
    (tmp_path / "driver.parts").write_bytes(marshal.dumps((magic, *code_and_source)))
    (tmp_path / "driver.py").write_bytes(files["driver.py"].replace(FOLDER.encode(), str(tmp_path).encode()))
    (tmp_path / "solution.py").write_text("def double(n):\n    return 2 * n\n")
    asked = "\n".join(dump(["call", name, [21], {}]) for name in ("double", "absent")) + "\n"
    told = subprocess.run(
        [sys.executable, "-I", "-S", str(tmp_path / "driver.py"), str(tmp_path), "solution.py", "0", "1"],
        input=asked.encode(),
        capture_output=True,
        check=True,
        timeout=60,
    )
    doubled, absent = (load(line) for line in told.stdout.splitlines())
    assert doubled == ["ok", 42]
    assert isinstance(absent, list)
    assert absent[:2] == ["error", "AttributeError"]
