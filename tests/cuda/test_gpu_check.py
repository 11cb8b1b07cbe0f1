"""``householder gpu-check``: its supervisor meets checks that hang, crash and lie; its page says what they did."""

import json
import os
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from householder import cli
from householder._cuda import instances
from householder.cli.gpu_check import command as gpu_check
from householder.cli.gpu_check import supervisor, worker
from householder.cli.gpu_check.supervisor import Check

TELL = "import json, sys; name, word, file = sys.argv[1:]\n"
"""How a check begins; it ends by ``tell(passed)``."""
TELL += "def tell(passed, **more):\n"
TELL += "    row = {'check': name, 'word': word, 'passed': passed, 'detail': 'so it is'} | more\n"
TELL += "    open(file, 'w').write(json.dumps(row))\n"


def job(source, limit=20.0):
    return Check("a check", [sys.executable, "-c", TELL + source], limit)


def verdict(source, limit=20.0):
    (row,) = supervisor.run([job(source, limit)])
    return row


def test_what_passes_and_what_fails():
    passed = verdict("tell(True, kernels=['one'])")
    assert (passed["check"], passed["verdict"], passed["detail"]) == ("a check", "passed", "so it is")
    assert passed["kernels"] == ["one"]
    failed = verdict("print('why'); tell(False)")
    assert (failed["verdict"], failed["output"]) == ("failed", "why")


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_what_hangs_is_ended_with_all_that_it_started():
    source = "import subprocess, time\n"
    source += "p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
    source += "tell(True); print(p.pid, flush=True); time.sleep(60)"
    begun = time.monotonic()
    row = verdict(source, limit=5)
    assert time.monotonic() - begun < 20
    assert (row["verdict"], row["detail"]) == ("hung", "no end after 5 s")
    for _ in range(100):
        try:
            os.kill(int(row["output"]), 0)
        except ProcessLookupError:
            break
        time.sleep(0.05)  # until somebody has waited for it
    else:
        state = Path(f"/proc/{int(row['output'])}/stat").read_text().rpartition(")")[2].split()[0]
        assert state == "Z"


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
@pytest.mark.parametrize(
    ("end", "detail"),
    [("os.kill(os.getpid(), 11)", "SIGSEGV"), ("os.abort()", "SIGABRT"), ("os._exit(3)", "exit status 3")],
)
def test_what_crashes_has_not_passed_whatever_it_told_before(end, detail):
    row = verdict(f"import os; tell(True); print('last words', flush=True); {end}")
    assert (row["verdict"], row["detail"], row["output"]) == ("crashed", detail, "last words")


@pytest.mark.parametrize(
    "lie",
    [
        "pass",
        "open(file, 'w').write('passed')",
        "open(file, 'w').write('[]')",
        "tell(True, check='another check')",
        "tell(True, word='of another run')",
        "tell('yes')",
        "tell(True, detail=1)",
        "open(file, 'w').write('{\"check\": \"a check\"')",
    ],
)
def test_what_ends_well_without_evidence_has_not_passed(lie):
    assert verdict(lie)["verdict"] == "no evidence"


def test_a_worker_tells_what_it_found(monkeypatch, tmp_path):
    def broken(_):
        return {}["missing"]

    monkeypatch.setattr(worker, "KINDS", {"check": lambda name: {"detail": name}, "broken": broken})
    monkeypatch.setenv("HOUSEHOLDER_KERNELS", "")
    rows = []
    for kind in ("check", "broken"):
        worker.main([kind, "streams", "word", str(tmp_path / "found")])
        rows.append(json.loads((tmp_path / "found").read_text()))
    assert rows[0] == {"passed": True, "detail": "streams", "check": "streams", "word": "word", "kernels": []}
    assert (rows[1]["passed"], rows[1]["detail"]) == (False, "KeyError: 'missing'")
    assert os.environ["HOUSEHOLDER_KERNELS"] == "require"


def test_each_job_runs_the_check_of_its_name(monkeypatch):
    from householder.cli.gpu_check import correctness

    asked = []
    found = {name: lambda _, name=name: asked.append(name) or "" for name in correctness.CHECKS}
    monkeypatch.setattr(correctness, "CHECKS", found)
    monkeypatch.setattr(worker.instances, "CLUSTERS", ())
    for job in gpu_check.jobs(checks=True, timings=False, quick=True):
        worker.KINDS[job.command[-1]](job.name)
    assert asked == [*found, "clusters"]


def test_only_jobs_whose_names_match_run(checks, tmp_path):
    checks["jobs"] = [job("raise SystemExit(2)"), job("tell(True)")._replace(name="another")]
    assert cli.main(["gpu-check", "--matching", "another", "--output", str(tmp_path)]) == 0


