from prunella.deploy.errors import LaunchError, UsageError
from prunella.deploy.ports import PortError
from prunella.deploy.runs import RunError


def test_what_the_user_can_mend_is_apart_from_what_broke() -> None:
    assert issubclass(PortError, UsageError) and issubclass(RunError, UsageError)
    assert not issubclass(LaunchError, UsageError) and not issubclass(UsageError, LaunchError)
