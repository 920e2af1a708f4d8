"""The scripts that ``benchmarks.elastic`` trains: under REX, and under torchrun with plain DDP."""

REX = """
import json, os, time

import torch
from torch import nn
from torch.utils.data import TensorDataset

import rex_worker as rex

torch.manual_seed(0)
x = torch.randn(960 * 96, 16)
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
name = os.environ["REX_WORKER_ID"] + "-" + str(os.getpid())
with open(os.path.join(os.environ["LEDGER"], name), "a", buffering=1) as ledger, rex.init() as session:
    model, optimizer = session.prepare(model, optimizer)
    loader = session.loader(TensorDataset(x, x.sum(1)), batch_size=96)
    for epoch in session.epochs(1000):
        for inputs, targets in loader:
            before, plan = session.step, session.plan
            optimizer.zero_grad()
            session.backward(nn.functional.mse_loss(model(inputs).squeeze(1), targets))
            optimizer.step()
            row = [time.monotonic(), before, session.step, plan.generation, plan.version]
            ledger.write(json.dumps(row) + "\\n")
"""

DDP = """
import json, os, sys, time

import torch
import torch.distributed as dist
from torch import nn

store, rank, size = next(dist.rendezvous("env://"))
store = dist.PrefixStore("restart-" + os.environ["TORCHELASTIC_RESTART_COUNT"], store)
dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
folder, every, agent = os.environ["LEDGER"], int(os.environ["SAVE_EVERY"]), os.getppid()
torch.manual_seed(0)
plain = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.SGD(plain.parameters(), lr=1e-3)
step, saved = 0, os.environ["SAVED"]
if os.path.exists(saved):
    state = torch.load(saved, weights_only=True)
    plain.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    step = state["step"]
model = nn.parallel.DistributedDataParallel(plain)
with open(os.path.join(folder, f"w{rank}-{os.getpid()}"), "a", buffering=1) as ledger:
    while os.getppid() == agent:
        end = time.monotonic() + 0.04
        x = torch.randn(32, 16)
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x).squeeze(1), x.sum(1))
        time.sleep(max(0.0, end - time.monotonic()))
        loss.backward()
        optimizer.step()
        step += 1
        if rank == 0 and step % every == 0:
            state = {"model": plain.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
            torch.save(state, saved + ".new")
            os.replace(saved + ".new", saved)
        ledger.write(json.dumps([time.monotonic(), step - 1, step, 0, 0]) + "\\n")
"""
