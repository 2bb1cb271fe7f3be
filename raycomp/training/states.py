"""Lists and removes the states in a training's folder (state.py writes and reads one)."""

from raycomp.data.folder import Folder

CHECKPOINTS, STATE = "checkpoints", "state.json"


def list_states(out: Folder) -> list[int]:
    """Return the steps that have a state, in order."""
    return sorted(int(name) for name in _list_names(out) if out.exists(CHECKPOINTS, name, STATE))


def _list_names(out: Folder) -> list[str]:
    """Return the names of states, incomplete ones too."""
    return [name for name in out.list_names(CHECKPOINTS) if name.isdecimal()]


def keep_states(out: Folder, count: int) -> None:
    """Remove all states but the last ``count``, and incomplete ones of any step."""
    steps = list_states(out)[-count:]
    for name in _list_names(out):
        if int(name) not in steps:
            out.remove(CHECKPOINTS, name)
