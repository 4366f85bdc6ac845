"""The links of this worker and one of a peer's ranks in one direction, one after another."""

import contextlib
import logging
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from queue import SimpleQueue
from typing import NamedTuple

import torch

from daemon.engine.transfer.connect import EndPools, connect_receiver, connect_sender
from daemon.engine.transfer.messages import Broken, Done, Lost, News
from daemon.engine.transfer.receiver import Receiver
from daemon.engine.transfer.sender import Sender
from daemon.models.kv_parts import KVPart
from daemon.protocol.worker import FromWorker, LinkState, TransferOver

log = logging.getLogger(__name__)

_DIFFER = "not all blocks arrived as they left"


class _Joining(NamedTuple):
    """A link to be joined."""

    link: int
    sock: socket.socket
    part: KVPart | None


@dataclass(frozen=True, slots=True)
class _Ended:
    """A link ended by itself."""

    link: int
    why: str


class LinkEnd(NamedTuple):
    """The rank of a peer that a link leads to, or comes from."""

    peer: int
    sends: bool
    peer_rank: int = 0


class LinkPeer:
    """A thread that joins links as they come, and closes them; each follows the one before.

    It reports every link that it joined, and the end of each: then no copy over it touches blocks
    of this worker, and its transfers are answered. A link that it does not join is down at once:
    other ranks may have joined theirs.
    """

    def __init__(self, at: LinkEnd, here: EndPools, say: Callable[[FromWorker], None]) -> None:
        """`say` is called on threads of its own."""
        self._at, self._here = at, here
        self._say_it = say
        self._end: Sender | Receiver | None = None
        self._link = -1  # the number of the link that is up
        self._lock = threading.Lock()  # of the two below
        self._newest = -1
        self._meeting: socket.socket | None = None
        self._news: SimpleQueue[_Joining | _Ended] = SimpleQueue()
        name = f"link-{'to' if at.sends else 'from'}-{at.peer}"
        threading.Thread(target=self._live, name=name, daemon=True).start()

    @property
    def sender(self) -> Sender | None:
        """The end that sends, if one is up."""
        end = self._end
        return end if isinstance(end, Sender) else None

    def sender_of(self, link: int) -> Sender | None:
        """The end that sends over this very link, if it is up."""
        sender = self.sender
        return sender if self._link == link else None

    def join(self, link: int, sock: socket.socket, part: KVPart | None = None) -> None:
        """Join a newer link, for this part of each block: the one before is closed, or not waited
        for any more.
        """
        with self._lock:
            self._newest = link
            if self._meeting is not None:
                with contextlib.suppress(OSError):
                    self._meeting.shutdown(socket.SHUT_RDWR)
        self._news.put(_Joining(link, sock, part))

    def end(self, link: int) -> None:
        """Close a link that is up, or that the ends are about to join."""
        with self._lock:
            if self._newest == link and self._meeting is not None:
                with contextlib.suppress(OSError):
                    self._meeting.shutdown(socket.SHUT_RDWR)
        self._news.put(_Ended(link, "another link of the same number is lost"))

    def _live(self) -> None:
        device = self._here.cache.raw.device
        own = torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()
        with own, torch.inference_mode():
            while True:
                news = self._news.get()
                if isinstance(news, _Ended):
                    if news.link == self._link:
                        self._close(news.why)
                else:
                    self._close("a newer link follows")
                    self._open(*news)

    def _open(self, link: int, sock: socket.socket, part: KVPart | None) -> None:
        with self._lock:
            is_newest = link == self._newest
            self._meeting = sock if is_newest else None
        if not is_newest:
            sock.close()
            self._tell_state(link, False, "a newer link follows")
            return
        try:
            connect = connect_sender if self._at.sends else connect_receiver
            end = connect(sock, self._here, part=part)
        except Exception as error:  # noqa: BLE001 - a link that cannot be is no fault of the worker's
            log.warning("the link %s is not joined: %s", self._name, error)
            self._tell_state(link, False, str(error))
            return
        finally:
            with self._lock:
                self._meeting = None
        end.start(lambda news: self._told(link, news))
        self._link, self._end = link, end
        self._tell_state(link, True, direct=end.direct)

    def _close(self, why: str) -> None:
        """Close the link that is up: its transfers are answered, then its end is reported."""
        end, link = self._end, self._link
        self._end, self._link = None, -1
        if end is not None:
            end.close()
            log.info("the link %s is down: %s", self._name, why)
            self._tell_state(link, False, why)

    def _told(self, link: int, news: News) -> None:
        """Report an end's news, on a thread of the end."""
        if isinstance(news, Lost):
            self._news.put(_Ended(link, news.reason))
        elif isinstance(news, Done):
            why = _DIFFER if news.differs else ""
            self._say_over(news, why)
        else:
            self._say_over(news, news.reason)

    def _say_over(self, news: Done | Broken, why: str) -> None:
        right, rank = news.num_right, self._at.peer_rank
        self._say(TransferOver(news.transfer, right, news.elapsed_s, why, rank))

    def _tell_state(self, link: int, is_up: bool, why: str = "", direct: bool = False) -> None:
        self._say(
            LinkState(
                peer=self._at.peer,
                sends=self._at.sends,
                is_up=is_up,
                link=link,
                direct=direct,
                why=why,
                peer_rank=self._at.peer_rank,
            )
        )

    def _say(self, message: FromWorker) -> None:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # `serve` will see it
            self._say_it(message)

    @property
    def _name(self) -> str:
        return f"{'to' if self._at.sends else 'from'} instance {self._at.peer}"
