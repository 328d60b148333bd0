"""The files of a run folder; docs/run-folder.md describes them."""

LABEL = "run.json"
CONFIG = "config.toml"
CONDITIONS = "conditions.json"
EVENTS = "events.jsonl"
METRICS = "metrics.csv"
CHECKPOINT = "checkpoint.safetensors"
RESULT = "result.json"
REPORT = "report.html"
LOCK = "lock"


def model_file(name: str) -> str:
    return f"{name}.safetensors"
