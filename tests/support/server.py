"""A local web server whose answers a test controls."""

import contextlib
import http.server
import threading
import time


class Server:
    """
    Answers every request with `body` and `status`. With `more` it announces more bytes than it sends, with
    `location` it redirects, and with `pause` it waits that many seconds after each byte.
    """

    def __init__(self) -> None:
        outer = self
        self.body, self.status, self.requests = b"", 200, 0
        self.more, self.location, self.pause = 0, "", 0.0

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.requests += 1
                self.send_response(outer.status)
                self.send_header("Content-Length", str(len(outer.body) + outer.more))
                if outer.location:
                    self.send_header("Location", outer.location)
                self.end_headers()
                if not outer.pause:
                    self.wfile.write(outer.body)
                    return
                with contextlib.suppress(OSError):
                    for at in range(len(outer.body)):
                        self.wfile.write(outer.body[at : at + 1])
                        time.sleep(outer.pause)

            def log_message(self, *args: object) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/input.txt"
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()
