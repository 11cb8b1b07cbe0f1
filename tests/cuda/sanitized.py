"""Run cases under the address and undefined-behaviour sanitizers.

``python -m tests.cuda.sanitized 4`` withholds 4 bytes of the shared memory of every launch.
The sanitizer's runtime has to be loaded before Python; ``environment`` says how.
"""

import os
import subprocess
import sys

from tests.cuda import emulation


def environment() -> dict[str, str]:
    """For a process that loads a sanitized build."""
    runtime = subprocess.run(
        [emulation.compiler() or "g++", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True
    )
    return {**os.environ, "LD_PRELOAD": runtime.stdout.strip(), "ASAN_OPTIONS": "detect_leaks=0"}


def main(withheld: int) -> None:
    from tests.cuda import applications, cases, sequences

    chosen = [*cases.with_sanitizers(), *cases.factors()[:4], *cases.applied()[:6]]
    library = emulation.build((name for case in chosen for name in case.names), sanitize=True)
    if withheld:
        launch = library.launch
        library.launch = lambda name, how, args: launch(
            name, how._replace(shared_bytes=how.shared_bytes - withheld), args
        )
    modules = [applications if isinstance(case, applications.Case) else sequences for case in chosen]
    messages = [of.check(case, library, schedules=(3,)) for of, case in zip(modules, chosen, strict=True)]
    wrong = [message for message in messages if message]
    sys.exit("\n".join(wrong) or None)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 0)
