"""A site's process: Flower's SuperNode, and beside it, in the same process, the site that answers its messages.

Flower would start a fresh process for every message, which loads torch and the rows again, and would run in it the
code that the server sent. Here the SuperNode hands its messages to a worker that stays (`--isolation process`): a
message costs no start, and a site runs nothing but what is installed at the site. See docs/decisions/0008.
"""

import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

from flwr.app import Message
from flwr.common.constant import SubStatus
from flwr.proto.runtime_pb2 import AcquireTaskRequest
from flwr.supercore.constant import TaskType
from flwr.supercore.heartbeat import HeartbeatSender, make_task_heartbeat_fn_http
from flwr.supercore.interceptors import RuntimeTokenHttpInterceptor, RuntimeVersionHttpInterceptor
from flwr.supercore.retry import make_simple_http_retry_invoker
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supernode.cli.flower_supernode import flower_supernode
from flwr.supernode.runtime.run_clientapp import pull_task_input, push_message, push_task_output

from fedspm.base.printable import printable
from fedspm.base.threads import keep_freed_memory
from fedspm.deploy.polling_patch import (
    Backoff,
    forget_messages_of_ended_runs,
    poll_messages_sooner,
    poll_parts_sooner,
)
from fedspm.engines.flower.contract import SiteConfig
from fedspm.engines.flower.site import Site


def run_node(site: Path, superlink: str, certificates: Path | None, key: Path | None, port: int) -> None:
    """Run a site until it is stopped. Without certificates the connection is not encrypted: for trials only."""
    os.umask(0o077)  # whatever Flower writes is the site's own, too
    worker = Worker(Site(SiteConfig.read(site)), f"127.0.0.1:{port}")
    worker.site.rows  # noqa: B018  (report now what is wrong with them)
    worker.site.ledger.entries()  # and with what it has written down
    keep_freed_memory()
    threading.Thread(target=worker.run, name="fedspm-site", daemon=True).start()
    poll_messages_sooner()
    poll_parts_sooner()
    forget_messages_of_ended_runs()
    secure = ["--root-certificates", str(certificates)] if certificates else ["--insecure"]
    secure += ["--auth-supernode-private-key", str(key)] if key else []
    sys.argv = ["flower-supernode", "--superlink", superlink, "--isolation", "process", "--port", str(port), *secure]
    flower_supernode()


class Worker:
    """Answers the SuperNode's tasks, one after the other, and stays between them."""

    def __init__(self, site: Site, address: str):
        self.site, self._address = site, address

    def run(self) -> None:
        asking = self._client(RuntimeVersionHttpInterceptor(component_name="SuperExec"))
        wanted = AcquireTaskRequest(supported_task_types=[TaskType.CLIENT_APP])
        backoff = Backoff()
        while True:
            try:
                task = asking.AcquireTask(wanted)
                if task.token:
                    self._take(task.token)
                    backoff.reset()
                else:
                    backoff.wait()
            except Exception as error:  # the SuperNode is starting or stopping, or a message was withdrawn
                print(printable(f"fedspm: {error!r}"), file=sys.stderr, flush=True)
                time.sleep(1.0)

    def _take(self, token: str) -> None:
        client = self._client(
            RuntimeVersionHttpInterceptor(component_name="flwr-clientapp"), RuntimeTokenHttpInterceptor(token)
        )
        heart = HeartbeatSender(make_task_heartbeat_fn_http(client))
        heart.start()
        status, details, context = SubStatus.FAILED, "the site's worker failed", None
        try:
            message, context, _, _ = pull_task_input(client)  # neither the run's settings nor its code are looked at
            push_message(client, Message(self.site.answer(message.content), reply_to=message), context)
            status, details = SubStatus.COMPLETED, ""
        finally:
            push_task_output(client, context, status, details)
            heart.stop()
            client.close()

    def _client(self, *interceptors: Any) -> RuntimeHttpClient:
        return RuntimeHttpClient.from_server_address(
            server_address=self._address,
            insecure=True,  # the SuperNode of this very process, on the loopback interface
            root_certificates=None,
            interceptors=list(interceptors),
            retry_invoker=make_simple_http_retry_invoker(),
        )
