"""A script as people write them for torchrun: nothing in it knows of muster."""

import argparse
import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


class Trainer:
    def __init__(self, data, snapshot, save_every):
        self.rank = int(os.environ["RANK"])
        self.data, self.snapshot, self.save_every, self.epochs_run = data, snapshot, save_every, 0
        model = torch.nn.Linear(8, 1)
        if os.path.exists(snapshot):
            saved = torch.load(snapshot)
            model.load_state_dict(saved["model"])
            self.epochs_run = saved["epochs"]
        self.model = DistributedDataParallel(model)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05)

    def epoch(self, number):
        self.data.sampler.set_epoch(number)
        total = 0.0
        for inputs, wanted in self.data:
            self.optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(self.model(inputs), wanted)
            loss.backward()
            self.optimizer.step()
            total += loss.item()
        return total

    def train(self, epochs):
        for number in range(self.epochs_run, epochs):
            loss = self.epoch(number)
            if self.rank == 0:
                print(f"epoch {number}, {len(self.data)} steps, loss {loss:.6f}", flush=True)
                if (number + 1) % self.save_every == 0:
                    torch.save({"model": self.model.module.state_dict(), "epochs": number + 1}, self.snapshot)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("epochs", type=int)
    parser.add_argument("save_every", type=int)
    parser.add_argument("--batch-size", type=int, default=16)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    inputs = torch.randn(256, 8)
    data = TensorDataset(inputs, inputs.sum(dim=1, keepdim=True))
    loader = DataLoader(data, batch_size=arguments.batch_size, sampler=DistributedSampler(data))
    Trainer(loader, "snapshot.pt", arguments.save_every).train(arguments.epochs)
    dist.barrier()  # PyTorch may abort when a rank leaves while another is still at work
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