@pytest.fixture
def checks(monkeypatch):
    """The checks of the command are replaced by these programs."""
    machine = Check("machine", [sys.executable, "-c", TELL + "tell(True, machine={'device 0': 'a device'})"])
    found = {"machine": machine, "jobs": [job("tell(True, kernels=['a kernel'])"), job("raise SystemExit(2)")]}
    run = supervisor.run
    monkeypatch.setattr(supervisor, "run", lambda jobs: run([found.get(j.name, j) for j in jobs]))
    monkeypatch.setattr(gpu_check, "jobs", lambda **_: found["jobs"])
    return found


def test_the_report_is_one_file_with_a_verdict_a_line(checks, tmp_path, capsys):  # noqa: ARG001
    assert cli.main(["gpu-check", "--output", str(tmp_path)]) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["gpucheck.md"]
    page = (tmp_path / "gpucheck.md").read_text()
    assert "* device 0: a device" in page
    assert "| a check | passed | so it is |" in page
    assert "| a check | **crashed** | exit status 2 |" in page
    assert "* `a kernel`" in page
    numbers = json.loads(page.partition("```json\n")[2].partition("\n```")[0])
    assert [row["verdict"] for row in numbers["rows"]] == ["passed", "passed", "crashed"]
    assert capsys.readouterr().out.splitlines()[0].startswith("passed       a check  so it is")


def timed(winner, numbers, kernel):
    """The row of a case whose kernels and torch operations were timed."""
    faster = [{"pass": "forward", "way": "graph", "winner": winner, "times": 2}]
    step = {"numbers": numbers, "prefers_steps": numbers >= instances.STEPWISE_FROM["float"]}
    case = {"case": "a sequence", "step": step, "faster": faster, "rows": [], "kernels": {}, "failed": {}}
    return {"check": "a", "verdict": "passed", "detail": "", "seconds": 1, "kernels": [kernel], "timing": case}


def test_the_report_has_the_thresholds_and_which_side_won():
    general, own = "householder::fallback_forward<float, float, householder::TANH>", "householder::dense_forward<...>"
    large, small = 1 << 17, 1000
    rows = [timed("torch operations", large, general), timed("kernels", large, general)]
    rows += [timed("torch operations", small, general), timed("kernels", large, own)]
    page = gpu_check.markdown(
        {"machine": {}, "rows": [{"check": "a", "verdict": "hung", "detail": "", "seconds": 1}, *rows]}
    )
    assert [f"* {scalar}: {numbers}" in page for scalar, numbers in instances.STEPWISE_FROM.items()] == [True, True]
    assert [line.split(" | ", 1)[1] for line in page.splitlines() if line.startswith("| a sequence | ")] == [
        "general | 131072 | forward | graph | torch operations | 2.00 | the faster way is taken |",
        "general | 131072 | forward | graph | kernels | 2.00 | **torch operations are taken, the slower way** |",
        "general | 1000 | forward | graph | torch operations | 2.00 | **kernels are taken, the slower way** |",
        "its own | 131072 | forward | graph | kernels | 2.00 | the faster way is taken |",
    ]


def test_a_timed_case_says_which_side_won(monkeypatch):
    found = timed("kernels", 1000, "")["timing"]
    monkeypatch.setitem(sys.modules, "householder.cli.gpu_check.timing", SimpleNamespace(
        cases=lambda _: ["a sequence"], compare=lambda *_, **__: found
    ))  # fmt: skip
    assert worker.timing("a sequence")["detail"] == "forward, graph: kernels 2.00 times faster"


def test_the_report_is_there_while_the_next_check_runs(checks, tmp_path):
    assert checks["jobs"]
    page = str(tmp_path / "gpucheck.md")
    checks["jobs"] = [job("tell(True)"), job(f"tell('so it is' in open({page!r}).read())")]
    assert cli.main(["gpu-check", "--output", str(tmp_path)]) == 0


def test_why_it_cannot_run(tmp_path, capsys):
    assert cli.main(["gpu-check", "--output", str(tmp_path)]) == 2
    assert capsys.readouterr().err.startswith("householder: CUDA is unavailable: ")


def test_clusters_come_last_and_each_case_has_a_limit():
    jobs = gpu_check.jobs(checks=True, timings=True, quick=False)
    names = [job.name for job in jobs]
    assert names[:2] == ["compilation", "one sequence"]
    assert names.index("clusters") > names.index("tiles")
    assert {job.limit for job in jobs} == {60.0, gpu_check.TIMING_LIMIT}
