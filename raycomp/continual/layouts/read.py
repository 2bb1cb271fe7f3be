"""Every layout by its name."""

from collections.abc import Callable, Iterator

from raycomp.continual.layouts import clevr, clove, construct_vl, mit_states, vaw, vqacl
from raycomp.continual.layouts.row import Row
from raycomp.data.folder import Folder

Read = Callable[[Folder, str, str], Iterator[Row]]
OF_FILES: dict[str, Read] = {one.NAME: one.read for one in (clevr, vaw, construct_vl, clove, vqacl)}
"""Layouts that are one file; the images are in the file's folder unless another folder is named."""
OF_FOLDERS: dict[str, Read] = {mit_states.NAME: mit_states.read}
"""Layouts that are a folder with all their files."""
