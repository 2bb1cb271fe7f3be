"""Every layout by its name."""

from collections.abc import Callable, Iterator

from raycomp.continual.layouts import clevr, clove, construct_vl, mit_states, vaw, vqacl
from raycomp.continual.layouts.row import Row
from raycomp.data.folder import Folder

Read = Callable[[Folder, str, str], Iterator[Row]]
OF_FILES: dict[str, Read] = {one.NAME: one.read for one in (clevr, vaw, construct_vl, clove, vqacl)}
"""Those that are a file, with the images beside it unless another folder is named."""
OF_FOLDERS: dict[str, Read] = {mit_states.NAME: mit_states.read}
"""Those that are a folder with all that they need."""
