"""docs/alerts.yaml asks for metrics that exist, by labels that they have; with promtool, they fire."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import yaml
from ray.dashboard.modules.reporter.reporter_agent import METRICS_GAUGES

from raycomp.run.ray_cluster import LABELS, METRICS
from raycomp.words import OK
from tests.docs.documents import ROOT
from tests.run.test_ray_metrics import reported

ALERTS = ROOT / "docs" / "alerts.yaml"
RULES = [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]
HAVE = {reported(name): {*LABELS, *kind.labels} for name, kind in METRICS.items()}
HAVE |= {f"ray_{name}": {"instance"} for name in METRICS_GAUGES}


def detect_labels(expression: str, word: str) -> set[str]:
    return {one for names in re.findall(rf"\b{word} \(([^)]*)\)", expression) for one in names.split(", ")}


def test_an_alert_asks_for_metrics_that_exist_by_labels_that_they_have():
    assert f'status!="{OK}"' in ALERTS.read_text()
    for rule in RULES:
        metrics = set(re.findall(r"\bray_\w+", rule["expr"]))
        assert metrics and metrics <= set(HAVE)
        grouped = detect_labels(rule["expr"], "by")
        asked = grouped | detect_labels(rule["expr"], "on") | set(re.findall(r'(\w+)!?="', rule["expr"]))
        # A condition on one of two metrics may use a label that the other lacks.
        assert all(grouped <= HAVE[name] for name in metrics)
        assert asked <= set().union(*(HAVE[name] for name in metrics))
        assert set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"])) <= grouped


ONE = 'run="r", out="s3://b/c", phase="align"'
# One value a minute. This run stands still after 20 minutes, waits, and is gone after 100.
FIRES = {
    f"ray_raycomp_planned{{{ONE}, unit='shard'}}": "100x100",
    f"ray_raycomp_done{{{ONE}, unit='shard'}}": "0+1x20 20x79",
    f"ray_raycomp_waiting_seconds{{{ONE}, what='GPUs'}}": "0x20 60+60x79",
    f"ray_raycomp_rows_total{{{ONE}, status='ok'}}": "0+70x100",
    f"ray_raycomp_rows_total{{{ONE}, status='unreadable'}}": "0+30x100",
    f"ray_raycomp_busy_seconds_total{{{ONE}, stage='align', where='gpus'}}": "0+24x100",
    f"ray_raycomp_workers{{{ONE}, stage='align', where='gpus'}}": "2x100",
    "ray_node_disk_free{instance='a'}": "5x120",
    "ray_node_disk_usage{instance='a'}": "95x120",
    "ray_node_mem_used_host{instance='a'}": "97x120",
    "ray_node_mem_total_host{instance='a'}": "100x120",
}
HEALTHY = {
    **FIRES,
    f"ray_raycomp_done{{{ONE}, unit='shard'}}": "0+1x100",
    f"ray_raycomp_waiting_seconds{{{ONE}, what='GPUs'}}": "10x100",
    f"ray_raycomp_rows_total{{{ONE}, status='unreadable'}}": "0+1x100",
    f"ray_raycomp_busy_seconds_total{{{ONE}, stage='align', where='gpus'}}": "0+100x100",
    "ray_node_disk_free{instance='a'}": "50x120",
    "ray_node_mem_used_host{instance='a'}": "50x120",
}
DURING = {"RaycompWaits", "RaycompStandsStill", "RaycompLosesRows", "RaycompGpusIdle"}
NODES = {"RayNodeDiskFull", "RayNodeMemoryFull"}


def test_prometheus_fires_them(tmp_path):
    promtool = shutil.which("promtool", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    assert promtool is not None, "make test-docs installs promtool, of Prometheus"
    for series, at, fire in [
        (HEALTHY, 95, set()),
        (FIRES, 10, NODES),
        (FIRES, 95, DURING | NODES),
        (FIRES, 112, {"RaycompIsGone", "RaycompLosesRows"} | NODES),
    ]:
        values = [{"series": name.replace("'", '"'), "values": steps} for name, steps in series.items()]
        asked = []
        for name in (rule["alert"] for rule in RULES):
            expression = f'count by (alertname) (ALERTS{{alertstate="firing", alertname="{name}"}})'
            found = [{"labels": f'{{alertname="{name}"}}', "value": 1}] if name in fire else []
            asked.append({"expr": expression, "eval_time": f"{at}m", "exp_samples": found})
        test = {"interval": "1m", "input_series": values, "promql_expr_test": asked}
        (tmp_path / "test.yaml").write_text(yaml.safe_dump({"rule_files": [str(ALERTS)], "tests": [test]}))
        line = [promtool, "test", "rules", "test.yaml"]
        done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, (at, done.stdout + done.stderr)
