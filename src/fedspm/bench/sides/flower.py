"""The job on Flower's simulation: its FedAvg strategy, and clients in one worker process of Ray."""

import logging
from functools import cache, partial
from typing import Any

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from .job import Job, Turns, of_family, read

RESOURCES: dict[str, Any] = {"num_cpus": 1.0, "num_gpus": 0.0}
RAY: dict[str, Any] = {
    "num_cpus": 1,
    "log_to_driver": False,
    "include_dashboard": False,
    "logging_level": logging.ERROR,
}


def main(path: str) -> None:
    logging.getLogger("flwr").setLevel(logging.ERROR)
    job, turns = read(path), Turns(of_family)
    client, server = ClientApp(), ServerApp()
    client.train()(partial(train, path))

    def evaluate(number: int, arrays: ArrayRecord) -> None:
        if number:
            job.network.load_state_dict(arrays.to_torch_state_dict())
            turns.done(job.accuracy(job.network))

    @server.main()
    def serve(grid: Grid, context: Context) -> None:
        strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=len(job.train), min_available_nodes=len(job.train))
        strategy.start(grid, ArrayRecord(job.network.state_dict()), job.rounds, evaluate_fn=evaluate)

    run_simulation(
        server_app=server,
        client_app=client,
        num_supernodes=len(job.train),
        backend_config={"client_resources": RESOURCES, "init_args": RAY},
    )


def train(path: str, message: Message, context: Context) -> Message:
    job = at_worker(path)
    x, y = job.train[int(context.node_config["partition-id"])]
    job.network.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
    job.local_steps(job.network, x, y)
    answer = RecordDict({"arrays": ArrayRecord(job.network.state_dict())})
    answer["metrics"] = MetricRecord({"num-examples": len(y)})
    return Message(content=answer, reply_to=message)


@cache
def at_worker(path: str) -> Job:
    """Read once per process: the rows stay in memory."""
    return read(path)
