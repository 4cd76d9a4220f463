"""What the tests of the command line share: how it is called, and models to call it with."""

from __future__ import annotations

import sys
from pathlib import Path

COMMAND = [sys.executable, "-c", "import sys; from ostinato.cli import main; sys.exit(main())"]
FIXTURES = Path(__file__).parent.parent / "fixtures"
TINY = str(FIXTURES / "tiny-llama-grouped.gguf")
GREEDY = ["-m", TINY, "--temperature", "0"]
"""An answer that is never empty: what is drawn may begin with the end."""
ENDLESS = ["-m", str(FIXTURES / "tiny-llama-tied.gguf"), "--temperature", "0", "--context", "60000"]
"""A model that greedily never ends, and room for it."""
