"""How results show themselves: rich in a terminal, HTML in a notebook, plain text anywhere else."""

from __future__ import annotations

import io

from rich.console import Console, ConsoleRenderable

__all__ = ["Displayed"]

_WIDTH = 110


class Displayed:
    """Gives ``str`` and ``_repr_html_`` to anything with ``__rich__``."""

    def __rich__(self) -> ConsoleRenderable:
        """What to draw."""
        raise NotImplementedError

    def __str__(self) -> str:
        console = Console(file=io.StringIO(), width=_WIDTH, color_system=None, record=False)
        console.print(self.__rich__())
        file = console.file
        assert isinstance(file, io.StringIO)
        return "\n".join(line.rstrip() for line in file.getvalue().splitlines())

    def _repr_html_(self) -> str:
        console = Console(file=io.StringIO(), width=_WIDTH, record=True)
        console.print(self.__rich__())
        return console.export_html(inline_styles=True, code_format="<pre>{code}</pre>")
