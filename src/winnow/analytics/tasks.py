"""The tasks of an analysis. Agents load this module: nothing is imported here."""

ANALYSIS_BEGIN = "analysis-begin"
"""An owner says its terms."""
ANALYSIS_STEP = "analysis-step"
"""An owner takes part in a step: letters come with the task, and leave with the reply."""
