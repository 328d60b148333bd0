"""Tasks besides training, such as evaluations and profiles; their replies are checked, and charged to the round."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from winnow.core import Failure, Federation, Outcome, Reply, Task
from winnow.core.untrusted_text import one_line
from winnow.learn.reply_checks import CheckedReplies, ExpectedReply, Rejection, check_replies
from winnow.learn.representation_profile import ReplyCheck
from winnow.learn.round_costs_and_rejections import RoundRecord


@dataclass(frozen=True, kw_only=True)
class TasksBesidesTraining:
    """Exchanges whose costs and rejections go into the round's record."""

    federation: Federation
    expected: Callable[[], ExpectedReply]
    """What a valid reply looks like at present."""
    record: RoundRecord

    def send(self, tasks: Sequence[Task], check: ReplyCheck | None = None) -> list[Outcome]:
        """The sound replies; the others are rejected."""
        sound, refused, answered = check_replies(self._outcomes(tasks), self.expected(), check)
        self.record.add(answered, refused)
        return list(sound)

    def ask(self, tasks: Sequence[Task], check: ReplyCheck) -> CheckedReplies:
        """Send tasks that clients may decline, and say why: only unsound replies are rejected."""
        outcomes = self._outcomes(tasks)
        sound, unsound, answered = check_replies(
            [each for each in outcomes if isinstance(each, Reply)], self.expected(), check
        )
        self.record.add(answered, unsound)
        declined = [
            Rejection(client=each.task.client, reason=one_line(each.reason))
            for each in outcomes
            if isinstance(each, Failure)
        ]
        return CheckedReplies(sound, [*unsound, *declined], answered)

    def _outcomes(self, tasks: Sequence[Task]) -> list[Outcome]:
        with self.federation.dispatch(tasks) as exchange:
            return sorted(exchange, key=lambda outcome: outcome.task.client)
