"""One thread: these tensors are tiny, and threads that wait for each other on a busy machine take ten times as long."""

import torch

torch.set_num_threads(1)
