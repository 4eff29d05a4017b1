"""A DNS server on port 53 for one zone, `test.`: it reads its records from a file at each question."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Self

import dns.flags
import dns.message
import dns.name
import dns.rcode
import dns.zone

ORIGIN = dns.name.from_text("test.")


class NameServer(asyncio.DatagramProtocol):
    def __init__(self, zone: Path) -> None:
        self._zone = zone
        self._transport: asyncio.DatagramTransport | None = None

    @classmethod
    async def start(cls, zone: Path, host: str = "127.0.0.1") -> Self:
        _, server = await asyncio.get_running_loop().create_datagram_endpoint(
            lambda: cls(zone), local_addr=(host, 53)
        )
        return server

    def close(self) -> None:
        """It answers no more, and another may take its address."""
        assert self._transport is not None
        self._transport.close()

    def connection_made(self, transport: asyncio.DatagramTransport) -> None:  # type: ignore[override]
        self._transport = transport

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        assert self._transport is not None
        self._transport.sendto(self.answer(data), addr)

    def answer(self, query: bytes) -> bytes:
        """The records of the name and type; without any, NXDOMAIN or an empty answer."""
        message = dns.message.from_wire(query)
        answer = dns.message.make_response(message, recursion_available=True)
        answer.flags |= dns.flags.AA
        zone = dns.zone.from_text(self._zone.read_text(), ORIGIN, relativize=False, check_origin=False)
        (question,) = message.question
        if not question.name.is_subdomain(ORIGIN) or zone.get_node(question.name) is None:
            answer.set_rcode(dns.rcode.NXDOMAIN)
        elif (records := zone.get_rrset(question.name, question.rdtype)) is not None:
            answer.answer.append(records)
        return answer.to_wire()
