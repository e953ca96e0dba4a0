"""What is checked before anything is started."""

from __future__ import annotations

import socket

import pytest

from frontend.launcher.checks import PortChoice, check_shared_memory, free_ports
from frontend.launcher.errors import PortInUse, SharedMemoryTooSmall

HOST = "127.0.0.1"


def test_the_shared_memory_of_a_container_by_default_is_too_small():
    with pytest.raises(SharedMemoryTooSmall, match=r"^/dev/shm has 64 MiB free: .* --shm-size"):
        check_shared_memory(64 * 2**20)
    check_shared_memory(65 * 2**20)


def test_ports_that_are_chosen_are_free_and_different():
    ports = free_ports([PortChoice("--a", HOST, 0), PortChoice("--b", HOST, 0)])
    assert set(ports) == {"--a", "--b"}
    assert len(set(ports.values())) == 2


def test_a_port_that_is_named_is_never_chosen_for_another():
    with socket.create_server((HOST, 0)) as listener:
        named = listener.getsockname()[1]
    assert free_ports([PortChoice("--any", HOST, 0), PortChoice("--named", HOST, named)])["--named"] == named


def test_a_port_that_lingers_after_a_connection_counts_as_free():
    with socket.create_server((HOST, 0)) as listener:
        port = listener.getsockname()[1]
        with socket.create_connection((HOST, port)), listener.accept()[0]:
            pass
    assert free_ports([PortChoice("--a", HOST, port)]) == {"--a": port}


def test_an_address_that_is_not_this_machines_is_refused():
    with pytest.raises(PortInUse, match="--a chooses another port"):
        free_ports([PortChoice("--a", "192.0.2.1", 0)])
