from attnbench.models.attention import NotServed as NotServed
from attnbench.models.attention import attention as attention
from attnbench.models.capture.capture import capture as capture
from attnbench.models.dispatch import dispatch as dispatch
from attnbench.notebook.display import show as show
from attnbench.notebook.frames import load as load
from attnbench.notebook.verbs import choose as choose
from attnbench.notebook.verbs import run as run

__version__: str
LATER: dict[str, str]
