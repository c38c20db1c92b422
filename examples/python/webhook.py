#!/usr/bin/env python3
"""Receives the alerts of watch: it verifies the signature, refuses old ones, and handles each change once.

    SECRET=whsec_… examples/python/webhook.py

In watch.yml: targets: {me: {webhook: http://127.0.0.1:8090/, secret_file: FILE}}, with the same secret.
It needs Python 3.8 and nothing else.
"""
import base64
import hashlib
import hmac
import os
import time
from http.server import BaseHTTPRequestHandler, HTTPServer

TOLERANCE = 300  # seconds, of the sender's clock
MOST = 1 << 20  # bytes of a body
SECRET = base64.b64decode(os.environ["SECRET"].replace("whsec_", "", 1), validate=True)
seen = set()  # keep them in a database to survive a restart


def verify(headers, body):
    """Checks a body as Standard Webhooks wants it: one of the signatures must be ours."""
    stamp = headers.get("webhook-timestamp", "")
    if not stamp.isdecimal() or abs(time.time() - int(stamp)) > TOLERANCE:
        return False
    signed = f"{headers.get('webhook-id')}.{stamp}.".encode() + body
    want = "v1," + base64.b64encode(hmac.new(SECRET, signed, hashlib.sha256).digest()).decode()
    given = headers.get("webhook-signature", "").split()
    return any(hmac.compare_digest(one.encode(), want.encode()) for one in given)


class Receiver(BaseHTTPRequestHandler):
    def do_POST(self):
        size = int(self.headers.get("Content-Length", 0))
        body = self.rfile.read(size) if size <= MOST else b""
        if not verify(self.headers, body):
            self.send_error(401, "the signature is wrong or old")
            return
        change = self.headers["webhook-id"]
        if change not in seen:
            seen.add(change)
            print(body.decode(), flush=True)  # here your program reacts
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


if __name__ == "__main__":
    host, port = os.environ.get("ADDR", "127.0.0.1:8090").rsplit(":", 1)
    HTTPServer((host, int(port)), Receiver).serve_forever()
