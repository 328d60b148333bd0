"""The files of a run folder, which docs/run-folder.md describes, and of a comparison."""

LABEL = "run.json"
CONFIG = "config.toml"
CONDITIONS = "conditions.json"
EVENTS = "events.jsonl"
METRICS = "metrics.csv"
CHECKPOINT = "checkpoint.safetensors"
RESULT = "result.json"
EVALUATION = "evaluation.json"
ANSWER = "answer.json"
OWNER_FILES = "owner_files.json"
REPORT = "report.html"
MODEL = "model.json"
SAVED_PARAMETERS = "model.safetensors"
CARD = "model-card.md"
REFERENCE_SUMMARY = "reference-summary.safetensors"
LOCK = "lock"
FEATURES = "features"
COMPARISON = "compare.json"


def model_file(name: str) -> str:
    return f"{name}.safetensors"
