"""Learning rates that fall from round to round."""

import pytest
import torch

from winnow.config.resolve import resolve
from winnow.core import ConfigError
from winnow.learn.local_optimiser import Sgd
from world import prepared


def test_a_cosine_falls_as_torch_has_it() -> None:
    local = Sgd(learning_rate=0.3, decay="cosine", decay_rounds=7)
    optimiser = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, T_max=7)
    for number in range(1, 8):
        assert local.rate(number) == pytest.approx(optimiser.param_groups[0]["lr"])
        optimiser.step()
        schedule.step()


def test_it_lasts_as_long_as_the_run_unless_it_is_said() -> None:
    assert resolve("demo", sets=["local.decay=cosine"], rounds=7).local.decay_rounds == 7
    assert resolve("demo", sets=["local.decay=cosine", "local.decay_rounds=9"], rounds=7).local.decay_rounds == 9


@pytest.mark.parametrize("algorithm", ["fedavg", "fixmatch", "server-only"])
def test_clients_and_a_server_that_trains_follow_it(algorithm: str) -> None:
    """Of two rounds the second is half-way down, where cos is 0: as with a factor of a half."""
    ends = []
    for decay in ("cosine", "0.5"):
        ready = prepared("rounds=2", f"local.decay={decay}", algorithm=algorithm)
        list(ready.training.run(ready.federation))
        ends.append(ready.training.model)
    for name, tensor in ends[0].items():
        torch.testing.assert_close(tensor, ends[1][name], rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(
    ("sets", "message"),
    [
        (["local.decay=cosin"], "local.decay: use a number above 0, at most 1, or 'cosine'"),
        (["local.decay=2"], "local.decay: use a number above 0, at most 1, or 'cosine'"),
        (["local.decay_rounds=5"], "local: decay_rounds needs decay = 'cosine'"),
        (["local.decay=cosine", "local.decay_rounds=5"], "local.decay_rounds = 5, but there are 9 rounds; .* raise it"),
    ],
)
def test_mistakes_get_a_line(sets: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        resolve("demo", sets=sets, rounds=9)
