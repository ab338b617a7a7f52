"""Call ports of a pod over TLS, trusting any server, and print what each port does. Runs in the pod of a job.

Usage: tls_caller.py CERTIFICATE HOST PORT... CERTIFICATE is `none`, or the name in one that the pod's job signs.
"""

import json
import socket
import ssl
import sys
import tempfile
import time
from pathlib import Path

from cpr_contract import env
from cpr_trainer.runtime.certificate import signed_certificate

#: A port that reads frames closes an idle connection after three seconds.
WAIT_S = 2.0
REQUEST = b"GET /status HTTP/1.0\r\n\r\n"


def client(name: str) -> ssl.SSLContext:
    """Return the context of a client that can be refused by servers alone."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if name != "none":
        folder = Path(env.KEY_DIR)
        ca, key = (folder / env.CA_NAME).read_bytes(), (folder / env.CA_KEY_NAME).read_bytes()
        with tempfile.NamedTemporaryFile() as file:
            file.write(signed_certificate(ca, key, name, time.time(), 600.0).pem)
            file.flush()
            context.load_cert_chain(file.name)
    return context


def answer(context: ssl.SSLContext, host: str, port: int) -> str:
    """Return the first line of an answer over HTTP, `serves` for a port that waits for frames, or `refuses`."""
    is_http = port == env.DEFAULT_PORT_BASE + env.HTTP_PORT
    try:
        with socket.create_connection((host, port), 10) as connection, context.wrap_socket(connection) as secured:
            if is_http:
                secured.sendall(REQUEST)
            secured.settimeout(10 if is_http else WAIT_S)
            return secured.recv(64).decode().partition("\r\n")[0] or "refuses"
    except TimeoutError:
        return "serves"
    except OSError:
        return "refuses"


def main(name: str, host: str, *ports: str) -> None:
    """Print the answers as JSON, by port."""
    context = client(name)
    print(json.dumps({port: answer(context, host, int(port)) for port in ports}))


if __name__ == "__main__":
    main(*sys.argv[1:])
