"""Several processes, as torchrun starts them, that compute the models of one command together.

The first runs the command. The others run nothing of it: they load their part of each model that the first one loads, compute
what it computes, and end with it (`decoding.targets.parallel`). Training shares out its data instead, see
`training.run.progress`.
"""

import os
import signal
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from decoding.targets.parallel import Leader

_led: list["Leader"] = []  # this process, where it is the first of several


def processes_wanted() -> int:
    """How many processes the environment speaks of."""
    return int(os.environ.get("WORLD_SIZE") or 1)


def leader_here() -> "Leader | None":
    """Of the models that this process loads; None where it computes alone."""
    return _led[-1] if _led else None


def processes_here() -> int:
    """How many compute a model that this process loads."""
    return _led[-1].group.size if _led else 1


def join(at_end: Callable[[Callable[[], None]], object]) -> bool:
    """Join the processes that torchrun started. True in the first one, which leaves them by what it hands to `at_end`; in the
    others False, when the first has ended or is lost. Raises ModelUnavailable where the environment is incomplete.
    """
    from decoding.targets.parallel import Group, Leader

    group = Group()
    if group.rank == 0:
        _led.append(Leader(group))
        at_end(lambda: _led.pop().end())
        return True
    from decoding.serving.parts import part_of_model
    from decoding.targets.parallel import Follower

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl+C reaches all; what it means is for the first to say
    Follower(group, partial(part_of_model, group)).follow()
    group.leave()
    return False
