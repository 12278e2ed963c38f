"""A cluster of several nodes on one machine, to test how a run behaves when nodes are killed and join.

As a program, this module runs the nodes. It reads requests, one JSON object per line, and ends with its input.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ludus.runtime.ray.connection import LOOPBACK_ONLY, SHORT, START_SECONDS, START_WAIT, TemporaryHome
from ludus.system.network import RAY_MODE_VARIABLE, RAY_PATH_VARIABLE, make_token_file

MEBIBYTE = 2**20


class LoopbackCluster:
    """A context manager. `address` and `environment` are what `ludus train --address` needs."""

    def __init__(self, *cpus: int) -> None:
        """`cpus`: of each node, the head first."""
        self._temporary = TemporaryHome("ludus-nodes-", SHORT)
        self._home = self._temporary.path
        self.token_file = make_token_file(self._home / "token")
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("RAY_")},
            RAY_MODE_VARIABLE: "token",
            RAY_PATH_VARIABLE: str(self.token_file),
            LOOPBACK_ONLY: "0",
            "RAY_USAGE_STATS_ENABLED": "0",
            START_WAIT: START_SECONDS,
        }
        with (self._home / "nodes.log").open("w") as log:
            self._keeper = subprocess.Popen(
                [sys.executable, "-m", "ludus.runtime.ray.loopback", str(self._home)],
                env=self.environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        self.ids: list[str] = []
        """Ids of the nodes, by their numbers."""
        try:
            self.address: str = self.add(cpus[0])["address"]
            for count in cpus[1:]:
                self.add(count)
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int:
        """The process that all processes of the nodes descend from."""
        return self._keeper.pid

    def add(self, cpus: int, environment: Mapping[str, str] | None = None, *, gpus: int = 0) -> dict[str, Any]:
        """Add a node with these changes of its environment and this many pretended GPUs. Returns its number and id."""
        answer = self._ask({"add": cpus, "gpus": gpus, "environment": dict(environment or {})})
        self.ids.append(answer["id"])
        return answer

    def kill(self, number: int) -> None:
        """Kill all processes of a node at once, as in a power cut."""
        self._ask({"kill": number})

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        assert self._keeper.stdin is not None
        assert self._keeper.stdout is not None
        self._keeper.stdin.write(json.dumps(request) + "\n")
        self._keeper.stdin.flush()
        answer = self._keeper.stdout.readline()
        if not answer:
            raise RuntimeError(f"{request} failed: {(self._home / 'nodes.log').read_text()[-2000:]}")
        answered: dict[str, Any] = json.loads(answer)
        return answered

    def close(self) -> None:
        assert self._keeper.stdin is not None
        assert self._keeper.stdout is not None
        self._keeper.stdin.close()
        self._keeper.wait()
        self._keeper.stdout.close()
        self._temporary.close()

    def __enter__(self) -> LoopbackCluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def keep_nodes(home: str) -> None:
    """The program."""
    from ray._common.utils import get_ray_address_file
    from ray.cluster_utils import Cluster

    # Ray writes the address of the head node there, wherever its temporary folder is.
    Path(get_ray_address_file(None)).parent.mkdir(parents=True, exist_ok=True)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what Ray prints is no answer
    cluster = Cluster()
    nodes: list[Any] = []
    try:
        for line in sys.stdin:
            request = json.loads(line)
            if "add" in request:
                options = {"temp_dir": f"{home}/ray"} if not nodes else {}
                nodes.append(
                    cluster.add_node(
                        num_cpus=request["add"],
                        num_gpus=request["gpus"],
                        env_vars=request["environment"] or None,
                        object_store_memory=128 * MEBIBYTE,
                        node_ip_address="127.0.0.1",
                        include_dashboard=False,
                        **options,
                    )
                )
                answer = {"number": len(nodes) - 1, "id": nodes[-1].node_id, "address": cluster.address}
            else:
                cluster.remove_node(nodes[request["kill"]], allow_graceful=False)
                answer = {}
            answers.write(json.dumps(answer) + "\n")
            answers.flush()
    finally:
        cluster.shutdown()


if __name__ == "__main__":
    keep_nodes(sys.argv[1])
