"""One adapter per layout of attention weights: where the factors of each head lie.

An adapter looks at one module and answers with blocks, with a refusal (this looks like attention, but the group is not
known to act on it), or with nothing. It goes by structure, never by the name of a model. Adapters are tried in the
order in which they are registered, and the first that answers decides.
"""

from spiritlevel.symmetry.adapters.base import ADAPTERS, Adapter, Answer, Refusal, join, label
from spiritlevel.symmetry.adapters.fused import fused
from spiritlevel.symmetry.adapters.latent import latent
from spiritlevel.symmetry.adapters.lora import low_rank, vector_scales
from spiritlevel.symmetry.adapters.multihead import multihead
from spiritlevel.symmetry.adapters.names import heads_of
from spiritlevel.symmetry.adapters.separate import separate
from spiritlevel.symmetry.adapters.slots import projection

__all__ = [
    "ADAPTERS",
    "Adapter",
    "Answer",
    "Refusal",
    "fused",
    "heads_of",
    "join",
    "label",
    "latent",
    "low_rank",
    "multihead",
    "projection",
    "separate",
    "vector_scales",
]
