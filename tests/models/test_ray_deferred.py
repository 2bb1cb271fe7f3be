"""Ray's workers defer imports where raycomp opened the session, and in no session of the user's."""

import subprocess
import sys

DEFERS = """
def defers():
    import sys
    import raycomp
    return any(type(finder).__module__ == "raycomp.models.deferred" for finder in sys.meta_path)
"""
OWN_SESSION = f"""
import ray
from raycomp.config import ClusterConfig
from raycomp.run.executor import find_current
from raycomp.run.executor import connect
{DEFERS}
ray.init(address="local", num_cpus=4, log_to_driver=False)
with connect(ClusterConfig(executor="ray")):
    executor = find_current()
    print([defers(), executor.get(executor.submit(defers))])
"""


def test_a_session_of_the_user_is_left_as_it_is(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", OWN_SESSION], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert done.stdout.split("\n")[-2:] == ["[False, False]", ""], done.stdout + done.stderr
