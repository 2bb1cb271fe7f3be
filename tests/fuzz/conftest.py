"""Say which seed the inputs followed from."""

from typing import Any

from tests.fuzz.child import SEED


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print the seed where anything of this folder was run."""
    reports = [report for name in ("passed", "failed") for report in terminalreporter.stats.get(name, [])]
    if any(report.nodeid.startswith("tests/fuzz/") for report in reports):
        terminalreporter.write_line(f"tests/fuzz: RAYCOMP_FUZZ_SEED={SEED}")
