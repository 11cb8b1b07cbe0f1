"""The comparison with peers runs, and finds every candidate right."""

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parent.parent / "benches" / "versus_peers.py"


def test_quick_comparison(tmp_path):
    options = ["--quick", "--threads", "1", "--only", "n=24|n=32", "--output", tmp_path]
    done = subprocess.run([sys.executable, SCRIPT, *options], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    sequence, application = json.loads((tmp_path / "versus_peers.json").read_text())["cases"]
    assert [row["candidate"] for row in sequence["rows"]] == ["householder.torch.OrthogonalRNN", "nn.RNN", "nn.LSTM"]
    assert len(application["rows"]) >= 9
    assert all(row["error"] < 1e-4 for case in (sequence, application) for row in case["rows"])
    assert "### application n=32 m=32 B=5" in (tmp_path / "versus_peers.md").read_text()
