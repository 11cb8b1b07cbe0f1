"""Training that is killed twenty times at random moments and resumed ends as training left alone: the same bits.

python tests/reliability/kills.py [--kills 20] [--epochs 40] [--seed 0]
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HOUSEHOLDER = [sys.executable, "-c", "import sys; from householder.cli import main; sys.exit(main())"]


def start(*arguments):
    return subprocess.Popen(
        [*HOUSEHOLDER, "train", "digits", *map(str, arguments)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def metrics(directory):
    """The results, without what is a matter of time."""
    outcomes = json.loads((directory / "results.json").read_text())
    return [{key: value for key, value in outcome.items() if key != "seconds"} for outcome in outcomes]


def progress(directory):
    """Rows of metrics so far."""
    return sum(max(0, len(file.read_text().splitlines()) - 1) for file in directory.glob("*/metrics.csv"))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rng = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as temporary:
        alone, killed = Path(temporary, "alone"), Path(temporary, "killed")
        run = ["--model", "ornn,srnn", "--epochs", options.epochs, "--set", "checkpoint_seconds=0.2"]
        begun = time.perf_counter()
        process = start(*run, "--output", alone)
        _, complaint = process.communicate()
        assert process.returncode == 0, complaint
        length = time.perf_counter() - begun
        arguments, kills = [*run, "--output", killed], 0
        while True:
            process = start(*arguments)
            # A quarter of the kills come at any moment, loading included; the others after some training.
            rows, loading = progress(killed), rng.random() < 0.25
            delay = rng.uniform(0.1, 4) if loading else rng.uniform(0, length / (2 * options.kills))
            since = time.perf_counter() if loading else None
            while kills < options.kills and process.poll() is None:
                if since is None and progress(killed) > rows:
                    since = time.perf_counter()
                if since is not None and time.perf_counter() > since + delay:
                    break
                time.sleep(0.02)
            if kills == options.kills or process.poll() is not None:
                break
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            kills += 1
            print(f"kill {kills}: {progress(killed)} rows of metrics", flush=True)
            if (killed / "config.yaml").exists():
                arguments = ["--resume", killed]
        _, complaint = process.communicate()
        assert process.returncode == 0, complaint
        assert metrics(killed) == metrics(alone)
        print(f"{kills} kills; metrics as of the run left alone: {[outcome['metric'] for outcome in metrics(killed)]}")
        sys.exit(kills < options.kills)


if __name__ == "__main__":
    main()
