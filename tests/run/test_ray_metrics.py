"""What a run tells Prometheus is what its record says, and what the dashboard asks for is told."""

import json
import re
import time
import urllib.request
from collections import Counter
from pathlib import Path

import pytest
import ray
from ray.util import metrics as ray_metrics

import raycomp
from raycomp.data.files import Folder
from raycomp.run.executor import WorkerPool
from raycomp.run.progress import Progress, keep_events
from raycomp.run.ray_cluster import LABELS, METRICS, RayMeter

DASHBOARD = Path(__file__).parents[2] / "docs/grafana.json"
SAMPLE = re.compile(r"^ray_(raycomp_\w+?)(?:_total)?\{(.*)\} (\S+)$")
LABEL = re.compile(r'(\w+)="([^"]*)"')
# Ray's nodes report every 10 s.
PATIENCE_S = 60


def reported(name: str) -> str:
    """Return a metric's name as Prometheus has it."""
    return f"ray_{name}" + ("_total" if METRICS[name].make is ray_metrics.Counter else "")


def asked_for() -> dict[str, set[str]]:
    """Return the labels that each metric of the dashboard is asked for; every query must be of a metric."""
    dashboard = json.loads(DASHBOARD.read_text())
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    queries += [one["query"] for one in dashboard["templating"]["list"] if one["type"] == "query"]
    labels: dict[str, set[str]] = {}
    for query in queries:
        found = re.findall(r"\bray_raycomp_\w+", query)
        assert found, query
        wanted = {
            name for names in re.findall(r"\b(?:by|on) \(([^)]*)\)", query) for name in names.split(", ")
        }
        for name in found:
            labels.setdefault(name, set()).update(wanted, re.findall(r'(\w+)!?="', query))
    return labels


def test_the_dashboard_asks_for_every_metric_by_labels_that_it_has():
    asked = asked_for()
    assert set(asked) == set(map(reported, METRICS))
    by_name = {reported(name): {*LABELS, *kind.labels} for name, kind in METRICS.items()}
    # Of a quotient, only what both sides have.
    lacking = {name: labels - by_name[name] for name, labels in asked.items() if labels - by_name[name]}
    assert lacking == {"ray_raycomp_rows_total": {"stage"}}


def test_the_page_names_every_metric_and_event():
    page = DASHBOARD.with_name("operations.md").read_text()
    named = [
        name
        for row in re.findall(r"^\| (`.*?) \|", page, re.MULTILINE)
        for name in re.findall(r"`(\w+)`", row)
    ]
    code = "".join(path.read_text() for path in Path(raycomp.__file__).parent.rglob("*.py"))
    events = {*re.findall(r'log_event\(\s*"(\w+)"', code), "begin", "go_on"}
    assert sorted(named) == sorted([*map(reported, METRICS), *events])


def test_legends_of_the_dashboard_are_labels_of_its_queries():
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        for target in panel["targets"]:
            grouped = {
                name
                for names in re.findall(r"\bby \(([^)]*)\)", target["expr"])
                for name in names.split(", ")
            }
            assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= grouped, panel["title"]


def test_without_a_cluster_nothing_is_reported(tmp_path, monkeypatch):
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray_metrics.Counter, "inc", lambda *_: pytest.fail("told"))
    with keep_events(Folder(str(tmp_path)), "a"):
        meter = RayMeter("align")
    meter.add("raycomp_rows", 3, status="ok")
    meter.put("raycomp_done", 3.0, unit="shard")
    assert (
        meter.labels == {"run": "a", "out": str(tmp_path), "phase": "align"}
        and RayMeter("x").labels["run"] == ""
    )


def scrape(run: str) -> dict[str, Counter]:
    """Return metric -> the labels that it has beside the run's, in their order -> value, of all nodes."""
    values: dict[str, Counter] = {}
    for node in ray.nodes():
        url = f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}"
        for line in urllib.request.urlopen(url, timeout=10).read().decode().splitlines():
            if (sample := SAMPLE.match(line)) and f'run="{run}"' in line:
                labels = dict(LABEL.findall(sample[2]))
                key = tuple(labels[name] for name in ("phase", *METRICS[sample[1]].labels))
                values.setdefault(sample[1], Counter())[key] += float(sample[3])
    return values


def scrape_until(run: str, name: str, key: tuple[str, ...], least: float) -> dict[str, Counter]:
    """Return what is told once one of it has at least that value, or when patience is at its end."""
    until = time.monotonic() + PATIENCE_S
    while True:
        values = scrape(run)
        if values.get(name, Counter())[key] >= least or time.monotonic() > until:
            return values
        time.sleep(0.5)


def test_a_node_of_ray_reports_what_run_json_says(curated, tmp_path, ray_cluster):
    """Rows, and the seconds of every stage, are added up block by block there, wave by wave here."""
    config, _, _ = curated
    record = raycomp.curate(config, str(tmp_path / "out"))
    num_pool = record["phases"][1]["rows"]
    values = scrape_until(record["id"], "raycomp_rows", ("attribute", "ok"), num_pool)
    rows = values["raycomp_rows"]
    assert rows == {("align", "ok"): record["funnel"]["read"], ("attribute", "ok"): num_pool}
    reported = {(stage["phase"], stage["stage"]): stage["seconds"] for stage in record["stages"]}
    busy = {key[:2]: value for key, value in values["raycomp_busy_seconds"].items()}
    assert busy == pytest.approx(reported)
    assert values["raycomp_waves"] == {("align",): 1, ("attribute",): 1}


def test_what_stands_is_reported_again_while_a_phase_goes_on(tmp_path, ray_cluster):
    worker_pools = {"read": WorkerPool("", 4, "cpus"), "align": WorkerPool("", 2, "scorers")}
    with keep_events(Folder(str(tmp_path)), "gauges"), Progress("align", 3, worker_pools) as shown:
        for done in (1, 2):
            shown.finish_one()
            shown.status_at -= 100 * done
            wait = ("align", "the next rows")
            scrape_until("gauges", "raycomp_done", ("align", "shard"), done)
            values = scrape_until("gauges", "raycomp_waiting_seconds", wait, 100 * done)
            assert values["raycomp_done"] == {("align", "shard"): done}
            assert values["raycomp_planned"] == {("align", "shard"): 3}
            workers = {("align", "read", "cpus"): 4, ("align", "align", "scorers"): 2}
            assert values["raycomp_workers"] == workers
            # Beside it the first block may stand, which was waited for until the first was done.
            assert values["raycomp_waiting_seconds"][wait] >= 100 * done
