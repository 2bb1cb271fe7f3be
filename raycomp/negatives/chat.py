"""Client of an OpenAI-compatible server: many requests at a time, retried while a retry may succeed.

A fault becomes the error of a row, never an exception. The key is sent to the server and shown nowhere: it is
removed from every answer.
"""

import asyncio
import html
import json
import re
import time
import zlib
from collections.abc import Sequence
from typing import Any, NamedTuple
from urllib.parse import quote, quote_plus

import aiohttp

from raycomp.language.prompts import MAX_REPLY

AT_ONCE_PER_ENGINE = 16
# A correct answer is a few kilobytes; longer ones are not read to the end.
_MAX_BODY = 1 << 20
_MAX_ERROR = 300
_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 30.0
_CONNECT_S = 10.0
# Formats that zlib accepts: deflate without a header, or with that of gzip or zlib.
_RAW, _GZIP_OR_ZLIB = -zlib.MAX_WBITS, zlib.MAX_WBITS | 32
# The server is busy or restarts: the same request may succeed later.
_BUSY = (408, 425, 429, 502, 503, 504)
# The address or the key is wrong: a retry cannot succeed.
_REFUSED = (301, 302, 303, 307, 308, 401, 402, 404, 405)


class Secret:
    """A text that is not shown when its object is printed."""

    def __init__(self, text: str):
        self.text = text
        forms = {text, quote(text, safe=""), quote_plus(text), json.dumps(text)[1:-1], html.escape(text)}
        forms |= {" ".join(form.split()) for form in forms}
        self._forms = re.compile(
            "|".join(map(re.escape, sorted(forms, key=len, reverse=True))), re.IGNORECASE
        )

    def __repr__(self) -> str:
        return "Secret(***)"

    def cut_from(self, text: str) -> str:
        """Return ``text`` without the secret, in any case and in the escapes of URLs, JSON and HTML."""
        return self._forms.sub("***", text)


class Answer(NamedTuple):
    """The result of one request: a reply or an error."""

    reply: str | None = None
    error: str | None = None
    away: bool = False
    """The server did not respond, so the prompt itself is not known to be at fault."""
    may_pass: bool = False
    """The same request may succeed later."""
    is_garbage: bool = False
    """The response is not that of an OpenAI-compatible server."""
    wait_s: float = 0.0
    """The server's Retry-After."""


