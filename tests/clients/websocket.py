"""A small WebSocket client (RFC 6455) that can also send what it should not."""
import base64
import os
import socket
import struct

TEXT, BINARY, CLOSE, PING, PONG = 1, 2, 8, 9, 10


class WebSocket:
    def __init__(self, port, protocols="cedar.v1", timeout_s=60, tls=None):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=timeout_s)
        if tls:
            self.socket = tls.wrap_socket(self.socket, server_hostname="127.0.0.1")
        key = base64.b64encode(os.urandom(16)).decode()
        self.socket.sendall((f"GET /v1/stream HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nUpgrade: websocket\r\n"
                             f"Connection: Upgrade\r\nSec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n"
                             f"Sec-WebSocket-Protocol: {protocols}\r\n\r\n").encode())
        self.bytes = b""
        while b"\r\n\r\n" not in self.bytes:
            self.bytes += self._more()
        head, self.bytes = self.bytes.split(b"\r\n\r\n", 1)
        self.status = int(head.split(b" ")[1])
        self.close_code = None

    def _more(self):
        piece = self.socket.recv(1 << 16)
        if not piece:
            raise ConnectionError("the connection ended")
        return piece

    def _take(self, count):
        while len(self.bytes) < count:
            self.bytes += self._more()
        taken, self.bytes = self.bytes[:count], self.bytes[count:]
        return taken

    def send(self, payload, opcode=TEXT, masked=True):
        payload = payload.encode() if isinstance(payload, str) else payload
        size = len(payload)
        length = bytes([size]) if size < 126 else b"\x7e" + struct.pack(">H", size) if size < 65536 else \
            b"\x7f" + struct.pack(">Q", size)
        mask = b"\0\0\0\0"  # a mask like any other
        head = bytes([0x80 | opcode, length[0] | (0x80 if masked else 0)]) + length[1:]
        self.socket.sendall(head + (mask if masked else b"") + payload)

    def read(self):
        """The next text, or None after the close frame, whose code is close_code then."""
        while True:
            first, second = self._take(2)
            length = second & 127
            if length >= 126:
                length = int.from_bytes(self._take(2 if length == 126 else 8), "big")
            payload = self._take(length)
            opcode = first & 15
            if opcode == TEXT:
                return payload.decode()
            if opcode == PING:
                self.send(payload, PONG)
            if opcode == CLOSE:
                self.close_code = int.from_bytes(payload[:2], "big") if payload else 1005
                return None

    def read_close_code(self):
        """What the server closes with; texts before that are dropped."""
        while self.read() is not None:
            pass
        return self.close_code

    def cut(self):
        self.socket.close()
