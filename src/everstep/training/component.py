"""How a component's program ends, so that whoever started it knows what to do."""

from collections.abc import Callable
from typing import Any

from everstep.errors import TrainingError, UsageError
from everstep.run.ending import exit_code
from everstep.run.signals import Interrupted


def run_component(main: Callable[[], Any]) -> int:
    """Calls `main` and returns the exit code to end with.

        if __name__ == "__main__":
            raise SystemExit(run_component(main))

    | 0 | done |
    | 1 | failed; what the job had is kept, and trying again goes on from there |
    | 2 | bad input, one line on standard error: trying again would not help |
    | 130, 143 | asked to end, by SIGINT or SIGTERM; the state is saved: start it again |

    Any other error is a bug in somebody's code, and shows its traceback (exit code 1).
    """
    try:
        main()
    except (UsageError, TrainingError) as error:
        kind = type(error)
        return exit_code(kind(" ".join(str(error).split("\n"))).with_traceback(error.__traceback__))
    except (KeyboardInterrupt, Interrupted) as error:
        return exit_code(error)
    return 0
