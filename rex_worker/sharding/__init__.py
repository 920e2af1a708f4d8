"""Models that do not fit one device: sharded over the group with FSDP2, and elastic all the same.

Each worker holds one part of every parameter and of the optimiser's state, and fetches the others' parts layer by layer
while it computes. So every forward and backward pass is a work of the whole group, and a worker that dies takes its
parts along. What that changes is in here: ``dressing`` puts FSDP2 on the model and takes it off for the next group,
``wire`` carries its collectives, ``averager`` finishes a step, ``holding`` and ``resharding`` bring the parts of one
group's cut to the workers of the next.
"""

from rex_worker.sharding.dressing import ShardPolicy

__all__ = ["ShardPolicy"]
