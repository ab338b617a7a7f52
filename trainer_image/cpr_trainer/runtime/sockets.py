"""Sockets between the processes of a job. An address is a pod's, IPv4 or IPv6, without brackets."""

from __future__ import annotations

import socket

_BACKLOG = 256  # connections that wait to be accepted


def family_of(host: str) -> socket.AddressFamily:
    """Return the family of an address."""
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens at an address; port 0 takes a free one. Raises OSError if the port is taken."""
    return socket.create_server((host, port), family=family_of(host), backlog=_BACKLOG)


def connect(host: str, port: int, timeout_s: float) -> socket.socket:
    """Return a connection without Nagle's algorithm: small frames are sent at once. Raises OSError."""
    connection = socket.create_connection((host, port), timeout_s)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def begin_to_connect(host: str, port: int) -> tuple[socket.socket, int]:
    """Return a non-blocking connection that may not be established yet, and `connect_ex`'s code."""
    connection = socket.socket(family_of(host), socket.SOCK_STREAM)
    connection.settimeout(0.0)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection, connection.connect_ex((host, port))
