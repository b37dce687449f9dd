"""The tensor work of the job on one plain module, with nothing around it: no clients, states, messages or averages."""

from fedspm.base.threads import keep_freed_memory

from .job import Turns, read


def main(path: str) -> None:
    turns, job = Turns(), read(path)
    keep_freed_memory()
    for _ in range(job.rounds):
        for x, y in job.train:
            job.local_steps(job.network, x, y)
        turns.done(job.accuracy(job.network))
