from attnbench.models.attention import attention as attention
from attnbench.models.capture.capture import capture as capture
from attnbench.models.dispatch import dispatch as dispatch
from attnbench.notebook.frames import load as load
from attnbench.notebook.measured import choose as choose
from attnbench.notebook.measured import run as run
from attnbench.notebook.shown import show as show

__version__: str
LATER: dict[str, str]
