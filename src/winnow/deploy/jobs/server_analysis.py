"""A question in a job's runner at the server: the same program as at the sites, without rows."""

from pathlib import Path

from winnow.analytics.question import Question
from winnow.analytics.workflow import AnalysisWorkflow, answer_text
from winnow.config.job_settings import JobSettings
from winnow.deploy.jobs.bundle_format import read_bundle
from winnow.deploy.jobs.client_statement_signatures import submission_id
from winnow.deploy.jobs.deployed_run import DeployedRun
from winnow.runs import RunLabel, RunView, file_names


def run_analysis(run: DeployedRun, question: Question) -> None:
    """Have the job's sites answer; what they open is the answer, in a file of the job's output."""
    bundle = read_bundle(Path(run.start.bundle).read_bytes())
    workflow = AnalysisWorkflow(question, [member.site for member in run.start.members], submission_id(bundle))
    committed = run.committed_state()
    if committed is not None:
        workflow.restore(committed)
    run.execute(
        workflow,
        lambda event: None,
        now=0.0 if committed is None else committed.values["now"],
        task_timeout=JobSettings.model_validate(bundle.settings().get("job", {})).task_timeout,
    )
    assert workflow.answer is not None
    run.add_output(file_names.ANSWER, answer_text(workflow.answer))
    label = RunLabel(name=run.start.job, algorithm=question.kind, kind=question.kind, seed=0, metric="", clock="wall")
    run.add_result(RunView(label=label, log=run.log))
