"""What ``launch_worker.py`` does, with FSDP where there is no GPU: run by ``test_launch_sharded.py`` under a launcher.

accelerate shards by FSDP on GPUs alone and falls back to whole copies elsewhere. All that keeps it from sharding over
gloo is the kind of launch that it has found; called by another name, it goes on as it would on GPUs.
"""

from __future__ import annotations

from typing import Any

import launch_worker
from accelerate import state
from accelerate.utils import DistributedType

found = state.PartialState.__init__


def called_by_another_name(self: Any, *args: Any, **kwargs: Any) -> None:
    found(self, *args, **kwargs)
    if self.distributed_type == DistributedType.MULTI_CPU:
        self.distributed_type = DistributedType.MULTI_GPU


state.PartialState.__init__ = called_by_another_name

if __name__ == "__main__":
    launch_worker.main()