class Chat:
    """One server with the chat endpoint ``url``; its state persists between calls of ``ask``.

    ``at_once`` requests are open at a time. Each takes at most ``timeout_s`` seconds, and is not retried
    after ``patience_s``.
    """

    def __init__(self, url: str, key: Secret | None, at_once: int, timeout_s: float, patience_s: float):
        self.url, self.key = url, key
        self.at_once, self.timeout_s, self.patience_s = at_once, timeout_s, patience_s
        self.gate = asyncio.Semaphore(at_once)
        self.faults_in_row = 0
        self.last_fault = ""

    async def ask(self, bodies: Sequence[str]) -> list[Answer]:
        """Send requests, JSON texts, and return the result of each."""
        headers = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
        if self.key is not None:
            headers["Authorization"] = f"Bearer {self.key.text}"
        async with aiohttp.ClientSession(
            headers=headers,
            # The gate limits the number of connections.
            connector=aiohttp.TCPConnector(limit=0),
            timeout=aiohttp.ClientTimeout(total=self.timeout_s, sock_connect=_CONNECT_S),
            # A megabyte can unpack to a thousand: ``_unpack`` limits the size.
            auto_decompress=False,
        ) as http:
            return await asyncio.gather(*(self._ask(http, body) for body in bodies))

    async def _ask(self, http: aiohttp.ClientSession, body: str) -> Answer:
        """Retry a request until it is answered, or the patience or the server's Retry-After is exceeded.

        If as many consecutive requests as are open at a time failed, no more are sent.
        """
        async with self.gate:
            deadline = time.monotonic() + self.patience_s
            pause_s = _FIRST_PAUSE_S
            while self.faults_in_row < self.at_once:
                answer = await self._post(http, body)
                left_s = deadline - time.monotonic()
                if not answer.may_pass or left_s <= 0 or answer.wait_s > left_s:
                    # The server, rather than the prompt, is at fault.
                    is_its_fault = answer.away or answer.may_pass or answer.is_garbage
                    self.faults_in_row = self.faults_in_row + 1 if is_its_fault else 0
                    self.last_fault = answer.error or ""
                    return answer
                await asyncio.sleep(max(answer.wait_s, min(pause_s, left_s)))
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        text = f"not asked: {self.faults_in_row} requests failed in a row; {self.last_fault}"
        return self._fault(text, away=True)

    async def _post(self, http: aiohttp.ClientSession, body: str) -> Answer:
        """Send a request once."""
        try:
            async with http.post(self.url, data=body.encode(), allow_redirects=False) as response:
                data = b""  # up to one byte past the limit, which shows that it is too long
                while len(data) <= _MAX_BODY and (
                    part := await response.content.read(_MAX_BODY + 1 - len(data))
                ):
                    data += part
                data = _unpack(data, response.headers.get("Content-Encoding", ""))
                wait_s = _read_seconds(response.headers.get("Retry-After", ""))
                return self._judge(response.status, wait_s, data)
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            return self._fault(f"{type(error).__name__}: {error}", away=True, may_pass=True)
        except TimeoutError:
            return self._fault(f"no answer within {self.timeout_s:g} s", may_pass=True)
        except (aiohttp.ClientError, OSError) as error:
            return self._fault(f"{type(error).__name__}: {error}", may_pass=True)

    def _judge(self, status: int, wait_s: float, data: bytes) -> Answer:
        if status != 200:
            return self._fault(
                f"status {status}: {_show(data)}",
                away=status in _BUSY or status in _REFUSED,
                may_pass=status in _BUSY or status >= 500,
                wait_s=wait_s,
            )
        if len(data) > _MAX_BODY:
            beginning = self._clean(_show(data), 80)
            return self._fault(f"the answer is longer than {_MAX_BODY:,} bytes: {beginning}")
        try:
            reply = json.loads(data)["choices"][0]["message"]["content"]
            is_chat = reply is None or isinstance(reply, str)
        except (ValueError, LookupError, TypeError, RecursionError):
            is_chat = False
        if not is_chat:
            return self._fault(f"no chat completion: {_show(data)}", is_garbage=True)
        # One letter more than a correct reply can have is as wrong as any longer reply.
        return Answer(reply=self._clean(reply or "", MAX_REPLY + 1))

    def _clean(self, text: str, length: int) -> str:
        """Return a text that may be stored: without the key, of limited length, without half surrogates.

        The key is removed before the rest is cut, because half a key would not be recognized.
        """
        if self.key is not None:
            text = self.key.cut_from(text)
        return text[:length].encode("utf-8", "replace").decode("utf-8")

    def _fault(self, text: str, **flags: Any) -> Answer:
        """Return a response as an error of one line."""
        return Answer(error=self._clean(" ".join(text.split()), _MAX_ERROR), **flags)


def _show(data: bytes) -> str:
    """Return the readable part of a body; zeros are removed, so UTF-16 is readable too."""
    return data.decode("utf-8", "replace").replace("\0", "") or "nothing"


def _unpack(data: bytes, packed_as: str) -> bytes:
    """Unpack a body that a server compressed against the request; at most one byte past the limit.

    A body of another kind than gzip and deflate, packed twice or damaged, becomes a text that describes this.
    """
    kind = packed_as.strip().lower()
    if kind in ("", "identity"):
        return data
    if kind not in ("gzip", "x-gzip", "deflate"):
        return f"the server compressed its answer as {packed_as!r}; accepted are gzip and deflate".encode()
    is_raw = kind == "deflate" and data[:1] and data[0] & 0x0F != 8
    try:
        return zlib.decompressobj(_RAW if is_raw else _GZIP_OR_ZLIB).decompress(data, _MAX_BODY + 1)
    except zlib.error as error:
        return f"the server's {kind} data cannot be decompressed ({error})".encode()


def _read_seconds(text: str) -> float:
    """Read Retry-After in seconds; for a date the growing pauses apply."""
    return min(float(text), 86_400.0) if text.strip().isdecimal() and text.isascii() else 0.0
