"""The Lightning callback where only one of the two packages, or none, is installed."""

import subprocess
import sys

import pytest

FAKE = """
import sys, types
sys.modules["lightning"] = sys.modules["lightning.pytorch"] = None
package = types.ModuleType("pytorch_lightning")
package.Callback = type("Callback", (), {})
package.LightningModule = package.Trainer = object
sys.modules["pytorch_lightning"] = package if sys.argv[1] == "older" else None
from kann.integrations.lightning import KoopmanCallback
print(issubclass(KoopmanCallback, package.Callback))
"""


def imported(installed: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", FAKE, installed], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(("installed", "answer"), [("older", "True"), ("none", "")])
def test_the_older_package_serves_and_one_of_them_is_needed(installed, answer):
    found = imported(installed)
    assert found.stdout.strip() == answer
    assert ("pip install 'kann[integrations]'" in found.stderr) == (installed == "none")
