"""What starting the service loads."""

import subprocess
import sys


def test_torch_is_loaded_only_with_its_engine() -> None:
    code = (
        "import sys, services.rollout.__main__;"
        " heavy = {'torch', 'transformers', 'tokenizers'} & set(sys.modules); assert not heavy, heavy"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
