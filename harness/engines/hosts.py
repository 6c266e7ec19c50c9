"""vLLM's engines on other hosts: vLLM watches only those of its host, so their connections are watched."""

from typing import Any

CONNECTION_LOST = "an engine on another host broke its connection off"


class RemoteEngineConnections:
    """The connections between vLLM's client in this process and its engines; to be made once all are there."""

    def __init__(self, client: Any) -> None:
        import zmq

        # The client's sockets belong to its event loop; what ZeroMQ tells of them may be read on any one thread.
        self._socket: Any = zmq.Socket.shadow(client.resources.input_socket).get_monitor_socket(zmq.EVENT_DISCONNECTED)
        self._told: Any = zmq.Socket.shadow(self._socket)

    @property
    def is_broken(self) -> bool:
        """Whether a connection has ended; an engine never ends one while it lives."""
        return bool(self._told.poll(0))
