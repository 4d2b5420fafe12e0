from attnbench.models.attention import attention as attention
from attnbench.models.capture import capture as capture
from attnbench.models.dispatch import dispatch as dispatch
from attnbench.notebook import load as load
from attnbench.notebook import run as run
from attnbench.notebook import show as show
from attnbench.notebook.chosen import choose as choose

__version__: str
LATER: dict[str, str]
