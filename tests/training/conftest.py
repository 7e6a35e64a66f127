"""One thread: small networks are faster that way, and on a busy machine a hundred times so."""

import torch

torch.set_num_threads(1)
