"""Serves the newest model that a job has published: python serve_http.py URI FOLDER PORT.

POST / takes columns in JSON, such as {"user": ["u1", "u2"], "price": [3.5, null]}, and answers with a logit for each
sample. Each answer is of one whole model, and names its step. It needs cprjob_serving, and what serve.py needs.
"""

import json
import sys
from functools import lru_cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from serve import network_of

from cprjob_serving import EncodeError, Follower, NoModelError

cached = lru_cache(maxsize=2)(network_of)  # requests that have begun may still use the model before


def server(follower, port):
    """Return a server that scores rows with the follower's model."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            columns = self.rfile.read(int(self.headers["Content-Length"]))
            try:
                model = follower.model  # the same one until the answer is sent
                logits = cached(model)(model.inputs(json.loads(columns)))
                self.answer(200, {"step": model.about["step"], "logits": logits.tolist()})
            except NoModelError as error:
                self.answer(503, {"error": str(error)})
            except (EncodeError, KeyError, ValueError) as error:
                self.answer(400, {"error": str(error)})

        def answer(self, code, document):
            body = json.dumps(document).encode()
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    return ThreadingHTTPServer(("127.0.0.1", port), Handler)


if __name__ == "__main__":
    uri, folder, port = sys.argv[1:]
    with Follower(uri, Path(folder)) as follower, server(follower, int(port)) as http:
        http.serve_forever()
