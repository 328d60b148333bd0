"""What winnow query does with a statement: answer it, or explain what asking it would mean."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from winnow.analytics.sql.query_answer import QueryAnswer

EXPLAIN = re.compile(r"\s*explain\s+", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class StatementOptions:
    """The options that hold for every statement of a command."""

    federation: Path | None
    kit: Path | None
    owners: str | None
    epsilon: float | None
    delta: float | None
    explained: bool
    folder: Path | None
    out: Path | None
    as_json: bool

    def respond(self, statement: str) -> None:
        prefix = EXPLAIN.match(statement)
        plain = statement[prefix.end() :] if prefix else statement
        if prefix or self.explained:
            self._explain(plain)
        else:
            self._answer(plain)

    def _explain(self, sql: str) -> None:
        from winnow.cli.ask_owners import names
        from winnow.cli.console import answer
        from winnow.questions import explain_statement

        text = explain_statement(
            sql, self.federation, kit=self.kit, owners=names(self.owners), epsilon=self.epsilon, delta=self.delta
        )
        for line in text.splitlines():
            answer(line)

    def _answer(self, sql: str) -> None:
        from time import monotonic

        from winnow.analytics.question import read_question
        from winnow.analytics.sql.query_answer import QueryAnswer
        from winnow.cli.ask_owners import CountedSteps, ask
        from winnow.cli.console import say

        question = read_question({"kind": "query", "sql": sql, "epsilon": self.epsilon, "delta": self.delta})
        begun, counted = monotonic(), CountedSteps()
        found = QueryAnswer(
            ask(
                question,
                federation=self.federation,
                kit=self.kit,
                owners=self.owners,
                folder=self.folder,
                on_event=counted.add,
            )
        )
        self._show(found)
        for line in found.notes():
            say(line)
        say(f"{len(found.answer['owners'])} owners, {counted.text(monotonic() - begun)}.")

    def _show(self, found: "QueryAnswer") -> None:
        from winnow.analytics.sql.answer_table import answer_table
        from winnow.cli.console import say, stdout_console, write_json

        if self.out is not None:
            found.write(self.out)
            say(f"{len(found.rows):,} rows: {self.out}")
        if self.as_json:
            write_json(found.answer)
        elif self.out is None:
            stdout_console().print(answer_table(found))
