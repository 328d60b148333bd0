"""Jobs that put a question to tables, which every party answers by code of Winnow's own. Agents load this module."""

from typing import Literal, TypeAlias, get_args

QuestionKind: TypeAlias = Literal["statistics", "fit", "intersect", "query", "trees", "truth", "budget"]
QUESTION_KINDS: tuple[QuestionKind, ...] = get_args(QuestionKind)
