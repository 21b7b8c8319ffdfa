"""Stands before an installed Mooncake: its engine is kvmend's, the rest stays its own."""

import logging
import os
from pkgutil import extend_path

_here = os.path.dirname(os.path.abspath(__file__))
__path__ = [_here, *(path for path in extend_path(__path__, __name__) if path != _here)]


def _become_the_installed_package() -> None:
    """Runs the installed package's own __init__, whose names programs may import."""
    for folder in __path__[1:]:
        init = os.path.join(folder, "__init__.py")
        if not os.path.exists(init):
            continue
        with open(init, "rb") as file:
            code = compile(file.read(), init, "exec")
        order = list(__path__)
        try:
            exec(code, globals())
        except ImportError as error:
            logging.getLogger("kvmend.mooncake").warning("%s can't be imported: %s", init, error)
        globals()["__path__"] = order
        return


_become_the_installed_package()
