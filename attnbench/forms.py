"""How words become arguments: errors are a sentence, and a verb may have several forms."""

from __future__ import annotations

import argparse
from typing import Any, NoReturn


class Parser(argparse.ArgumentParser):
    """argparse, with errors as one sentence and a hint; and verbs that have several forms."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.forms: dict[str, Parser] = {}
        """By the first word after the verb; without one of these it is the verb's own form."""

    def form(self, name: str, description: str) -> Parser:
        """Another form of this verb."""
        self.forms[name] = Parser(prog=f"{self.prog} {name}", description=description)
        self.forms[name].set_defaults(form=name)
        return self.forms[name]

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As its form does that the first word names."""
        if args and args[0] in self.forms:
            return self.forms[args[0]].parse_known_args(args[1:], namespace)
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        """One sentence, status 2."""
        message = message.removeprefix("argument VERB: ")
        self.exit(2, f"attnbench: {message} ('{self.prog} --help' shows what there is)\n")
