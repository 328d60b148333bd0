"""Tasks asked again, and rounds that settle some of a task's clients: nothing is lost, and nothing kept too long."""

from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import pytest
from serving import ScriptedSite, World, a_world, answer_of, eventually, job_config, of, undisturbed

from winnow.deploy.wire.messages import AssignTask, FetchBlob, GetJobResult, Settle, SiteInstruction, SubmitResult

HERE = "sites = ['plant-a']"


@pytest.fixture
def world(kits: Path, tmp_path: Path) -> Iterator[World]:
    with a_world(kits, tmp_path) as world:
        yield world


def checkpoint_of(world: World) -> str:
    link = world.person().link
    return b"".join(link.fetch(FetchBlob(job="job", blob=link.call(GetJobResult(job="job")).checkpoint))).decode()


def test_a_task_that_was_withdrawn_and_is_asked_again_is_answered(world: World, tmp_path: Path) -> None:
    """The runner gave it up and died; its next life asks the very same."""
    site = world.site("plant-a", delay=0.6)
    person = world.submit(job_config(2, HERE, f"withdraw_at = 1\nmark = '{tmp_path / 'mark'}'"))
    assert person.wait("job", "finished", "failed").status == "finished"
    assert checkpoint_of(world) == undisturbed(2, {"plant-a": 2})
    first, second = of(AssignTask, site)[:2]
    assert first == second


def test_the_same_question_asked_twice_is_answered_twice(world: World) -> None:
    site = world.site("plant-a")
    person = world.submit(job_config(2, HERE, "twice = true"))
    assert person.wait("job", "finished", "failed").status == "finished"
    assert [order.task.round for order in of(AssignTask, site)] == [1, 1, 2, 2]


def inbox(world: World) -> set[str]:
    return {path.name for path in (world.folder / "state" / "jobs" / "job" / "inbox" / "plant-a").iterdir()}


def digest(client: int, number: int) -> str:
    return sha256(answer_of("plant-a", client, number)).hexdigest()


def test_what_is_settled_for_one_client_is_kept_for_the_other(world: World) -> None:
    site = world.site("plant-a")
    person = world.submit(job_config(4, HERE, "late = true\npause = 0.5"))
    eventually(lambda: person.state("job").round == 1 and digest(0, 1) not in inbox(world))
    assert digest(1, 1) in inbox(world), "its reply was not folded yet"
    eventually(lambda: person.state("job").round == 2 and digest(1, 1) not in inbox(world))
    person.wait("job", "finished")
    tasks = [order.task.id for order in of(AssignTask, site)]
    first, second = eventually(lambda: of(Settle, site)[:2] if len(of(Settle, site)) > 1 else None)
    assert (first.round, first.tasks, first.ended_tasks) == (1, {tasks[0]: [0]}, [])
    assert (second.round, second.tasks, second.ended_tasks) == (2, {tasks[0]: [1], tasks[1]: [0]}, [tasks[0]])


def test_what_an_earlier_life_was_answered_is_cleared_away(world: World, tmp_path: Path) -> None:
    """Its first life is answered by one client, and dies; its second is answered anew."""
    site = world.site("plant-a", answers=False)
    person = world.submit(job_config(2, HERE, f"withdraw_at = 1\nmark = '{tmp_path / 'mark'}'\npause = 0.5"))
    order = eventually(lambda: of(AssignTask, site))[0]
    site.give("job", order.task.id, 0, b"of the first life")
    again = eventually(lambda: of(AssignTask, site)[1:])[0]
    for client in again.task.clients:
        site.give("job", again.task.id, client, b"of the second life")
    eventually(lambda: person.state("job").round == 1)
    eventually(lambda: inbox(world) == set())


class Leaving(ScriptedSite):
    """It answers its first task, and is gone before it hears what became of it."""

    def obey(self, order: SiteInstruction) -> None:
        super().obey(order)
        if isinstance(order, AssignTask):
            self._stopping.set()


def test_a_site_that_was_away_for_long_hears_what_was_settled_from_the_next_leader(kits: Path, tmp_path: Path) -> None:
    config = job_config(500, "sites = ['plant-a', 'plant-b']", "once = 'plant-b'")
    with a_world(kits, tmp_path) as world:
        world.site("plant-a")
        gone = Leaving(world.kit("plant-b"), (world.url,))
        world.made.append(gone)
        person = world.submit(config)
        eventually(lambda: person.state("job").round > 30)
        assert not of(Settle, gone)
    with a_world(kits, tmp_path) as world:
        a, b = world.site("plant-a"), world.site("plant-b", jobs={"job"})
        [settle] = eventually(lambda: of(Settle, b))
        assert (settle.round, settle.tasks) == (1, {of(AssignTask, gone)[0].task.id: [2, 3]})
        heard = eventually(lambda: of(Settle, a))
        assert heard[0].round > 25, "what a site is known to have heard is not said again"


def test_an_answer_whose_blob_went_with_an_older_one_is_asked_for_again(world: World) -> None:
    """The site was told that the blob is there; then the round of the older answer was settled."""
    site = world.site("plant-a", answers=False)
    person = world.submit(job_config(1, HERE))
    [order] = eventually(lambda: of(AssignTask, site))
    for client in order.task.clients:
        site.give("job", order.task.id, client, b"same")
    person.wait("job", "finished")
    site.orders.clear()
    person.submit("next", world.folder, job_config(1, HERE))
    [order] = eventually(lambda: of(AssignTask, site))
    answer = site.answer("next", order.task.id, order.task.clients[0], b"same")
    with pytest.raises(Exception, match="has not been uploaded"):
        site.link.call(SubmitResult(session=site.session, result=answer))
    eventually(lambda: of(AssignTask, site)[1:] == [order])


def test_a_task_too_large_for_a_message_fails_and_the_site_goes_on(world: World) -> None:
    site = world.site("plant-a")
    person = world.submit(job_config(2, HERE, "large_at = 1"))
    assert person.wait("job", "finished", "failed").status == "finished"
    first, second = checkpoint_of(world).splitlines()
    assert first.count("the task is too large to send") == 2
    assert second == undisturbed(2, {"plant-a": 2}).splitlines()[1]
    assert [order.task.round for order in of(AssignTask, site)] == [2]
