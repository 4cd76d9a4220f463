"""From a model reference to a verified file, and the cache that keeps it.

`ostinato.hub.inspect` stands apart: it reads model files and so needs numpy, which a cached start of this
package does not.
"""

from ostinato.hub.aliases import ALIASES, DEFAULT_MODEL, Alias
from ostinato.hub.cache import CachedModel, list_models, remove
from ostinato.hub.reference import ModelFile, resolve

__all__ = [
    "ALIASES",
    "DEFAULT_MODEL",
    "Alias",
    "CachedModel",
    "ModelFile",
    "list_models",
    "remove",
    "resolve",
]
