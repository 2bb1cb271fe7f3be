"""Imports of open_clip and spaCy without the libraries that only some of their models use.

``import open_clip`` loads torchvision, which loads torch._dynamo for one function, and it loads transformers
and timm for their towers: together slower than torch itself. ``import spacy`` loads torch, which the packaged
parser does not use. In the few modules that import these at their top each name becomes a ``Deferred``, which
imports the real object on first use. An optimizer loads torch._dynamo, to forbid it to compile the optimizer:
until something else loads it, that call does nothing. No other module is affected: ``import transformers``
elsewhere gives transformers.

Only processes that raycomp starts do this: the command line (``cli.main``), and Ray's workers in a session
that raycomp opened, where ``IN_WORKER`` is set (``run/ray_session.py``). In other processes, and in workers
of a session that the user opened, these libraries are imported as they are.
"""

import builtins
import importlib
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

IN_WORKER = "RAYCOMP_WORKER"
"""An environment variable of Ray's workers in sessions that raycomp opened: they defer these imports."""
_THINC = "thinc.compat"


class Deferred:
    """A name of a module that is imported when the name is first called, read from or compared with."""

    def __init__(self, module: str, name: str):
        self._place = module, name

    def _find(self) -> Any:
        module, name = self._place
        return getattr(importlib.import_module(module), name)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._find(), name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._find()(*args, **kwargs)

    def __instancecheck__(self, instance: Any) -> bool:
        # Nothing can be an instance of a class whose module was never imported.
        return self._place[0] in sys.modules and isinstance(instance, self._find())

    def __mro_entries__(self, bases: tuple) -> tuple:
        return (self._find(),)

    def __or__(self, other: Any) -> Any:
        return self._find() | other


class _DeferredModule(ModuleType):
    """Replaces a library in one module that imports it: until that module has run, the names are deferred."""

    is_running = True

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        deferred = Deferred(self.__name__, name)
        return deferred if self.is_running else deferred._find()


class _DeferringLoader(Loader):
    """Runs a module whose imports of some libraries are deferred."""

    def __init__(self, loader: Any, libraries: Sequence[str]):
        self.loader = loader
        self.libraries = libraries
        self.loaded: list[_DeferredModule] = []

    def __getattr__(self, name: str) -> Any:  # the source and resources, which other code asks a loader for
        return getattr(self.loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Run the module; its own imports of the libraries are deferred until it has run."""
        own = {**vars(builtins), "__import__": self.run_import}
        vars(module)["__builtins__"] = own
        try:
            self.loader.exec_module(module)
        finally:
            # Imports inside its functions, at call time, are no longer deferred.
            own["__import__"] = builtins.__import__
            for library in self.loaded:
                library.is_running = False

    def run_import(
        self, name: str, own: Any = None, local: Any = None, names: Sequence[str] = (), level: int = 0
    ) -> Any:
        """Return the result of an import statement of the module."""
        is_slow = any(name == one or name.startswith(f"{one}.") for one in self.libraries)
        if not is_slow or name in sys.modules:
            return builtins.__import__(name, own, local, names, level)
        # "import a.b" binds a, "from a.b import c" reads c of a.b.
        return self.load(name if names else name.partition(".")[0])

    def load(self, name: str) -> Any:
        """Return the substitute of a library."""
        self.loaded.append(_DeferredModule(name))
        return self.loaded[-1]


class _ThincLoader(_DeferringLoader):
    """Runs ``thinc.compat``, which queries torch for its devices, on a machine that has no GPU."""

    def exec_module(self, module: ModuleType) -> None:
        """Run the module as if torch were not installed, then set that it is."""
        from importlib.metadata import version  # loads email and zipfile

        super().exec_module(module)
        compat: Any = module
        if not compat.has_torch:
            compat.torch, compat.has_torch = _DeferredModule("torch"), True
            compat.torch.is_running = False
            compat.torch_version = compat.Version(version("torch"))

    def load(self, name: str) -> ModuleType:
        raise ImportError(name)


class _NotCompiling:
    """torch in the functions that forbid torch._dynamo to compile them, until that is loaded."""

    class _dynamo:
        @staticmethod
        def graph_break() -> None:
            """Nothing is compiled yet."""

        @staticmethod
        def disable(function: Callable[..., Any], *options: Any, **more: Any) -> Callable[..., Any]:
            return function

    def __getattr__(self, name: str) -> Any:
        return getattr(sys.modules["torch"], name)


class _OptimizerLoader(_DeferringLoader):
    """Runs a module whose functions import torch._dynamo when called, which they do not need to train."""

    def exec_module(self, module: ModuleType) -> None:
        vars(module)["__builtins__"] = {**vars(builtins), "__import__": self.run_import}
        self.loader.exec_module(module)

    def load(self, name: str) -> Any:
        return _NotCompiling()


class _Finder(MetaPathFinder):
    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        make = LOADERS.get(name)
        if make is None:
            return None
        has_gpu = sys.platform != "linux" or os.path.exists("/dev/nvidiactl")
        if name == _THINC and (has_gpu or find_spec("torch") is None):
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec and spec.loader:
            spec.loader = make(spec.loader)
        return spec


# Modules that import a slow library and do without it most of the time. Each saves .9 CPU s or more.
LOADERS: dict[str, Callable[[Any], Loader]] = {
    "torch._compile": partial(_OptimizerLoader, libraries=("torch._dynamo",)),
    "torch.optim.optimizer": partial(_OptimizerLoader, libraries=("torch._dynamo",)),
    "torchvision.ops.roi_align": partial(_DeferringLoader, libraries=("torch._dynamo",)),
    "open_clip.coca_model": partial(_DeferringLoader, libraries=("transformers",)),
    "open_clip.hf_model": partial(_DeferringLoader, libraries=("transformers",)),
    "open_clip.timm_model": partial(_DeferringLoader, libraries=("timm",)),
    _THINC: partial(_ThincLoader, libraries=("torch",)),
}


def install() -> None:
    """Defer these imports in this process, from now on."""
    if not any(type(finder) is _Finder for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


def load_without(library: str, path: Path) -> ModuleType:
    """Return one file of a package as a module of its own, whose import of a library is deferred."""
    spec = spec_from_file_location(f"raycomp_{path.stem}", path)
    assert spec
    module = module_from_spec(spec)
    _DeferringLoader(spec.loader, (library,)).exec_module(module)
    return module
